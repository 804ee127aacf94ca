"""The record of the writer keeps out processes that the lock of the disk does not reach."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import processes

import chordcache as cc
from chordcache.digests import hex64
from chordcache.errors import LockedError
from chordcache.index.grouping import IndexRows
from chordcache.storage import atomic
from chordcache.storage import owner as owner_module
from chordcache.storage.lock import locked, locked_for_reading
from chordcache.storage.owner import OWNER_FILE, owned

pytestmark = pytest.mark.timeout(120)

HOLD = """
import sys
from pathlib import Path
from chordcache.storage.owner import owned
with owned(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns cache/ without its flock, as one on another machine, until its standard input ends."""
    (tmp_path / "cache").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "cache"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def make_foreign(cache: Path) -> None:
    """Let a record look as if its process ran on another machine."""
    path = cache / OWNER_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another", "host": "another"}))


def test_a_process_that_counts_is_the_owner(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(LockedError, match=f"written by process {holder.pid} on"), locked(tmp_path / "cache"):
        pass
    with (
        pytest.raises(LockedError, match=f"written by process {holder.pid} on"),
        locked_for_reading(tmp_path / "cache"),
    ):
        pass
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait()
    assert not (tmp_path / "cache" / OWNER_FILE).exists()
    with locked(tmp_path / "cache"):
        pass


def test_the_record_of_a_killed_process_of_this_machine_does_not_block(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder.kill()
    holder.wait()
    assert (tmp_path / "cache" / OWNER_FILE).exists()
    monkeypatch.setattr(owner_module.time, "sleep", pytest.fail)
    with locked_for_reading(tmp_path / "cache"):
        pass
    with locked(tmp_path / "cache") as has_waited:
        assert not has_waited
    assert not (tmp_path / "cache" / OWNER_FILE).exists()


def test_a_process_with_the_same_number_is_another_one(tmp_path: Path) -> None:
    mine = owner_module._this_process()
    (tmp_path / OWNER_FILE).write_bytes(owner_module._text(mine.replace(started=mine.started - 1), 7))
    with owned(tmp_path):
        assert json.loads((tmp_path / OWNER_FILE).read_text())["started"] == mine.started


@pytest.mark.slow
@pytest.mark.parametrize("content", ["of another machine", "empty", "not JSON"])
def test_a_record_that_does_not_count_is_removed(
    tmp_path: Path, holder: subprocess.Popen[str], content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "_FAR_PATIENCE_SECONDS", 3.0)
    holder.kill()
    holder.wait()
    if content == "of another machine":
        make_foreign(tmp_path / "cache")
    else:
        (tmp_path / "cache" / OWNER_FILE).write_text({"empty": "", "not JSON": "{" * 100_000}[content])
    with locked(tmp_path / "cache") as has_waited:
        assert not has_waited
    assert os.listdir(tmp_path / "cache/.partial") == []


def test_wait_takes_the_cache_when_the_owner_ends(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    said: list[str] = []

    def end(line: str) -> None:
        said.append(line)
        assert holder.stdin is not None
        holder.stdin.close()

    with locked(tmp_path / "cache", end) as has_waited:
        assert has_waited
    assert len(said) == 1
    assert f"process {holder.pid} on" in said[0]


def test_the_record_counts_and_a_new_owner_stops_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_BEAT_SECONDS", 0.01)
    path = tmp_path / OWNER_FILE
    with owned(tmp_path):
        first = path.read_bytes()
        assert processes.wait_until(lambda: path.read_bytes() != first, 30)
        other = owner_module._text(owner_module._this_process(), 5)
        path.unlink()
        path.write_bytes(other)
        time.sleep(0.1)
        assert path.read_bytes() == other
    assert path.read_bytes() == other


def test_a_full_disk_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module.os, "write", lambda fd, text: os.pwrite(os.open("/dev/full", os.O_RDWR), text, 0))
    with pytest.raises(cc.NoSpaceError), owned(tmp_path):
        pass
    assert not (tmp_path / OWNER_FILE).exists()


def test_a_run_that_lost_the_cache_publishes_nothing(
    tmp_path: Path, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped for long, while another one took the cache."""
    monkeypatch.setattr(owner_module, "_BEAT_SECONDS", 0.1)
    make_video(tmp_path / "videos/a.mp4", num_frames=4)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    read_rows = IndexRows.by_file

    def taken_over(rows: IndexRows) -> Iterator[Any]:
        other = owner_module._this_process()
        (tmp_path / "cache" / OWNER_FILE).write_bytes(owner_module._text(other.replace(host="other"), 5))
        return read_rows(rows)

    monkeypatch.setattr(IndexRows, "by_file", taken_over)
    with pytest.raises(LockedError, match=r"was taken over: process \d+ on other since .* writes to it now"):
        cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=1)
    assert processes.sidecars(tmp_path / "cache") == {}
    assert not (tmp_path / "cache/catalog.sqlite").exists()


