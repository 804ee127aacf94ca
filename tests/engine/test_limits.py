"""Limits of one file: files that hang, use up memory or kill their worker, among good ones. All processes are real."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import av
import av.error
import numpy as np
import pytest
import yaml
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN

import chordcache as cc
from chordcache import progress
from chordcache.engine import pool
from chordcache.engine.limits import BASE_SECONDS, Limits, seconds_for
from chordcache.engine.worker import Crash
from chordcache.errors import UsageError
from chordcache.media.demux import open_media

Cli = Callable[..., subprocess.CompletedProcess[str]]
Maker = Callable[..., Path]

SOON = Limits(stall_seconds=1.0)

AGAIN = ", and build with --retry-quarantined"


def _match_without_end() -> None:
    re.match(r"(a|aa)+$", "a" * 200 + "b")


def _pause_in_native_code() -> None:
    ctypes.CDLL(None).pause()


HANGS: dict[str, Callable[[], Any]] = {
    "native loop with the interpreter held": _match_without_end,
    "native code": _pause_in_native_code,
}


def work(task: int | str) -> Any:
    """A number is doubled, a name hangs."""
    return 2 * task if isinstance(task, int) else HANGS[task]()


def outcomes(function: Callable[[Any], Any], tasks: Any, **options: Any) -> dict[Any, Any]:
    return dict(pool.run(function, tasks, **{"jobs": 2, "limits": SOON, **options}))


@pytest.mark.parametrize("name", HANGS)
def test_a_task_that_hangs_fails_alone(name: str) -> None:
    results = outcomes(work, [*range(6), name, *range(6, 12)])
    crash = results.pop(name)
    assert results == {number: 2 * number for number in range(12)}
    assert (crash.cause, crash.attempts) == ("timeout", 2)
    assert re.fullmatch(
        r"no progress for 1 s, at test_limits\.py:\d+ [\w<>]+; allow more with --stall-timeout" + AGAIN,
        crash.message,
    )


@pytest.mark.slow
def test_many_hanging_files_do_not_count_as_a_broken_environment() -> None:
    tasks = [("hang", number) for number in range(pool.MAX_DEATHS_IN_A_ROW + 1)]
    crashes = outcomes(hang_each, tasks, limits=Limits(stall_seconds=0.3))
    assert {crash.cause for crash in crashes.values()} == {"timeout"}
    assert len(crashes) == len(tasks)


def hang_each(_task: tuple[str, int]) -> None:
    time.sleep(1000)


def _note_attempt(folder: Path) -> int:
    number = len(list(folder.iterdir())) + 1
    (folder / str(number)).touch()
    return number


def test_a_task_that_hangs_once_succeeds_later(tmp_path: Path) -> None:
    assert outcomes(hang_once, [tmp_path]) == {tmp_path: "done"}


def hang_once(folder: Path) -> str:
    if _note_attempt(folder) == 1:
        time.sleep(1000)
    return "done"


def beat_every(step_seconds: float) -> str:
    for _ in range(12):
        time.sleep(step_seconds)
        progress.beat()
    return "done"


def shorten_and_beat(_task: int) -> str:
    """Take most of the default limit away, and make progress for long."""
    per_byte = seconds_for(-(1 << 20), 0, 0) / -(1 << 20)
    progress.expect(-int((BASE_SECONDS - 1) / per_byte))
    return beat_every(0.5)


def test_the_default_limit_ends_a_task_that_makes_progress() -> None:
    crash = outcomes(shorten_and_beat, [0], limits=Limits(stall_seconds=60))[0]
    assert crash.cause == "timeout"
    pattern = r"not done after [\d.]+ s, the limit of a file of its size and length, at test_limits\.py:\d+ \w+; "
    assert re.fullmatch(pattern + "allow more with --file-timeout" + AGAIN, crash.message)


def test_no_limit_of_the_time_of_a_file() -> None:
    limits = Limits(stall_seconds=60, file_seconds=0)
    assert outcomes(shorten_and_beat, [0], limits=limits) == {0: "done"}


def test_a_claim_of_a_header_needs_bytes() -> None:
    """A GIF of 12 kB may claim pictures of 134 megapixels for years."""
    assert seconds_for(12_000, 1e9, 1 << 27) < 3600
    assert seconds_for(12_000, 1e9, 1 << 27) == seconds_for(12_000, 1e12, 1 << 27)
    assert seconds_for(None, 10, 10**6) > 100
    assert seconds_for(10**6, -5, 10**6) == seconds_for(10**6, 0, 0)


def test_a_file_is_allowed_what_its_header_claims(clips: Path) -> None:
    read: list[tuple[int | None, float, int]] = []

    class Alarm(nullcontext[None]):
        def expect(self, *claims: Any) -> None:
            read.append(claims)

        def beat(self) -> None:
            pass

    path = clips / "street" / "bikes.mp4"
    with mock.patch.object(progress, "_alarm", Alarm()), open_media(str(path)) as media:
        media.expect(50)
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        size, seconds = video.width * video.height, float(50 / video.guessed_rate)
        assert read == [(path.stat().st_size, container.duration / 1e6, size), (None, seconds, size)]


def test_no_alarm_is_left_between_tasks() -> None:
    """A worker that waits for its next task is not hanging."""

    def slowly() -> Iterator[int]:
        for number in range(5):
            yield number
            time.sleep(0.4)

    assert outcomes(work, slowly(), jobs=1, limits=Limits(stall_seconds=0.3)) == {n: 2 * n for n in range(5)}


def sleep_paused(seconds: float) -> str:
    with progress.paused():
        time.sleep(seconds)
        progress.beat()
        time.sleep(seconds)
    time.sleep(seconds / 10)
    return "done"


def test_pauses_count_neither_as_a_stall_nor_in_the_total() -> None:
    assert outcomes(sleep_paused, [1.0], limits=Limits(stall_seconds=0.5, file_seconds=1)) == {1.0: "done"}


def hang_after_a_pause(_task: int) -> None:
    with progress.paused():
        pass
    time.sleep(1000)


def test_after_a_pause_the_clock_goes_on() -> None:
    assert outcomes(hang_after_a_pause, [0])[0].cause == "timeout"


def outlive(task: tuple[Path, int]) -> bool:
    """Number 0 dies, the others wait for that and go on."""
    folder, number = task
    (folder / f"{number} {os.getpid()}").touch()
    if number == 0:
        others_began = processes.wait_until(lambda: len(list(folder.glob("[123] *"))) >= 3, 60)
        (folder / "dead").touch()
        os.abort() if others_began else os._exit(9)
    return processes.wait_until((folder / "dead").exists, 60)


def test_what_runs_beside_a_crash_goes_on_and_begins_once(tmp_path: Path) -> None:
    results = dict(pool.run(outlive, [(tmp_path, number) for number in range(4)], jobs=4))
    crash = results.pop((tmp_path, 0))
    assert re.match(r"the worker died: SIGABRT\(-6\)", crash.message)
    assert list(results.values()) == [True] * 3
    assert len(list(tmp_path.glob("[123] *"))) == 3


def allocate(num_bytes: int) -> int:
    return len(np.ones(num_bytes, np.uint8))


@pytest.mark.slow
def test_too_much_memory_fails_the_task_and_keeps_the_worker() -> None:
    limits = Limits(memory_bytes=512 << 20)
    results = outcomes(allocate, [1000, 1 << 30, 2000], limits=limits)
    crash = results.pop(1 << 30)
    assert results == {1000: 1000, 2000: 2000}
    assert crash == Crash(
        "oom",
        "out of memory: Unable to allocate 1.00 GiB for an array with shape (1073741824,) and data type uint8; "
        "allow more with --file-memory, and build with --retry-quarantined",
        attempts=2,
    )
    assert outcomes(allocate, [1 << 30], limits=Limits(memory_bytes=2 << 30)) == {1 << 30: 1 << 30}


def raise_of_libav(_task: int) -> None:
    raise av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory", "x.mp4")


def raise_bare(_task: int) -> None:
    raise MemoryError


@pytest.mark.parametrize(("function", "cause"), [(raise_of_libav, ": Cannot allocate memory"), (raise_bare, "")])
def test_out_of_memory_by_any_name(function: Callable[[int], None], cause: str) -> None:
    message = f"out of memory{cause}; allow more with --file-memory, and build with --retry-quarantined"
    assert outcomes(function, [0]) == {0: Crash("oom", message, attempts=2)}


def return_too_much(num_items: int) -> list[bytes]:
    return [bytes(1 << 20) + number.to_bytes(8, "big") for number in range(num_items)]


def test_a_result_too_large_to_be_sent() -> None:
    crash = outcomes(return_too_much, [200], limits=Limits(memory_bytes=384 << 20))[200]
    assert (crash.cause, crash.attempts) == ("oom", 2)
    assert (
        crash.message
        == "out of memory when its result was sent; allow more with --file-memory, and build with --retry-quarantined"
    )


MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def memory_group(tmp_path: Path) -> Iterator[Path]:
    """A control group for processes that may use 64 MiB together."""
    folder = MEMORY_GROUPS / f"chordcache-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError:
        pytest.skip("no right to make a memory group of version 1")
    yield folder
    assert processes.wait_until(lambda: not (folder / "cgroup.procs").read_text(), 60)
    folder.rmdir()


def allocate_within(folder: Path) -> int:
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    return allocate(1 << 30)


def test_a_worker_that_the_kernel_kills_for_memory_is_out_of_memory(memory_group: Path) -> None:
    crash = outcomes(allocate_within, [memory_group])[memory_group]
    assert (crash.cause, crash.attempts) == ("oom", 2)
    assert "SIGKILL" in crash.message
    assert crash.message.endswith("as the machine ran out of memory; run fewer at once with --jobs")


def fail_twice(task: tuple[Path, int]) -> str:
    folder, _ = task
    return "io" if _note_attempt(folder) < 3 else "done"


@pytest.mark.parametrize(("budget", "result"), [(2, "io"), (3, "done")])
def test_the_caller_chooses_what_is_tried_again(tmp_path: Path, budget: int, result: str) -> None:
    def once_more(task: tuple[Path, int], result: str) -> tuple[Path, int] | None:
        return (task[0], task[1] + 1) if result == "io" and task[1] < budget else None

    assert outcomes(fail_twice, [(tmp_path, 1)], retry=once_more) == {(tmp_path, budget): result}


def test_a_crash_names_the_line() -> None:
    line = read_nothing.__code__.co_firstlineno + 1
    crash = outcomes(read_nothing, [0])[0]
    assert crash.cause == "signal"
    assert re.fullmatch(rf"the worker died: SIGSEGV\(-11\), at test_limits\.py:{line} read_nothing", crash.message)


def read_nothing(_task: int) -> None:
    ctypes.CDLL(None).strlen(None)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"stall_seconds": 0}, r"^stall_seconds: got 0, expected 0.1 to 100,000,000$"),
        ({"stall_seconds": float("nan")}, "^stall_seconds: got nan"),
        ({"file_seconds": float("inf")}, "^file_seconds: got inf"),
        ({"memory_bytes": 1 << 20}, "^memory_bytes: got 1 MiB, expected 256 MiB to 1,099,511,627,776 MiB$"),
        ({"memory_bytes": 1 << 80}, "^memory_bytes: got"),
    ],
)
def test_bounds(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Limits(**limits)


@pytest.mark.parametrize("command", ["scan", "build"])
@pytest.mark.parametrize("options", [["--stall-timeout", "0"], ["--file-timeout", "-1"], ["--file-memory", "1"]])
def test_bounds_on_the_command_line(tmp_path: Path, run_cli: Cli, command: str, options: list[str]) -> None:
    done = run_cli(command, tmp_path, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(rf"error: {options[0]}: got {options[1]}( MiB)?, expected ", done.stderr)
    assert list(tmp_path.iterdir()) == []


def write_config(folder: Path, fault_of_width: dict[str, str]) -> None:
    """Write a config with the faulty extractor alone."""
    mine = {"extractor": PLUG_IN, "fault_of_width": fault_of_width}
    (folder / "mine.yaml").write_text(yaml.dump({"features": {"mine": mine}}))


@pytest.fixture
def slow_video(tmp_path: Path, make_video: Maker) -> Path:
    """A folder with an index of one video of 12 frames, each of which takes 0.3 s."""
    make_video(tmp_path / "videos/slow.mp4", num_frames=12, options={"bf": "3"})
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    write_config(tmp_path, {"64": "slow"})
    return tmp_path


BUILD_MINE = ("build", "index.json", "-o", "cache", "-c", "mine.yaml", "--tier", "npz", "--features", "mine", "-j1")


def test_a_slow_file_that_makes_progress_is_done(slow_video: Path, run_cli: Cli) -> None:
    """Some of its frames come in one go, when the decoder is flushed."""
    done = run_cli(*BUILD_MINE, "--stall-timeout", "1", cwd=slow_video, env=ENVIRONMENT)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_file_timeout_ends_it(slow_video: Path, run_cli: Cli) -> None:
    done = run_cli(*BUILD_MINE, "--file-timeout", "1.5", cwd=slow_video, env=ENVIRONMENT)
    assert (done.stderr, done.returncode) == ("", 3)
    line = processes.quarantine(slow_video / "cache")["slow.mp4"]
    assert line["cause"] == "timeout"
    assert re.fullmatch(
        r"not done after 1\.5 s, at (faulty_extractor\.py:\d+ add_frame|video_decoder\.py:\d+ \w+); "
        r"allow more with --file-timeout" + AGAIN,
        line["message"],
    )


SLOW_FSYNC = """
import os, time
_fsync = os.fsync
def fsync(fd):
    time.sleep(1.2)
    _fsync(fd)
