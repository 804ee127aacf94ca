"""Completion: the answers to the scripts, and the scripts in real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from helpers.catalogs import forge, sections_of
from helpers.shell import Shell, make_files

import chordcache as cc
from chordcache.cli import cli
from chordcache.cli.machine_commands import SHELLS
from chordcache.cli.options import cache_argument
from chordcache.cli.values import KEY
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.catalog_file import keys_beginning_with
from chordcache.storage.layout import video_key

FILES = ("my index.json", "vidéo été.yaml", "größe/", "größte.json", "labels of all.csv", "it's.json", "a&b;c.json")


def answer(*words: str, command: click.Command = cli) -> list[tuple[str, str]]:
    """Return the kind and the text of each completion of the last word."""
    complete = ShellComplete(command, {}, "chordcache", "_CHORDCACHE_COMPLETE")
    return [(item.type, item.value) for item in complete.get_completions(list(words[:-1]), words[-1])]


def plain(*words: str) -> list[tuple[str, str]]:
    return [("plain", word) for word in words]


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["in"], plain("index", "info")),
        (["build", "my in"], [("file", "my in")]),
        (["build", "-o", ""], [("dir", "")]),
        (["build", "--tier", ""], plain(*TIERS)),
        (["build", "--features", ""], plain("frames", "flow", "motion", "mel")),
        (["build", "-c", "flow", "--features", "m"], []),
        (["build", "-c", "nothing", "--features", "m"], plain("motion", "mel")),
        (["build", "-c", "s"], [("file", "s"), *plain("smallest")]),
        (["scan", "--labels", "d"], [("file", "d"), *plain("dir")]),
        (["scan", "a", "b", ""], [("file", "")]),
        (["merge", "a", "b"], [("dir", "b")]),
        (["info", ""], [("file", "")]),
        (["completion", "z"], plain("zsh")),
    ],
)
def test_completions(tmp_path, monkeypatch, words, completions):
    monkeypatch.chdir(tmp_path)
    assert answer(*words) == completions


@click.group()
def looking() -> None:
    """Group of a command that takes a key."""


@looking.command()
@cache_argument()
@click.argument("key", type=KEY)
def look(cache: str, key: str) -> None:
    """Take a cache and a key, as ``show`` does."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory, make_video, run_cli):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("apple", "apricot", "berry"):
        make_video(folder / "videos" / f"{name}.mp4")
    for step in (("scan", "videos"), ("build", "-o", "my cache")):
        result = run_cli(*step, cwd=folder)
        assert result.returncode == 0, result.stderr
    return folder / "my cache"


def test_keys_of_a_cache(cache):
    def keys(*words: str) -> list[str]:
        return [key[:-17] for _, key in answer("look", *words, command=looking)]

    assert keys(str(cache), "") == ["apple", "apricot", "berry"]
    assert keys(str(cache), "ap") == ["apple", "apricot"]
    assert keys("nowhere", "a") == []
    assert len(keys_beginning_with(cache, "b")) == 1


@pytest.mark.parametrize("content", [b"", b"not a catalog", bytes(9000)])
def test_damaged_catalogs_have_no_keys(tmp_path, content):
    (tmp_path / "catalog.bin").write_bytes(content)
    assert keys_beginning_with(tmp_path, "") == []


@pytest.mark.parametrize("keys", [b"$(reboot)\n", b"a\nb\n", b"good-1\n", b"\xff\n", b""])
def test_a_shell_gets_no_other_letters_than_those_of_keys(tmp_path, cache, keys):
    copy = shutil.copytree(cache, tmp_path / "cache")
    sections = sections_of(copy)
    assert len(keys_beginning_with(copy, "")) == 3
    forge(copy, sections={"keys": keys + sections["keys"].partition(b"\n")[2]})
    assert keys_beginning_with(copy, "") == []
    assert keys_beginning_with("a\0b", "") == []


def test_completion_loads_nothing_heavy(cache):
    """A completion of a key by the type itself, since a user waits for it."""
    code = (
        "import sys\n"
        "from click.shell_completion import ShellComplete\n"
        "from chordcache.cli import cli\n"
        "for words in ([''], ['build', '--tier', ''], ['show', sys.argv[1], 'a']):\n"
        "    ShellComplete(cli, {}, 'chordcache', '').get_completions(words[:-1], words[-1])\n"
        "from chordcache.storage.catalog_file import keys_beginning_with\n"
        f"assert keys_beginning_with({str(cache)!r}, 'b')\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code, cache], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "av", "cv2", "h5py", "lmdb", "msgspec", "torch", "tqdm"} & set(loaded)


@pytest.fixture(scope="module", params=SHELLS)
def shell(request, tmp_path_factory, make_video):
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "work").mkdir()
    make_files(folder / "work", FILES)
    make_video(folder / "videos/applause.mp4", num_frames=2)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    cc.build(folder / "index.json", folder / "work/kept", jobs=1)
    shell = Shell(request.param, folder / "work", folder / "home")
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("chordcache bui", ["build"]),
        ("chordcache build --dry", ["build", "--dry-run"]),
        ("chordcache build my", ["build", "my index.json"]),
        ("chordcache build my\\ in", ["build", "my index.json"]),
        ("chordcache build 'my in", ["build", "my index.json"]),
        ("chordcache build größt", ["build", "größte.json"]),
        ("chordcache build it", ["build", "it's.json"]),
        ("chordcache build a", ["build", "a&b;c.json"]),
        ("chordcache verify gr", ["verify", "größe/"]),
        ("chordcache build --tier np", ["build", "--tier", "npz"]),
        ("chordcache build -c multi", ["build", "-c", "multimodal"]),
        ("chordcache build -c vid", ["build", "-c", "vidéo été.yaml"]),
        ("chordcache build -o gr", ["build", "-o", "größe/"]),
        ("chordcache scan --labels lab", ["scan", "--labels", "labels of all.csv"]),
        ("chordcache doctor -c comp", ["doctor", "-c", "compact"]),
        ("chordcache show kept appl", ["show", "kept", video_key("videos", "applause.mp4")]),
        ("cd . && chordcache doct", ["doctor"]),
    ],
)
def test_tab_in_a_real_shell(shell, typed, words):
    # zsh takes the slash at the end of a folder away again when Enter follows
    assert [word.rstrip("/") for word in shell.words(typed)] == [word.rstrip("/") for word in words]
