"""The output of scan, build, verify and gc: through pipes, on a terminal, into a full file, and as JSON."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from conftest import invoke_chordcache, write_video
from helpers.commands import COMMANDS

import chordcache as cc
from chordcache.cli import cli

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

NUM_BROKEN = 7


@pytest.fixture(scope="session")
def run_cli() -> Cli:
    """The command line, with all that it prints. Its standard error is not a terminal."""
    return functools.partial(invoke_chordcache, with_progress=True)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """videos/ with two videos and seven files that are none."""
    folder = tmp_path_factory.mktemp("output")
    for name in ("a", "b"):
        write_video(folder / f"videos/{name}.mp4", num_frames=25, fps=25)
    for number in range(NUM_BROKEN):
        (folder / f"videos/broken{number}.mp4").write_text("not a video")
    return folder


@pytest.fixture
def work(videos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(videos, tmp_path / "work"))


@pytest.fixture
def scanned(work: Path) -> Path:
    cc.scan([work / "videos"], output=work / "index.json", jobs=1)
    return work


@pytest.fixture
def built(scanned: Path) -> Path:
    cc.build(scanned / "index.json", scanned / "cache", jobs=1)
    return scanned


def test_scan_and_build_through_pipes(work: Path, run_cli: Cli) -> None:
    for command, see in (("scan", "index.json"), ("build", "'chordcache info cache --problems'")):
        done = run_cli(*((command, "videos") if command == "scan" else (command, "-j", "1")), cwd=work)
        assert done.returncode == 3
        assert done.stdout.count("\n") == 1
        first, last, *failures, more = done.stderr.splitlines()
        assert first.startswith(f"chordcache {command}: 0")
        assert re.match(rf"chordcache {command}: 9 of 9 videos, 2.0 (of 2.0 )?s, .*7 failed, done in ", last)
        assert [line.partition(": ")[0] for line in failures] == [f"  videos/broken{n}.mp4" for n in range(5)]
        assert all(line.split(": ")[1] == "decode" for line in failures)
        assert more == f"  ... and 2 more; see {see}"
    assert re.search(r", [\d,]+ frames/s, [\d.]+ kB, 7 failed, done", last)


def test_verify_and_repair_through_pipes(built: Path, run_cli: Cli) -> None:
    next((built / "cache/lmdb").rglob("a-*.lmdb")).write_bytes(b"damaged")
    done = run_cli("verify", "-j", "1", "--repair", "-v", cwd=built)
    assert (done.returncode, done.stdout) == (0, "intact: 2 videos, all checksums match\n")
    starts = [line for line in done.stderr.splitlines() if re.match(r"chordcache (verify|repair): 0 of", line)]
    assert [line.split()[1] for line in starts] == ["verify:", "repair:", "verify:"]
    assert "2 of 2 videos, 1 damaged, done in" in done.stderr
    assert re.search(r"^  lmdb/.*/a-.*: damaged: ", done.stderr, re.MULTILINE)


def test_quiet_leaves_failures_and_json(scanned: Path, run_cli: Cli) -> None:
    done = run_cli("build", "-q", cwd=scanned)
    assert (done.returncode, done.stdout) == (3, "")
    assert [line[:15] for line in done.stderr.splitlines()] == ["  videos/broken"] * 5 + ["  ... and 2 mor"]
    assert json.loads(run_cli("build", "-q", "--json", cwd=scanned).stdout)["num_failed"] == NUM_BROKEN
    done = run_cli("verify", "--quick", "-q", cwd=scanned)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run_cli("verify", "nowhere", "-q", cwd=scanned)
    assert (done.returncode, done.stderr.count("error")) == (10, 1)


def test_quiet_and_verbose_exclude_each_other(scanned: Path, run_cli: Cli) -> None:
    done = run_cli("build", "-q", "-v", cwd=scanned)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--quiet: got --verbose too" in done.stderr


def test_json_is_one_object_with_names_of_one_kind(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(built)
    lines = (
        *("scan videos", "build", "build --dry-run", "verify", "verify --quick --part 1/2", "gc"),
        *("pack cache -o packed", "unpack packed -o unpacked"),
        *("ls", "info", "info index.json", "info cache a", "info --problems", "doctor", "doctor -c flow"),
        *("show a -o a.png", "report"),
    )
    for line in lines:
        done = CliRunner().invoke(cli, [*line.split(), "--json"])
        assert done.stdout, (line, done.stderr)
        data = json.loads(done.stdout)
        command = [word for word in line.split()[:2] if word in COMMANDS]
        assert list(data.items())[:2] == [("command", " ".join(command)), ("version", cc.__version__)], line
        counts = {name for name, value in data.items() if type(value) is int and not name.startswith("num_")}
        assert counts <= {"format_version", "width", "height", "display_width", "display_height"}, line
        numbers = {name for name, value in data.items() if type(value) is float}
        assert all(name.endswith(("_seconds", "_share")) for name in numbers), (line, numbers)


def on_terminal(work: Path, *args: str, columns: int = 120) -> tuple[int, str]:
    """Run the command with standard error on a terminal of its own, and return the exit code and what came there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "chordcache", *args], cwd=work, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        data = b""
        while chunk := _read(ours):
            data += chunk
        code = process.wait()
    os.close(ours)
    return code, data.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux: the other side is closed
        return b""