def test_a_run_that_lost_the_cache_leaves_the_files_of_the_next_one(
    tmp_path: Path, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back to a disk that is full now, and ends."""
    make_video(tmp_path / "videos/a.mp4", num_frames=4)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    read_rows, partial = IndexRows.by_file, tmp_path / "cache/.partial/of the other"

    def taken_over(rows: IndexRows) -> Iterator[Any]:
        other = owner_module._this_process()
        (tmp_path / "cache" / OWNER_FILE).write_bytes(owner_module._text(other.replace(host="other"), 5))
        partial.mkdir(parents=True)
        monkeypatch.setattr(atomic, "MIN_FREE_BYTES", 1 << 60)
        return read_rows(rows)

    monkeypatch.setattr(IndexRows, "by_file", taken_over)
    with pytest.raises(cc.NoSpaceError):
        cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=1)
    assert partial.exists()


def test_the_count_goes_on_after_a_failed_read_and_a_removed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "_BEAT_SECONDS", 0.01)
    read, failed = owner_module._read, []

    def read_later(path: Path) -> bytes | None:
        if len(failed) < 3:
            failed.append(path)
            raise OSError(errno.ESTALE, "stale file handle")
        return read(path)

    path = tmp_path / OWNER_FILE
    with owned(tmp_path):
        first = path.read_bytes()
        monkeypatch.setattr(owner_module, "_read", read_later)
        assert processes.wait_until(lambda: len(failed) == 3 and path.read_bytes() != first, 30)
        path.unlink()
        assert processes.wait_until(path.exists, 30)
    assert not path.exists()


def test_a_fork_leaves_the_record_to_its_parent(tmp_path: Path) -> None:
    try:
        with owned(tmp_path):
            if (child := os.fork()) == 0:
                raise SystemExit
            os.waitpid(child, 0)
            assert (tmp_path / OWNER_FILE).exists()
    except SystemExit:
        os._exit(0)


def test_two_that_find_a_dead_record_do_not_remove_the_next_one(tmp_path: Path) -> None:
    dead = owner_module._text(owner_module._this_process().replace(pid=2**22 + 1), 3)
    path = tmp_path / OWNER_FILE
    path.write_bytes(dead)
    owner_module._remove(tmp_path, dead)
    with owned(tmp_path):
        mine = path.read_bytes()
        owner_module._remove(tmp_path, dead)  # the second one is late
        assert path.read_bytes() == mine
    assert os.listdir(tmp_path / ".partial") == []


def test_a_claim_is_watched_and_its_times_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine, whose clock is two days late, is about to remove a dead record. Or it was killed there."""
    dead = owner_module._text(owner_module._this_process().replace(pid=2**22 + 1), 3)
    (tmp_path / OWNER_FILE).write_bytes(dead)
    claim = tmp_path / ".partial" / f"owner-{hex64(dead)}"
    claim.mkdir(parents=True)
    os.utime(claim, (0, 0))
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(owner_module._remove, tmp_path, dead)
        with pytest.raises(TimeoutError):
            waiting.result(1)
        assert claim.exists()
        claim.rmdir()
        waiting.result(30)
    claim.mkdir()
    monkeypatch.setattr(owner_module, "_FAR_PATIENCE_SECONDS", 0.5)
    owner_module._remove(tmp_path, dead)
    assert not claim.exists()
    assert (tmp_path / OWNER_FILE).read_bytes() == dead
