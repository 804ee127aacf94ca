"""One writer at a time: the second one ends with 11 or waits, and a dead writer does not block others."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import processes, small_disks

import chordcache as cc
from chordcache.errors import LockedError
from chordcache.storage.lock import locked, locked_key

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

HOLD = """
import sys
from pathlib import Path
from chordcache.storage.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def work(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Three videos and their index."""
    for number in range(3):
        make_video(tmp_path / f"videos/{number}.mp4", num_frames=6 + number)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    return tmp_path


@pytest.fixture
def holder(work: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of cache/ until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, work / "cache"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_an_error_of_the_body_is_not_a_lock_that_is_held(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="of the body"), locked_key(tmp_path, "key"):
        raise BlockingIOError("of the body")


def is_waiting(run: processes.Run) -> bool:
    return "waiting until it ends" in run.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait(work: Path, holder: subprocess.Popen[str], number: signal.Signals) -> None:
    with processes.running(work, "build", "--wait", "-j1") as run:
        assert processes.wait_until(lambda: is_waiting(run), 60)
        os.kill(run.process.pid, number)
        assert run.wait() == 128 + number
        assert run.survivors() == []
        assert processes.fine(run.stderr)
    assert sorted(path.name for path in (work / "cache").iterdir()) == [".lock"]


def test_a_disk_without_flock_is_reported(work: Path) -> None:
    tracer = shutil.which("strace")
    if tracer is None:
        pytest.skip("no strace")
    done = subprocess.run(
        [tracer, "-f", "-qq", "-o", os.devnull, "-e", "trace=flock", "-e", "inject=flock:error=ENOLCK",
         sys.executable, "-m", "chordcache", "build", "-j1"],
        cwd=work, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(
        r"chordcache build: error: cannot lock '.*/cache': No locks available; "
        r"name a folder on a disk that has flock\n",
        done.stderr,
    )


def test_contents_of_the_lock_file_are_escaped_on_the_terminal(work: Path, holder: subprocess.Popen[str]) -> None:
    (work / "cache/.lock").write_bytes(b"\x1b[31mred\xff\n" + b"x" * 5000)
    with pytest.raises(LockedError, match=r"written by \\x1b\[31mred.{1,10}x") as caught, locked(work / "cache"):
        pass
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


# Room on the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("no right to mount a tmpfs")
    with small_disks.tmpfs(tmp_path / "disk", "8m") as folder:
        yield folder


def test_a_disk_without_room_for_a_video_is_reported_before_one_is_begun(
    work: Path, small_disk: Path, run_cli: Cli
) -> None:
    args = ["build", work / "index.json", "-o", small_disk / "cache", "-j1"]
    (small_disk / "ballast").write_bytes(bytes((7 << 20) + (1 << 19)))
    done = run_cli(*args)
    assert done.returncode == 12
    assert re.fullmatch(
        r"chordcache build: error: no space left for cache '.*/disk/cache' \(0\.[345] of 8\.0 MiB are free\); "
        r"make room and run the same command\n",
        done.stderr,
    )
    assert processes.partials(small_disk / "cache") == []
    (small_disk / "ballast").unlink()
    assert run_cli(*args).returncode == 0
    (small_disk / "ballast").write_bytes(bytes(7 << 20))  # what is complete needs no room
    assert run_cli(*args).stdout.startswith("done 0, up to date 3, quarantined 0 of 3")