def test_a_terminal_shows_a_bar(work: Path) -> None:
    for command in (("scan", "videos"), ("build", "-j", "1"), ("verify", "--quick")):
        code, text = on_terminal(work, *command)
        assert code == (0 if command[0] == "verify" else 3)
        total = 2 if command[0] == "verify" else 9
        assert f"{total}/{total} [" in text
        assert "\r" in text
        assert "chordcache build: 0 of" not in text
        assert ("... and 2 more" in text) == (command[0] != "verify")
        if command[0] == "build":
            assert " frames/s" in text


def test_a_terminal_that_states_no_width_shows_a_bar(work: Path) -> None:
    code, text = on_terminal(work, "scan", "videos", columns=0)
    assert code == 3
    assert "9/9 [" in text


def test_colors_are_for_terminals(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    red, bold = "\x1b[31m\x1b[1m", "\x1b[1m"
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert red in on_terminal(work, "ls", "nowhere")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_terminal(work, "ls", "nowhere")[1]
    monkeypatch.delenv("NO_COLOR")
    for command, heading in (
        (["build", "--help"], "Output"),
        (["help", "build"], "Output"),
        (["--help"], "Make a cache"),
    ):
        assert f"{bold}{heading}" in CliRunner(env={"FORCE_COLOR": "1"}).invoke(cli, command).stdout
        assert "\x1b" not in CliRunner().invoke(cli, command).stdout


def test_a_text_of_a_file_has_no_colors_of_its_own(work: Path) -> None:
    done = CliRunner(env={"FORCE_COLOR": "1"}).invoke(cli, ["info", str(work / "\x1b[2J")])
    assert "\\x1b[2J" in done.stderr
    assert "\x1b[2J" not in done.stderr


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        (("--help",), ""),
        (("--help",), "1"),
        (("build", "--json"), ""),
        (("build", "--json"), "1"),
    ],
)
def test_a_full_standard_output(built: Path, command: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "chordcache", *command],
            cwd=built,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert done.returncode == 12, done.stderr
    assert "cannot write to standard output: no space left on device" in done.stderr
    assert "a bug" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def without_reader(command: Sequence[str], folder: Path, stream: str, unbuffered: str = "") -> tuple[int, str]:
    """Return the exit code of a command one of whose outputs is a pipe without a reader, and the other output."""
    read, write = os.pipe()
    os.close(read)
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    done = subprocess.run(
        [sys.executable, "-m", "chordcache", *command],
        cwd=folder,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
        **outputs,
    )
    os.close(write)
    return done.returncode, done.stdout or done.stderr or ""


@pytest.mark.parametrize(
    ("command", "stream", "unbuffered"),
    [
        (("--help",), "stdout", ""),
        (("scan", "videos"), "stdout", ""),
        (("build", "--json"), "stdout", ""),
        (("ls",), "stdout", "1"),
        (("ls", "none"), "stderr", ""),
        (("bild",), "stderr", "1"),
    ],
)
def test_a_pipe_without_a_reader_ends_with_141(
    built: Path, command: tuple[str, ...], stream: str, unbuffered: str
) -> None:
    code, errors = without_reader(command, built, stream, unbuffered)
    assert code == 141, errors
    assert not re.search("Traceback|Exception ignored|error:", errors)


# gc


def test_gc_as_json(built: Path, run_cli: Cli) -> None:
    (built / "index.json").write_text((built / "index.json").read_text())
    (built / "c.yaml").write_text(yaml.dump({"frames": {"quality": 50}}))
    cc.build(built / "index.json", built / "cache", config=built / "c.yaml", jobs=1)
    dry = json.loads(run_cli("gc", "--json", "--dry-run", cwd=built).stdout)
    assert (len(dry["files"]), dry["num_removed"]) == (2, 0)
    assert json.loads(run_cli("gc", "--json", cwd=built).stdout) == {**dry, "num_removed": 2}
    assert not any((built / "cache" / file).exists() for file in dry["files"])
    assert run_cli("gc", cwd=built).stdout == "nothing to remove\n"


def reasons(work: Path, **arguments: Any) -> dict[str, int]:
    return dict(cc.dry_run(work / "index.json", work / "cache", sample=0, **arguments).reasons)


def test_dry_run_says_what_is_stale(built: Path) -> None:
    assert reasons(built) == {}
    changed = {"frames": {"quality": 50, "short_side": 32}}
    (built / "c.yaml").write_text(yaml.dump(changed))
    detail = "frames.picture.short_side: 256 -> 32, frames.quality: 90 -> 50"
    assert reasons(built, config=built / "c.yaml") == {f"settings changed ({detail})": 2}
    assert reasons(built, tiers=("npz",), features=("flow",)) == {"not requested before (flow in npz)": 2}
    write_video(built / "videos/a.mp4", num_frames=30)
    next((built / "cache/lmdb").rglob("b-*.lmdb")).unlink()
    assert reasons(built) == {"source changed": 1, "file lost (frames in lmdb)": 1}
    options = cc.BuildOptions(retry_quarantined=True)
    assert reasons(built, options=options)["failed before (decode)"] == NUM_BROKEN


def test_dry_run_with_labels(built: Path) -> None:
    (built / "labels.csv").write_text("path,label,caption\na.mp4,cat,\n")
    cc.scan([built / "videos"], output=built / "index.json", labels=str(built / "labels.csv"), jobs=1)
    preview = cc.dry_run(built / "index.json", built / "cache")
    assert preview.reasons == {"label or caption": 1}
    assert (preview.num_missing, preview.num_up_to_date) == (0, 2)