os.fsync = fsync
"""


@pytest.mark.slow
def test_a_slow_disk_of_the_cache_is_not_a_stall(tmp_path: Path, make_video: Maker, run_cli: Cli) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SLOW_FSYNC)
    make_video(tmp_path / "x.mp4")
    (tmp_path / "list.csv").write_text("path\nx.mp4\n")
    env = {"PYTHONPATH": f"{tmp_path}/site:{Path(cc.__file__).parent.parent}"}
    done = run_cli("build", "list.csv", "-o", "cache", "--stall-timeout", "1", cwd=tmp_path, env=env)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_signal_stops_a_build_that_hangs(tmp_path: Path, make_video: Maker) -> None:
    make_video(tmp_path / "videos/x.mp4", num_frames=12)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    (tmp_path / "tmp").mkdir()
    write_config(tmp_path, {"64": "hold the interpreter"})
    env = {**ENVIRONMENT, "TMPDIR": str(tmp_path / "tmp")}
    with processes.running(tmp_path, *BUILD_MINE, env=env) as run:
        assert processes.wait_until(lambda: processes.is_writing(tmp_path / "cache"), 60)
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
        assert run.survivors() == []
    assert processes.fine(run.stderr)
    assert list((tmp_path / "tmp").iterdir()) == []


SWAPPED = """
import os, stat
import av
_open = av.open
def swap_and_open(file, *args, **kwargs):
    name = os.readlink(file)  # of the descriptor, by which a source is opened again
    if os.path.basename(name) == "swapped.mp4" and stat.S_ISREG(os.stat(name).st_mode):
        os.remove(name)
        os.mkfifo(name)
    return _open(file, *args, **kwargs)
