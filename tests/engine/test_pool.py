"""The engine on its own: order, laziness, tasks that kill, signals. Real processes throughout."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import processes

from chordcache.engine import pool
from chordcache.engine.choice import Engine
from chordcache.engine.signals import stop_signals
from chordcache.errors import ChordcacheError, DamageError, MediaError, StoppedError, cannot_write


def children() -> set[int]:
    """Living children of this process."""
    pids = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for pid in map(int, path.read_text().split()):
                if processes.command_of(pid):
                    pids.add(pid)
    return pids


@pytest.fixture(autouse=True)
def _leaves_no_child() -> Iterator[None]:
    before = children()
    yield
    assert processes.wait_until(lambda: children() <= before, 60), [
        processes.command_of(pid) for pid in children() - before
    ]


def double(number: int) -> int:
    return 2 * number


def slow_first(number: int) -> int:
    time.sleep(0.5 if number == 0 else 0)
    return number


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("no way out")
        self.lock = threading.Lock()


class NeedsTwo(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} {b}")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def fail(error: BaseException) -> Any:
    raise error


def segfault() -> Any:
    ctypes.string_at(0)


FAILING_TASKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "SIGSEGV": ("signal", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "SIGKILL": ("signal", lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "null pointer": ("signal", segfault),
    "abort": ("signal", os.abort),
    "_exit(0)": ("signal", lambda: os._exit(0)),
    "_exit(3)": ("signal", lambda: os._exit(3)),
    "MemoryError": ("oom", lambda: fail(MemoryError())),
    "ValueError": ("bug", lambda: fail(ValueError("wrong"))),
    "unpicklable exception": ("bug", lambda: fail(Unpicklable())),
    "exception of two arguments": ("bug", lambda: fail(NeedsTwo(1, 2))),
    "exception without words": ("bug", lambda: fail(Mute())),
    "unpicklable result": ("bug", threading.Lock),
    "sys.exit": ("bug", lambda: sys.exit(7)),
    "StopIteration": ("bug", lambda: fail(StopIteration())),
    "result that cannot be unpickled": ("bug", lambda: NeedsTwo(1, 2)),
}
"""Name: the cause that is to be stated, and what the task does."""


def work(task: int | str) -> Any:
    """Double a number; run the failing task of a name."""
    return 2 * task if isinstance(task, int) else FAILING_TASKS[task][1]()


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_comes_back_once_and_in_order(jobs: int) -> None:
    results = list(pool.run(double, range(100), jobs=jobs, ordered=True))
    assert results == [(number, 2 * number) for number in range(100)]


def first_waits_for_leave(task: tuple[str, int]) -> bool:
    folder, number = task
    return number > 0 or processes.wait_until(Path(folder, "leave").exists, 60)


def test_unordered_yields_what_is_ready(tmp_path: Path) -> None:
    results = []
    for (_, number), outcome in pool.run(first_waits_for_leave, [(str(tmp_path), n) for n in range(3)], jobs=2):
        results.append((number, outcome))
        if len(results) == 2:
            (tmp_path / "leave").touch()
    assert sorted(results[:2]) == [(1, True), (2, True)]
    assert results[2:] == [(0, True)]


def test_a_slow_first_task_bounds_the_tasks_drawn_ahead() -> None:
    drawn = 0

    def endless() -> Iterator[int]:
        nonlocal drawn
        for number in range(10_000):
            drawn = number
            yield number

    results = pool.run(slow_first, endless(), jobs=2, ordered=True)
    assert next(results) == (0, 0)
    assert drawn <= 256 * 4 + 4
    results.close()


@pytest.mark.parametrize("ordered", [False, True])
def test_results_do_not_pile_up_behind_a_slow_caller(ordered: bool) -> None:
    drawn: list[int] = []
    results = pool.run(double, (drawn.append(number) or number for number in range(10_000)), jobs=2, ordered=ordered)
    next(results)
    num_drawn = len(drawn)
    time.sleep(0.5)
    assert len(drawn) == num_drawn
    results.close()


def test_few_tasks_start_few_processes() -> None:
    before = children()
    results = pool.run(double, iter(range(3)), jobs=40)
    assert len(list(itertools.islice(results, 2))) == 2
    assert 1 <= len(children() - before) <= 3
    results.close()


MEETING = """
import _multiprocessing, os, sys, time
from pathlib import Path
if "no semaphores" in sys.argv:  # as where /dev/shm cannot be written to
    def refuse(*args, **options):
        raise OSError(38, "Function not implemented")
    _multiprocessing.SemLock = refuse
