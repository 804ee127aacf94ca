"""Everything that strangers may call a video, through the command line: a clear line, never a traceback or a hang."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import processes
from helpers.ffmpeg import ffmpeg

import chordcache as cc

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]
Maker = Callable[..., Path]

LIBAV_LINE = re.compile(r"^\[[\w,]+ @ 0x[0-9a-f]+\]", re.MULTILINE)
"""Beginning of a message of libav on a terminal."""


def quiet(done: subprocess.CompletedProcess[str]) -> bool:
    """Nothing on the terminal that should not be there."""
    output = done.stdout + done.stderr
    return processes.fine(output) and not LIBAV_LINE.search(output) and "\x1b" not in output


@pytest.fixture
def run_seen(run_cli: Cli, capfd: pytest.CaptureFixture[str]) -> Cli:
    """``run_cli``, whose standard error also has what libraries and worker processes wrote to the terminal."""

    def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        done = run_cli(*args, cwd=cwd)
        done.stderr += "".join(capfd.readouterr())
        return done

    return run


def journey(folder: Path, run_seen: Cli) -> tuple[int, int, int]:
    """Scan, build and verify ``folder/corpus``; exit codes of the three."""
    codes = []
    for args in (["scan", "corpus", "-j1"], ["build", "-j1"], ["verify", "-j1"]):
        done = run_seen(*args, cwd=folder)
        assert quiet(done), done.stdout + done.stderr
        codes.append(done.returncode)
    return codes[0], codes[1], codes[2]


# Files that are not videos: name, how it is made, cause in the quarantine


def _truncated(path: Path, make_video: Maker) -> None:
    make_video(path, num_frames=60)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _audio_only(path: Path, _make_video: Maker) -> None:
    ffmpeg("-f", "lavfi", "-i", "sine=duration=1", "-c:a", "aac", path)


def _no_frames(path: Path, make_video: Maker) -> None:
    """A track whose sample table is empty; the muxer would leave the track out."""
    make_video(path, num_frames=3, audio=True)
    data = bytearray(path.read_bytes())
    for box in (b"stsz", b"stts", b"stsc", b"stco"):  # of the first track, the video's
        count = data.index(box) + (12 if box == b"stsz" else 8)
        data[count : count + 4] = bytes(4)
    path.write_bytes(data)


def _bitflips(path: Path, make_video: Maker) -> None:
    make_video(path, num_frames=60, size=(160, 120), codec="mpeg4")
    data = bytearray(path.read_bytes())
    start = data.find(b"mdat")
    for offset in range(start + 300, start + 3000, 37):
        data[offset] ^= 0x5A
    path.write_bytes(data)


REFUSED = {"refused-format", "decode"}

BROKEN: dict[str, tuple[Callable[[Path, Maker], None], set[str]]] = {
    "zero.mp4": (lambda path, _: path.touch(), {"decode"}),
    "one_byte.mp4": (lambda path, _: path.write_bytes(b"x"), {"decode"}) ,
    "truncated.mp4": (_truncated, {"decode"}),
    "truncated.mkv": (_truncated, {"truncated", "short", "decode"}),
    "truncated.avi": (_truncated, {"truncated", "short", "decode"}),
    "random.mp4": (lambda path, _: path.write_bytes(os.urandom(5000)), REFUSED),
    "random.mkv": (lambda path, _: path.write_bytes(os.urandom(50_000)), REFUSED),
    "text.mp4": (lambda path, _: path.write_text("This is a list of words.\n" * 50), REFUSED),
    "html.mp4": (lambda path, _: path.write_text("<!DOCTYPE html><html>404 not found</html>"), REFUSED),
    "audio.mp4": (_audio_only, {"no-video"}),
    "empty_track.mp4": (_no_frames, {"no-video", "no-frames", "decode"}),
    "flips.mp4": (_bitflips, {"decode"}),
    "fifo.mp4": (lambda path, _: os.mkfifo(path), {"not-regular"}),
    "dangling.mp4": (lambda path, _: path.symlink_to("nowhere"), {"io"}),
    "loop.mp4": (lambda path, _: path.symlink_to("loop.mp4"), {"io"}),
    "subtitle.mp4": (lambda path, _: path.write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n"), REFUSED),
}  # fmt: skip


def check_broken(folder: Path, broken: dict[str, set[str]]) -> None:
    """Check that each broken file is in quarantine with its cause, and that the good one alone is cached."""
    assert set(processes.contents(folder / "cache")) == {"good.mp4"}
    lines = processes.quarantine(folder / "cache")
    assert lines.keys() == broken.keys()
    assert {name: line["cause"] for name, line in lines.items() if line["cause"] not in broken[name]} == {}
    assert all(line["message"] and line["stage"] for line in lines.values())


def test_all_broken_inputs_in_one_corpus(tmp_path: Path, run_process: Cli, make_video: Maker) -> None:
    make_video(tmp_path / "corpus/good.mp4", num_frames=4)
    for name, (make, _) in BROKEN.items():
        make(tmp_path / "corpus" / name, make_video)
    (tmp_path / "corpus/dir.mp4").mkdir()
    for args in (["scan", "corpus", "-j2"], ["build", "-j2"]):
        done = run_process(*args, cwd=tmp_path)
        assert done.returncode == 3
        assert quiet(done), done.stdout + done.stderr
    records = {record.path: record.error for record in cc.read_index(tmp_path / "index.json")}
    assert [name for name, error in records.items() if error is None] == ["flips.mp4", "good.mp4"]  # as packets say
    check_broken(tmp_path, {name: causes for name, (_, causes) in BROKEN.items()})
    done = run_process("verify", "--deep", "--source", "-j2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_all_broken_inputs_without_a_scan(tmp_path: Path, run_seen: Cli, make_video: Maker) -> None:
    make_video(tmp_path / "good.mp4", num_frames=4)
    for name, (make, _) in BROKEN.items():
        make(tmp_path / name, make_video)
    (tmp_path / "dir.mp4").mkdir()
    broken = {**{name: causes for name, (_, causes) in BROKEN.items()}, "dir.mp4": {"not-regular"}}
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"{name}\n" for name in (*broken, "good.mp4")))
    done = run_seen("build", "list.csv", "-j1", cwd=tmp_path)
    assert done.returncode == 3
    assert quiet(done), done.stderr
    check_broken(tmp_path, broken)
    assert run_seen("verify", "-j1", cwd=tmp_path).returncode == 0


# Who may not read, who may not write


def _give_up_privileges() -> None:
    """Let the rights of files hold for root too: without these capabilities it is an owner like any other."""
    cap_dac_override, cap_dac_read_search, pr_capbset_drop = 1, 2, 24
    for capability in (cap_dac_override, cap_dac_read_search):
        if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(pr_capbset_drop, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def without_rights(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command line, bound by the rights of files."""
    return subprocess.run(
        [sys.executable, "-m", "chordcache", *args],
        cwd=folder, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        preexec_fn=_give_up_privileges,
    )  # fmt: skip


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that pytest can remove, whatever the test took away."""
    yield tmp_path
    subprocess.run(["chmod", "-R", "u+rwX", tmp_path], check=True)


def test_an_unreadable_file_and_folder(open_folder: Path, make_video: Maker) -> None:
    make_video(open_folder / "corpus/good.mp4", num_frames=4)
    make_video(open_folder / "corpus/secret.mp4", num_frames=4).chmod(0)
    make_video(open_folder / "corpus/vault/x.mp4", num_frames=4)
    (open_folder / "corpus/vault").chmod(0)
    for args, code in ((["scan", "corpus", "-j1"], 3), (["build", "-j1"], 3), (["verify", "-j1"], 0)):
        done = without_rights(open_folder, *args)
        assert done.returncode == code, done.stdout + done.stderr
        assert quiet(done), done.stderr
    line = processes.quarantine(open_folder / "cache")["secret.mp4"]
    assert (line["cause"], line["message"]) == ("io", "Permission denied")
    assert set(processes.quarantine(open_folder / "cache")) == {"secret.mp4", "vault"}
    assert set(processes.contents(open_folder / "cache")) == {"good.mp4"}


@pytest.mark.parametrize("state", ["new", "built"])
def test_a_cache_folder_that_cannot_be_written(open_folder: Path, make_video: Maker, state: str) -> None:
    make_video(open_folder / "corpus/good.mp4", num_frames=4)
    index = cc.scan([open_folder / "corpus"], output=open_folder / "index.json", jobs=1)
    if state == "built":
        cc.build(index, open_folder / "cache", jobs=1)
        make_video(open_folder / "corpus/more.mp4", num_frames=4)
        cc.scan([open_folder / "corpus"], output=open_folder / "index.json", jobs=1)
    else:
        (open_folder / "cache").mkdir()
    subprocess.run(["chmod", "-R", "a-w,a+rX", open_folder / "cache", open_folder / "index.json"], check=True)
    done = without_rights(open_folder, "build", "-j1")
    assert quiet(done), done.stderr
    assert done.returncode in (2, 12), done.stderr
    assert "cache" in done.stderr
    if state == "built":  # and a user who may only read can read
        for args in (["verify", "-j1", "--deep"], ["info"]):
            done = without_rights(open_folder, *args)
            stderr = processes.without_progress(done.stderr)
            assert (done.returncode in (0, 6), stderr) == (True, ""), done.stdout + done.stderr


def test_a_parent_folder_that_cannot_be_written(open_folder: Path, make_video: Maker) -> None:
    make_video(open_folder / "corpus/good.mp4", num_frames=4)
    cc.scan([open_folder / "corpus"], output=open_folder / "index.json", jobs=1)
    (open_folder / "index.json").chmod(0o644)
    (open_folder / "locked").mkdir(mode=0o555)
    done = without_rights(open_folder, "build", "-j1", "-o", "locked/cache")
    assert done.returncode == 2, done.stderr
    assert quiet(done)


# Arguments


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory, make_video: Maker) -> Path:
    """videos/ and index.json. Do not write into it."""
    folder = tmp_path_factory.mktemp("scanned")
    make_video(folder / "videos/a.mp4", num_frames=4)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder


@pytest.fixture
def one(scanned: Path, tmp_path: Path) -> Path:
    """videos/, and an index.json of the same videos elsewhere."""
    return shutil.copytree(scanned, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["scan", "no-such-folder"], 10, ["no-such-folder"]),
        (["scan", "videos", "no-such-folder"], 10, ["no-such-folder"]),
        (["scan", "no\x1b[31m-such"], 10, [r"no\x1b[31m-such"]),
        (["build", "no-such.json"], 10, ["no-such.json"]),
        (["build", "no-such-index.csv"], 10, ["no-such-index.csv"]),
        (["build", "-c", "no-such.yaml"], 10, ["no-such.yaml"]),
        (["build", "-c", "unknown.yaml"], 2, ["qualty", "quality", "short_side", "fps", "codec"]),
        (["build", "-c", "section.yaml"], 2, ["flows", "frames"]),
        (["build", "-c", "list.yaml"], 2, ["list.yaml"]),
        (["build", "-c", "broken.yaml"], 2, ["broken.yaml"]),
        (["build", "-c", "binary.yaml"], 2, ["binary.yaml"]),
        (["build", "--tier", "tape"], 2, ["tape", "lmdb"]),
        (["build", "--features", "flow", "--tier", "lmdb"], 2, ["flow", "lmdb"]),
        (["build", "-o", "full"], 2, ["full", "thesis.tex"]),
        (["build", "-o", "file"], 2, ["file"]),
        (["build", "-o", "file/cache"], 2, ["file"]),
        (["build", "-o", "/dev/null"], 2, ["/dev/null"]),
        (["build", "-o", "n" * 300], 2, ["nnn"]),
        (["build", "-o", "a\0b"], 2, []),
        (["build", "-j", "0"], 2, ["-j"]),
        (["build", "-j", "many"], 2, ["many"]),
        (["build", "--root", "x"], 2, ["NAME=PATH"]),
        (["verify", "no-such-cache"], 10, ["no-such-cache"]),
        (["verify", "file"], 10, ["file"]),
        (["scan", "videos", "-o", "index.xml"], 2, [".json", ".csv"]),
        (["scan", "videos", "-o", "full"], 2, ["full"]),
        (["scan", "a=videos", "a=full"], 2, ["a"]),
        (["scan", "videos", "--labels", "no-such.csv"], 10, ["no-such.csv"]),
        (["scan"], 2, []),
        (["fly"], 2, ["fly"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)  # fmt: skip
def test_a_wrong_argument(one: Path, run_seen: Cli, args: Sequence[str], code: int, words: Sequence[str]) -> None:
    (one / "full").mkdir()
    (one / "full/thesis.tex").touch()
    (one / "file").touch()
    (one / "unknown.yaml").write_text("frames: {qualty: 3}")
    (one / "section.yaml").write_text("flows: {}")
    (one / "list.yaml").write_text("- 1\n- 2\n")
    (one / "broken.yaml").write_text("frames: {quality: [")
    (one / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    if any("\0" in arg for arg in args):
        done = subprocess.run(  # no command line can hold NUL; a script's arguments can
            [sys.executable, "-c", f"from chordcache.cli import cli; cli({[*args]!r}, prog_name='chordcache')"],
            cwd=one, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    else:
        done = run_seen(*args, cwd=one)
    assert done.returncode == code, done.stdout + done.stderr
    assert quiet(done), done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not (one / "cache").exists()
    assert os.listdir(one / "full") == ["thesis.tex"]


def test_a_file_whose_name_begins_with_a_dash(tmp_path: Path, run_seen: Cli, make_video: Maker) -> None:
    make_video(tmp_path / "-x.mp4", num_frames=4)
    done = run_seen("scan", "--", "-x.mp4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run_seen("build", "-j1", cwd=tmp_path).returncode == 0
    assert set(processes.contents(tmp_path / "cache")) == {"-x.mp4"}


@pytest.mark.slow
def test_modules_among_the_videos_are_not_imported(tmp_path: Path, make_video: Maker) -> None:
    make_video(tmp_path / "a.mp4", num_frames=3)
    for name in ("joblib", "numpy", "pickle", "random", "select", "signal", "tempfile", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n")
    # Not python -m, which looks into the working folder itself
    script = Path(sys.executable).with_name("chordcache")
    for command in ("scan .", "build -j2", "verify --deep --source -j2"):
        done = subprocess.run([script, *command.split()], cwd=tmp_path, capture_output=True, text=True)
        assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_the_cache_inside_the_corpus_is_not_an_input(tmp_path: Path, run_seen: Cli, make_video: Maker) -> None:
    make_video(tmp_path / "a.mp4", num_frames=4)
    for _ in range(2):
        assert run_seen("scan", "corpus=.", "-j1", cwd=tmp_path).returncode == 0
        assert run_seen("build", "-j1", cwd=tmp_path).returncode == 0
    assert len(cc.open_cache(tmp_path / "cache")) == 1


def test_a_row_of_the_longest_texts_is_read_again_and_a_longer_one_refused(tmp_path: Path, make_video: Maker) -> None:
    """The sidecar repeats the texts of the index. A reader takes neither if it is too large."""
    make_video(tmp_path / "a.mp4", num_frames=2)
    for num_columns in (14, 17):
        columns = {f"c{number}": "z" * (1 << 20) for number in range(num_columns)}
        (tmp_path / f"{num_columns}.csv").write_text(f"path,{','.join(columns)}\na.mp4,{','.join(columns.values())}\n")
    frames: dict[str, Any] = {"features": ["frames"], "jobs": 1}
    assert cc.build(tmp_path / "14.csv", tmp_path / "cache", **frames).num_done == 1
    for _ in range(2):
        with pytest.raises(
            cc.UsageError, match="'a.mp4': got .* bytes of texts and facts, expected at most 15,728,640"
        ):
            cc.build(tmp_path / "17.csv", tmp_path / "cache", **frames)
        assert cc.verify(tmp_path / "cache", jobs=1).damage == []
    with cc.open_cache(tmp_path / "cache") as cache:
        assert len(cache[0].extra["c13"]) == 1 << 20


def test_a_picture_that_no_reader_takes_is_not_published(tmp_path: Path, make_video: Maker, run_seen: Cli) -> None:
    """A sidecar's sides have a bound."""
    ffmpeg("-f", "lavfi", "-i", "color=s=16x16400:d=0.08:r=25", "-c:v", "ffv1", tmp_path / "tall.mkv")
    make_video(tmp_path / "corpus/sound.mp4", num_frames=4)
    shutil.move(tmp_path / "tall.mkv", tmp_path / "corpus/tall.mkv")
    assert journey(tmp_path, run_seen) == (0, 3, 0)
    assert processes.quarantine(tmp_path / "cache")["tall.mkv"]["cause"] == "refused-size"