av.open = swap_and_open
"""


def test_a_fifo_swapped_in_just_before_the_open(tmp_path: Path, make_video: Maker, run_cli: Cli) -> None:
    """No process waits for it: the scan reads the file that it has opened, whatever has its name now."""
    for name in ("a", "swapped", "z"):
        make_video(tmp_path / f"videos/{name}.mp4", num_frames=5)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SWAPPED)
    env = {"PYTHONPATH": f"{tmp_path}/site:{Path(cc.__file__).parent.parent}"}
    done = run_cli("scan", "videos", "--stall-timeout", "2", cwd=tmp_path, env=env)
    assert (done.stderr, done.returncode) == ("", 0)
    records = {record.path: record for record in cc.read_index(tmp_path / "index.json")}
    assert {path: record.error_cause for path, record in records.items()} == dict.fromkeys(records)
    assert stat.S_ISFIFO((tmp_path / "videos/swapped.mp4").stat().st_mode)
    done = run_cli("build", "index.json", cwd=tmp_path)
    assert done.returncode == 3
    assert "not-regular" in (tmp_path / "cache/quarantine.jsonl").read_text()


@pytest.mark.slow
def test_pictures_too_large_for_the_memory(tmp_path: Path, make_video: Maker, run_cli: Cli) -> None:
    """The decoder of H.264 calls it invalid data."""
    options = {"preset": "ultrafast", "x264-params": "ref=8:bframes=0"}
    make_video(tmp_path / "videos/large.mkv", num_frames=8, size=(7680, 4320), options=options)
    make_video(tmp_path / "videos/small.mkv", num_frames=4)
    done = run_cli("scan", "videos", "--level", "content", "--file-memory", "256", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 3)
    records = {record.path: record for record in cc.read_index(tmp_path / "index.json")}
    assert {path: record.error_cause for path, record in records.items()} == {"large.mkv": "oom", "small.mkv": None}
    assert re.fullmatch(
        r"out of memory: .*; allow more with --file-memory, and build with --retry-quarantined",
        str(records["large.mkv"].error),
    )
    done = run_cli("scan", "videos", "--level", "content", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
