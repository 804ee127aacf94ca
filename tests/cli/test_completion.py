"""Completion: the answers to the scripts, and the scripts in real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys

import click
import pytest
from click.shell_completion import get_completion_class
from helpers.catalogs import forge, sections_of
from helpers.shell import Shell, make_files

import chordcache as cc
from chordcache.cli import cli, shells  # noqa: F401 # adds the scripts
from chordcache.cli.options import cache_argument
from chordcache.cli.shells import SHELLS
from chordcache.cli.values import KEY
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.catalog_file import keys_beginning_with
from chordcache.storage.layout import video_key

FILES = ("my index.json", "vidéo été.yaml", "größe/", "größte.json", "labels of all.csv", "it's.json", "a&b;c.json")


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """Function that returns the lines that a script gets for the beginning of a line."""
    monkeypatch.chdir(tmp_path)

    def complete(line: str, *, shell: str = "bash", command: click.Command = cli) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        return get_completion_class(shell)(command, {}, "chordcache", "_CHORDCACHE_COMPLETE").complete().split("\n")

    return complete


@pytest.mark.parametrize(
    ("line", "kind", "begin", "words"),
    [
        ("chordcache bui", "none", "", ["build"]),
        ("chordcache in", "none", "", ["index", "info"]),
        ("chordcache build --ti", "none", "", ["--tier"]),
        ("chordcache build ", "file", "", []),
        ("chordcache build my\\ in", "file", "", []),
        ("chordcache build 'my in", "file", "", []),
        ("chordcache build -o ", "dir", "", []),
        ("chordcache build --output=ca", "dir", "--output=", []),
        ("chordcache build --tier ", "none", "", list(TIERS)),
        ("chordcache build --tier=n", "none", "--tier=", ["npz"]),
        ("chordcache build --features ", "none", "", ["frames", "flow", "motion", "mel"]),
        ("chordcache build --features mel,", "none", "", ["mel,frames", "mel,flow", "mel,motion"]),
        ("chordcache build -c flow --features m", "none", "", []),
        ("chordcache build -c nothing --features m", "none", "", ["motion", "mel"]),
        ("chordcache build -c s", "file", "", ["smallest"]),
        ("chordcache build --root videos=/da", "dir", "videos=", []),
        ("chordcache build --root=videos=/da", "dir", "--root=videos=", []),
        ("chordcache scan --labels d", "file", "", ["dir"]),
        ("chordcache scan a b ", "file", "", []),
        ("chordcache verify ", "dir", "", []),
        ("chordcache merge a b", "dir", "", []),
        ("chordcache info ", "file", "", []),
        ("chordcache doctor -c co", "file", "", ["compact"]),
        ("chordcache completion z", "none", "", ["zsh"]),
        ("chordcache nonsense ", "none", "", None),
        ("", "none", "", None),
    ],
)
def test_answers(answer, line, kind, begin, words):
    completions = answer(line)
    assert completions[:2] == [kind, begin]
    if words is not None:
        assert completions[2:] == words


def test_words_have_descriptions_where_the_shell_shows_them(answer):
    assert "build:Decode the videos of an index into a cache." in answer("chordcache ", shell="zsh")
    assert "build\tDecode the videos of an index into a cache." in answer("chordcache ", shell="fish")


# Keys


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


def test_keys_of_a_cache(answer, cache, monkeypatch):
    quoted = str(cache).replace(" ", "\\ ")
    assert [key[:-17] for key in answer(f"chordcache look {quoted} ", command=looking)[2:]] == [
        "apple",
        "apricot",
        "berry",
    ]
    assert [key[:-17] for key in answer(f"chordcache look {quoted} ap", command=looking)[2:]] == ["apple", "apricot"]
    assert answer("chordcache look nowhere a", command=looking)[2:] == []
    monkeypatch.setenv("CHORDCACHE_CACHE", str(cache))
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


@pytest.mark.parametrize("line", ["chordcache ", "chordcache build --tier ", "chordcache look {cache} a"])
def test_completion_loads_nothing_heavy(cache, line):
    """A completion of a key by the type itself, since a user waits for it."""
    code = (
        "import os, sys\n"
        f"os.environ['COMP_LINE'] = {line.format(cache=cache.name)!r}\n"
        "from chordcache.cli import cli, shells\n"
        "shells._Complete(cli, {}, 'chordcache', '').complete()\n"
        "from chordcache.storage.catalog_file import keys_beginning_with\n"
        f"assert keys_beginning_with({str(cache)!r}, 'b')\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "av", "cv2", "h5py", "lmdb", "msgspec", "torch", "tqdm"} & set(loaded)


# Real shells


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
        ("chordcache build --tier=np", ["build", "--tier=npz"]),
        ("chordcache build --features frames,mo", ["build", "--features", "frames,motion"]),
        ("chordcache build -c multi", ["build", "-c", "multimodal"]),
        ("chordcache build -c vid", ["build", "-c", "vidéo été.yaml"]),
        ("chordcache build -o gr", ["build", "-o", "größe/"]),
        ("chordcache build --output=gr", ["build", "--output=größe/"]),
        ("chordcache build --root=videos=gr", ["build", "--root=videos=größe/"]),
        ("chordcache build --root videos=gr", ["build", "--root", "videos=größe/"]),
        ("chordcache scan --labels lab", ["scan", "--labels", "labels of all.csv"]),
        ("chordcache doctor -c comp", ["doctor", "-c", "compact"]),
        ("chordcache show kept appl", ["show", "kept", video_key("videos", "applause.mp4")]),
        ("cd . && chordcache doct", ["doctor"]),
    ],
)
def test_tab_in_a_real_shell(shell, typed, words):
    # zsh takes the slash at the end of a folder away again when Enter follows
    assert [word.rstrip("/") for word in shell.words(typed)] == [word.rstrip("/") for word in words]