from chordcache.engine import pool
from helpers.meeting import meet
print([result for _, result in pool.run(meet, [("a", "b"), ("b", "a")], jobs=2, ordered=True)])
results = pool.run(meet, [("a", "a")] * 100, jobs=2)
next(results)
results.close()
"""


@pytest.mark.parametrize(("case", "variable"), [("", "0"), ("no semaphores", "1")])
def test_tasks_run_at_once_where_joblib_would_be_serial(tmp_path: Path, case: str, variable: str) -> None:
    """And a run that is closed early gives no warning."""
    env = {"JOBLIB_MULTIPROCESSING": variable, "PYTHONPATH": os.pathsep.join(sys.path)}
    with processes.running(tmp_path, *filter(None, [case]), program=("-c", MEETING), env=env) as run:
        assert run.wait(60) == 0, run.stderr
        assert (run.stdout, run.stderr) == ("[True, True]\n", "")
        assert run.survivors() == []


def test_an_error_of_the_consumer_leaves_no_child() -> None:
    before = children()
    with pytest.raises(ZeroDivisionError):
        for _ in pool.run(double, range(1000), jobs=2):
            1 / 0  # noqa: B018
    assert processes.wait_until(lambda: children() <= before, 60)


def test_an_error_of_the_tasks_ends_the_run() -> None:
    def tasks() -> Iterator[int]:
        yield from range(5)
        raise StoppedError("enough")

    with pytest.raises(StoppedError, match="enough"):
        list(pool.run(double, tasks(), jobs=2))


def test_tasks_that_kill_their_workers_fail_alone() -> None:
    tasks = [task for number, name in enumerate(FAILING_TASKS) for task in (3 * number, name, 3 * number + 1, 0)]
    results = list(pool.run(work, tasks, jobs=2, ordered=True))
    assert [task for task, _ in results] == tasks
    for task, outcome in results:
        if isinstance(task, int):
            assert outcome == 2 * task
        else:
            assert (task, outcome.cause) == (task, FAILING_TASKS[task][0])
            assert outcome.message
            assert "\n" not in outcome.message


def test_a_task_that_cannot_be_pickled_fails_alone() -> None:
    tasks: list[Any] = [1, threading.Lock(), 2]
    results = [outcome for _, outcome in pool.run(double, tasks, jobs=1, ordered=True)]
    assert results[0::2] == [2, 4]
    assert isinstance(results[1], pool.Crash)
    assert (results[1].cause, results[1].attempts) == ("bug", 1)
    assert results[1].message.startswith("the task cannot be sent: TypeError")


def note_and_work(task: tuple[str, int]) -> list[str]:
    """The first attempt at task 3 is killed. The others say which tasks run beside them."""
    folder, number = task
    own = Path(folder, f"{number} runs")
    is_first = not Path(folder, "killed").exists()
    own.touch()
    if number == 3 and is_first:
        Path(folder, "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    beside = [path.name for path in Path(folder).glob("* runs") if path != own]
    time.sleep(0.05)
    own.unlink()
    return beside


def test_a_task_that_the_kernel_killed_for_memory_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chordcache.engine.child.Child.is_out_of_memory", True)
    tasks = [(str(tmp_path), number) for number in range(12)]
    results = {number: result for (_, number), result in pool.run(note_and_work, tasks, jobs=3)}
    assert results.keys() == set(range(12))
    assert not any(isinstance(result, pool.Crash) for result in results.values())
    assert results[3] == []
    assert any(results.values())


def test_workers_do_not_look_for_libraries_in_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/x:;/y:")
    ((_, path),) = pool.run(os.getenv, ["LD_LIBRARY_PATH"], jobs=1)
    assert path == "/x:/y"


def test_five_deaths_in_a_row_end_the_run() -> None:
    seen = []
    with pytest.raises(StoppedError, match="5 tasks in a row killed their workers"):
        for task, outcome in pool.run(work, ["SIGKILL"] * 50, jobs=2):
            seen.append((task, outcome))
    assert len(seen) <= pool.MAX_DEATHS_IN_A_ROW


def raise_it(error: ChordcacheError) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        cannot_write("no space left"),
        DamageError("what is read back is not what was written"),
        MediaError("decode", "short", "cut", 7),
        StoppedError("stopped by signal 15", exit_code=143),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_chordcache_error_ends_the_run_unchanged(error: ChordcacheError) -> None:
    with pytest.raises(type(error)) as caught:
        list(pool.run(raise_it, [error] * 9, jobs=2))
    assert str(caught.value) == str(error)
    assert caught.value.exit_code == error.exit_code
    assert {k: v for k, v in vars(caught.value).items() if not k.startswith("__")} == vars(error)


def die_once(task: tuple[str, int]) -> int:
    """The worker of task 7 is killed the first time that it is tried."""
    folder, number = task
    if number == 7:
        try:
            Path(folder, "tried").touch(exist_ok=False)
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


def test_a_task_whose_worker_is_killed_from_outside_is_done(tmp_path: Path) -> None:
    tasks = [(str(tmp_path), number) for number in range(30)]
    results = list(pool.run(die_once, tasks, jobs=2, ordered=True))
    assert [outcome for _, outcome in results] == list(range(30))


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_task_is_lost_with_an_idle_worker(jobs: int) -> None:
    outcomes = []
    for number, (_, outcome) in enumerate(pool.run(double, range(30), jobs=jobs)):
        outcomes.append(outcome)
        if number == 10:
            time.sleep(0.3)  # what was sent ahead is done: no worker is busy
            os.kill(
                next(pid for pid in children() if "chordcache.engine.worker" in processes.command_of(pid)),
                signal.SIGKILL,
            )
            time.sleep(0.3)
    assert sorted(outcomes, key=str) == sorted((2 * number for number in range(30)), key=str)


def environment(_task: int) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}


def test_workers_use_one_thread_each() -> None:
    ((_, variables),) = pool.run(environment, [0], jobs=1)
    assert {variables[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL")} == {"1"}


def test_default_jobs_are_those_of_joblib_which_knows_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= pool.default_jobs() <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert pool.default_jobs() == 1


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from chordcache.engine import pool\nprint(list(pool.run(abs, [-1, 2], jobs=1)))\n")
    with processes.running(tmp_path, program=(str(script),)) as run:
        assert run.wait(60) == 0, run.stderr
        assert (run.stdout, run.stderr) == ("[(-1, 1), (2, 2)]\n", "")


ENDLESS = """
import time
from chordcache.engine import pool
from chordcache.engine.limits import Limits
list(pool.run(time.sleep, [1000] * 2, jobs=2))
"""


def test_a_killed_parent_leaves_no_process_and_no_shared_memory(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with processes.running(tmp_path, program=("-c", ENDLESS)) as run:
        assert processes.wait_until(lambda: len(run.workers()) == 2, 60)
        run.process.kill()
        assert run.survivors() == []
    assert set(os.listdir("/dev/shm")) <= before


STOPPED = """
import sys, time
from chordcache.errors import StoppedError, cannot_write
from chordcache.engine.signals import stop_signals
try:
    with stop_signals():
        print("ready", flush=True)
        try:
            time.sleep(30)
        finally:
            if "slow" in sys.argv:
                print("cleaning", flush=True)
                time.sleep(30)
