"""Kills: what was published stays, what was not is made again, and no process is left that writes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash
from helpers import processes

import chordcache as cc
from fault_injection.fixtures import TIERS, build, build_args, differs, make_corpus
from fault_injection.harness import Figures, Trial, experiment

SPREAD = 0.618034
"""Multiples of it, modulo 1, are spread evenly however many there are."""

CALLS = "write,writev,pwrite64,ftruncate,rename,renameat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync"
"""All by which a build changes its cache but for openat, whose calls are too many to count: see ``_points``."""

OUTLIVING = """
import os, sys
options = "-D -f -qq --seccomp-bpf -o /dev/null -e trace=prctl -e inject=prctl:retval=0".split()
os.execvp("strace", ["strace", *options, sys.executable, "-m", "chordcache", *sys.argv[1:]])
"""
"""The command with workers that did not ask the kernel to end them with their parent, though they believe so."""


def _published(cache: Path) -> dict[str, tuple[int, int, int]]:
    """Files that a sidecar names, and sidecars, with their inode, size and time."""
    files = processes.files_of(cache)
    sidecars = processes.sidecars(cache).values()
    names = {data["_sidecar"] for data in sidecars}
    names |= {cache / info["file"]["name"] for data in sidecars for info in data["features"] if "file" in info}
    return {name: status for name, status in files.items() if cache / name in names}


def _check_resumed(trial: Trial, corpus: Path, tier: str) -> int:
    """The same command again: equal contents, nothing done twice. Return how many videos were there before."""
    cache = trial.folder / "cache"
    before = _published(cache)
    done = build(corpus, tier, trial.folder)
    assert done.returncode == 0, done.stderr
    different = differs(cache, corpus / "whole", tier)
    assert different == [], different
    after = _published(cache)
    redone = sorted(name for name in before if after.get(name) != before[name])
    assert redone == [], f"published before the kill, and done again: {redone}"
    _check_sound(cache)
    return sum(name.startswith("videos/") for name in before)


def _check_sound(cache: Path) -> None:
    """Nothing half done, and every file is what its sidecar says: what ``verify`` does, but without its processes."""
    partials, damage = processes.partials(cache), cc.verify(cache, level="quick").damage
    assert partials == [], partials
    assert damage == [], damage
    for data in processes.sidecars(cache).values():
        for info in data["features"]:
            if "file" in info:
                digest = xxhash.xxh3_128_hexdigest((cache / info["file"]["name"]).read_bytes())
                assert digest == info["file"]["digest"], info["file"]["name"]


def _write_duration(path: Path, corpus: Path, tier: str) -> None:
    """Seconds from the lock to the end of a build that nothing disturbs."""
    folder = path.with_name("undisturbed")
    folder.mkdir()
    with processes.running(folder, *build_args(corpus, tier)) as run:
        _wait_for_lock(folder / "cache", run)
        started = time.monotonic()
        run.wait()
        path.write_text(str(time.monotonic() - started))


def _wait_for_lock(cache: Path, run: processes.Run) -> None:
    pid = f"process {run.process.pid} "
    locked = processes.wait_until(lambda: (cache / ".lock").exists() and pid in (cache / ".lock").read_text(), 60)
    assert locked, run.stderr


@contextmanager
def _at_a_random_moment(trial: Trial, corpus: Path) -> Iterator[processes.Run]:
    """A build that is under way. The moments of many trials are spread over all of it."""
    duration = trial.once("duration", lambda path: _write_duration(path, corpus, trial.variant))
    with processes.running(trial.folder, *build_args(corpus, trial.variant)) as run:
        _wait_for_lock(trial.folder / "cache", run)
        time.sleep((trial.number + 1) * SPREAD % 1 * float(duration.read_text()))
        yield run


@experiment(
    "R1", "a build of all three tiers killed with -9 at a random moment, then the same command again",
    trials=100, variants=("all",),
)  # fmt: skip
def killed_at_random(trial: Trial) -> Figures:
    """The moments cover a whole build. Every third kill hits one worker, which the build survives."""
    corpus = trial.once("corpus", make_corpus)
    is_of_worker = trial.number % 3 == 2
    with _at_a_random_moment(trial, corpus) as run:
        victims = run.workers()[:1] if is_of_worker else [run.process.pid] * (run.process.poll() is None)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        num_published = len(processes.sidecars(trial.folder / "cache"))
        run.wait()
        survivors = run.survivors()
        assert survivors == [], survivors
        assert processes.fine(run.stderr), run.stderr
    num_kept = _check_resumed(trial, corpus, trial.variant)
    return {
        "sum_kills_before_the_first_video": bool(victims) and num_published == 0,
        "sum_kills_between": bool(victims) and 0 < num_published < 4,
        "sum_kills_after_the_last": bool(victims) and num_published == 4,
        "sum_came_too_late_or_too_early": not victims,
        "sum_videos_kept": num_kept,
        "sum_videos_done_again": 0,
    }


# Right after every system call


@contextmanager
def _traced(pid: int, log: Path, calls: str, *options: str) -> Iterator[None]:
    """Attach strace to the main thread of a process."""
    command = ["strace", "-y", "-s", "0", "-o", log, "-p", str(pid), "-e", f"trace={calls}", *options]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert tracer.stderr
    tracer.stderr.readline()  # it says that it is attached
    try:
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def _process(role: str, run: processes.Run) -> int:
    if role == "main":
        return run.process.pid
    assert processes.wait_until(run.workers, 60), run.stderr
    return run.workers()[0]


def _points(log: str, cache: Path) -> Iterator[str]:
    """Signal, call, and which one of that name.

    STOP comes when a call has returned. KILL comes before it begins, which is when a file has just been made.
    """
    seen: dict[str, int] = {}
    is_new = False
    for line in log.splitlines():
        name = line.partition("(")[0]
        seen[name] = seen.get(name, 0) + 1
        if str(cache) in line and name == "openat":
            is_new |= "O_CREAT" in line
        elif str(cache) in line:
            if is_new:
                yield f"KILL {name} {seen[name]}"
            yield f"STOP {name} {seen[name]}"
            is_new = False


def _write_points(path: Path, corpus: Path, tier: str) -> None:
    """Every moment at which a build has just changed the cache, in any order."""
    points = []
    for role in ("main", "worker"):
        folder = path.with_name(f"recorded-{role}")
        folder.mkdir()
        log, calls = folder / "log", f"{CALLS},openat"
        with (
            processes.running(folder, *build_args(corpus, tier, jobs=1)) as run,
            _traced(_process(role, run), log, calls),
        ):
            run.wait()
        points += [f"{role} {point}\n" for point in _points(log.read_text(), folder / "cache")]
    assert len(points) > 50, points
    random.Random(0).shuffle(points)
    path.write_text("".join(points))


NUM_VIDEOS = {"lmdb": 6, "npz": 3, "hdf5": 3}
"""So many that there are more than 200 calls in each tier."""


@experiment(
    "R1", "killed with -9 right after each system call that changes the cache, then the same command again",
    trials=225, variants=TIERS,
)  # fmt: skip
def killed_after_each_call(trial: Trial) -> Figures:
    """The main process is killed in the very state in which the call leaves the cache, or every third time a worker."""
    num_videos = NUM_VIDEOS[trial.variant]
    corpus = trial.once("corpus", lambda folder: make_corpus(folder, num_videos, num_frames=6))
    points = trial.once("points", lambda path: _write_points(path, corpus, trial.variant)).read_text().splitlines()
    role, number, name, count = points[trial.number % len(points)].split()
    log = trial.folder / "log"
    injection = f"inject={name}:signal={number}:when={count}"
    with processes.running(trial.folder, *build_args(corpus, trial.variant, jobs=1)) as run:
        pid = _process(role, run)
        with _traced(pid, log, CALLS, "-e", injection):
            processes.wait_until(lambda: _is_struck(log) or run.process.poll() is not None, 60)
            assert _is_struck(log), f"it did not come to {role} {name} {count}: {run.stderr}"
            victim = pid if trial.number % 3 == 2 else run.process.pid
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            run.wait()
        survivors = run.survivors()
        assert survivors == [], survivors
        assert processes.fine(run.stderr), run.stderr
    num_kept = _check_resumed(trial, corpus, trial.variant)
    return {"max_points_in_all": len(points), "sum_videos_kept": num_kept, "sum_videos_done_again": 0}


def _is_struck(log: Path) -> bool:
    """Return whether the log of strace says so; strace writes it line by line."""
    return re.search(r"stopped by SIGSTOP|killed by SIGKILL", log.read_text()) is not None


# Orphans


@experiment(
    "R21", "main process of a build of all three tiers killed with -9, the same command again at once",
    trials=20, variants=("all",),
)  # fmt: skip
def restarted_at_once(trial: Trial) -> Figures:
    """Workers end with their parent, at the latest when they begin: none has published anything after its death."""
    corpus = trial.once("corpus", make_corpus)
    cache = trial.folder / "cache"
    with _at_a_random_moment(trial, corpus) as first:
        num_workers = len(first.workers())
        first.process.kill()
        first.process.wait()
        dead_ns = time.time_ns()
        with processes.running(trial.folder, *build_args(corpus, trial.variant)) as second:
            _wait_for_lock(cache, second)
            locked_ns = (cache / ".lock").stat().st_mtime_ns
            orphans = first.workers()
            at_work = [path for path in processes.partials(cache) if any(f"-{pid}-" in str(path) for pid in orphans)]
            assert at_work == [], at_work
            assert processes.wait_until(lambda: not first.workers(), 60), list(
                map(processes.command_of, first.workers())
            )
            names = [cache / name for name in processes.files_of(cache)]
            late = [path for path in names if dead_ns < path.stat().st_ctime_ns < locked_ns]
            assert late == [], f"published after the main process had died: {late}"
            assert second.wait() == 0, second.stderr
    different = differs(cache, corpus / "whole", trial.variant)
    assert different == [], different
    _check_sound(cache)
    return {"sum_orphaned_workers": num_workers, "sum_different": 0}


@experiment(
    "R21", "the same, with workers that the kernel does not end with their parent",
    trials=20, variants=("all",),
)  # fmt: skip
def restarted_beside_orphans(trial: Trial) -> Figures:
    """Orphans finish what they are at, beside the second run; the third clears what they left half done."""
    corpus = trial.once("corpus", make_corpus)
    cache = trial.folder / "cache"
    args = build_args(corpus, trial.variant)
    with processes.running(trial.folder, *args, program=("-c", OUTLIVING)) as first:
        assert processes.wait_until(first.workers, 60), first.stderr
        time.sleep((trial.number + 1) * SPREAD % 1)
        first.process.kill()
        num_orphans = len(first.workers())
        second = build(corpus, trial.variant, trial.folder)
        assert second.returncode == 0, second.stderr
        processes.wait_until(lambda: not first.workers(), 60)
    different = differs(cache, corpus / "whole", trial.variant)
    assert different == [], different
    num_kept = _check_resumed(trial, corpus, trial.variant)
    assert num_kept == 4
    return {"sum_orphaned_workers": num_orphans, "sum_different": 0}