except StoppedError as error:
    sys.exit(error.exit_code)
"""


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with processes.running(tmp_path, "slow", program=("-c", STOPPED)) as run:
        assert processes.wait_until(lambda: "ready" in run.stdout, 60)
        os.kill(run.process.pid, signal.SIGTERM)
        assert processes.wait_until(lambda: "cleaning" in run.stdout, 60)
        os.kill(run.process.pid, signal.SIGINT)
        assert run.wait(60) == 128 + signal.SIGINT


STOPPED_AT_A_START = """
import os, signal, subprocess, sys
from chordcache.engine import pool
from chordcache.engine.limits import Limits
from chordcache.errors import StoppedError, cannot_write
from chordcache.engine.signals import stop_signals
start = subprocess.Popen
def start_and_stop(*args, **options):
    process = start(*args, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return process
subprocess.Popen = start_and_stop
try:
    with stop_signals():
        list(pool.run(abs, range(20), jobs=2))
except StoppedError as error:
    assert not open(f"/proc/self/task/{os.getpid()}/children").read()
    sys.exit(error.exit_code)
"""


def test_a_signal_at_the_start_of_a_worker_leaves_no_child(tmp_path: Path) -> None:
    with processes.running(tmp_path, program=("-c", STOPPED_AT_A_START)) as run:
        assert run.wait(60) == 130, run.stderr
        assert run.survivors() == []
        assert run.stderr == ""


STOPPED_AT_ANY_MOMENT = """
import sys, time
from chordcache.engine import pool
from chordcache.errors import StoppedError, cannot_write
from chordcache.engine.signals import stop_signals
print("ready", flush=True)
try:
    with stop_signals():
        for _ in pool.run(time.sleep, (0.001 * (number % 9) for number in range(100_000)), jobs=3):
            pass
except StoppedError as error:
    sys.exit(error.exit_code)
"""

NUM_MOMENTS = 6 * int(os.environ.get("TRIALS", "1"))
"""TRIALS=20 makes those of docs/reliability.md"""


@pytest.mark.slow
@pytest.mark.timeout(120 * NUM_MOMENTS)
def test_a_signal_at_any_moment_ends_cleanly(tmp_path: Path) -> None:
    moments = random.Random(27)
    for trial in range(NUM_MOMENTS):
        number = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)[trial % 3]
        with processes.running(tmp_path, program=("-c", STOPPED_AT_ANY_MOMENT)) as run:
            assert processes.wait_until(lambda: "ready" in run.stdout, 60)
            time.sleep(0.02 + moments.random() * 1.2)
            os.kill(run.process.pid, number)
            assert run.wait(60) == 128 + number, run.stderr
            assert run.survivors() == []
            assert run.stderr == ""


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]
    with stop_signals():
        pass
    with pytest.raises(StoppedError, match="signal 15"), stop_signals():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)] == before


def test_stop_signals_does_nothing_in_another_thread() -> None:
    errors = []

    def body() -> None:
        try:
            with stop_signals():
                pass
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert errors == []


@pytest.mark.parametrize("ordered", [False, True])
def test_a_run_that_gives_no_task_to_its_workers_fails(monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    """It ended without a result, as a run of no tasks does."""
    monkeypatch.setattr(pool._Fan, "width", property(lambda fan: 0, lambda fan, width: None), raising=False)
    with pytest.raises(ChordcacheError, match="the workers ended with 0 results of 0 tasks, expected all"):
        list(pool.run(double, range(3), jobs=Engine("inline"), ordered=ordered))
    assert list(pool.run(double, [], jobs=Engine("inline"), ordered=ordered)) == []
