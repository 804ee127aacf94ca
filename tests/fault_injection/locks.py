"""R5: several commands that want to write one cache at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from conftest import run_chordcache
from helpers import processes

import chordcache as cc
from fault_injection.fixtures import build_args, differs, make_corpus, states
from fault_injection.harness import Figures, Trial, experiment

AT_THE_GATE = """
import fcntl, os, sys, time
import chordcache.building.build, chordcache.cli.make_commands
from chordcache.cli import main
with open(os.environ["GATE"]) as gate:
    open(os.environ["GATE"] + "-" + str(os.getpid()), "w").close()
    fcntl.flock(gate, fcntl.LOCK_SH)
started = time.monotonic()
try:
    main()
finally:
    print("seconds", time.monotonic() - started)
"""
"""``chordcache`` that has imported everything, waits until the gate opens, and says how long it took from there."""

LOCKED = re.compile(
    r"chordcache build: error: cache '.*' is being written by (?:process (\d+) on .*|another process); wait until it "
    r"ends.*\n"
)

WAITING = re.compile(
    r"chordcache: .*is being written by (?:process (\d+) on .*|another process); waiting until it ends\n"
)


def _make_corpus(folder: Path) -> None:
    """It takes so long to build that a second build finds it locked."""
    make_corpus(folder, num_frames=60)


class _Gate:
    """Where commands wait for each other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    @contextlib.contextmanager
    def commands(self, folder: Path, num: int, args: Sequence[str | Path]) -> Iterator[list[processes.Run]]:
        """The same command several times; all are at the gate."""
        with contextlib.ExitStack() as stack:
            options = {"program": ("-c", AT_THE_GATE), "env": {"GATE": str(self._path)}}
            runs = [stack.enter_context(processes.running(folder, *args, **options)) for _ in range(num)]
            assert processes.wait_until(lambda: all(self._is_at(run) for run in runs), 120), [
                run.stderr for run in runs
            ]
            yield runs

    def _is_at(self, run: processes.Run) -> bool:
        return Path(f"{self._path}-{run.process.pid}").exists()

    def open(self) -> None:
        """Let all go."""
        self._file.close()


def _seconds(run: processes.Run) -> float:
    """From the gate to the end."""
    return float(run.stdout.rpartition("seconds ")[2])


def _race(trial: Trial, num: int) -> Figures:
    """Builds that start at once: one wins, the others say so and have done nothing."""
    corpus = trial.once("corpus", _make_corpus)
    gate = _Gate(trial.folder / "gate")
    with gate.commands(trial.folder, num, build_args(corpus, "all")) as runs:
        gate.open()
        codes = [run.wait(120) for run in runs]
        assert sorted(codes) == [0, *[11] * (num - 1)], (codes, [run.stderr for run in runs])
        winner = runs[codes.index(0)]
        losers = [run for run in runs if run is not winner]
        assert winner.stderr == ""
        for run in losers:
            reported = LOCKED.fullmatch(run.stderr)
            assert reported, run.stderr
            # The winner may not have written yet who it is
            assert reported[1] is None or int(reported[1]) == winner.process.pid
            assert run.stdout.startswith("seconds")
        assert (trial.folder / "cache/.lock").read_text().startswith(f"process {winner.process.pid} ")
    assert max(map(_seconds, losers)) < _seconds(winner)
    assert differs(trial.folder / "cache", corpus / "whole", "all") == []
    assert processes.partials(trial.folder / "cache") == []
    assert cc.verify(trial.folder / "cache", jobs=1).damage == []
    return {"max_winners": 1, "max_seconds_of_a_loser": max(map(_seconds, losers))}


@experiment("R5", "two builds of one cache started at once, and in the end fifty", trials=51)
def at_once(trial: Trial) -> Figures:
    """The losers end while the winner builds. Fifty builds share about two processors."""
    return {**_race(trial, 50), "max_builds_at_once": 50} if trial.number == 50 else _race(trial, 2)


def _states(cache: Path) -> dict[str, tuple[int, ...]]:
    return {path: state for path, state in states(cache).items() if not path.endswith("/runs.jsonl")}


@experiment("R5", "build, gc and verify --repair while another process holds the lock")
def locked_out(trial: Trial) -> Figures:
    """Each exits with 11, and no file or folder of the cache has changed, but for the line of verify in the run log."""
    corpus = trial.once("corpus", _make_corpus)
    cache = trial.folder / "cache"
    done = run_chordcache(*build_args(corpus, "lmdb", cache))
    assert done.returncode == 0, done.stderr
    artefact = next(iter(processes.sidecars(cache).values()))["_artefact"]
    processes.flip(artefact, artefact.stat().st_size // 2)
    (cache / ".partial/of-another").mkdir(parents=True)
    with (cache / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _states(cache)
        commands = [build_args(corpus, "npz", cache), ["gc", cache], ["verify", cache, "--repair"]]
        for command in commands:
            done = run_chordcache(*command)
            assert done.returncode == 11, (command, done.stdout, done.stderr)
            assert "is being written by" in done.stderr
            assert len(done.stderr.splitlines()) == 1, done.stderr
            assert _states(cache) == before, command
    return {"sum_commands": len(commands), "sum_changes": 0}


@experiment("R5", "two builds with --wait at once; every second time the first is killed", trials=20)
def waiting(trial: Trial) -> Figures:
    """The second goes on where the first ended."""
    corpus = trial.once("corpus", _make_corpus)
    cache = trial.folder / "cache"
    gate = _Gate(trial.folder / "gate")
    with gate.commands(trial.folder, 2, [*build_args(corpus, "all"), "--wait"]) as runs:
        gate.open()
        assert processes.wait_until(lambda: any(WAITING.fullmatch(run.stderr) for run in runs), 60)
        second = next(run for run in runs if run.stderr)
        (first,) = (run for run in runs if run is not second)
        reported = WAITING.fullmatch(second.stderr)
        assert reported, second.stderr
        # The first may not have written yet who it is
        assert reported[1] is None or int(reported[1]) == first.process.pid
        is_killed = trial.number % 2 == 1
        if is_killed:
            time.sleep(trial.rng.random() * 0.5)
            first.process.kill()
        codes = first.wait(), second.wait()
        assert codes in ((0, 0), (-signal.SIGKILL, 0)), (codes, first.stderr, second.stderr)
        assert is_killed or second.stdout.startswith("done 0, up to date 4,"), second.stdout
    assert differs(cache, corpus / "whole", "all") == []
    assert processes.partials(cache) == []
    assert cc.verify(cache, jobs=1).damage == []
    return {"sum_killed": is_killed}


@experiment("R5", "build the moment after the build that held the lock was killed", trials=20)
def lock_of_the_dead(trial: Trial) -> Figures:
    """Though its workers may still be there."""
    corpus = trial.once("corpus", _make_corpus)
    gate = _Gate(trial.folder / "gate")
    args = build_args(corpus, "all")
    with gate.commands(trial.folder, 1, args) as (second,), processes.running(trial.folder, *args) as first:
        assert processes.wait_until(lambda: (trial.folder / "cache/.lock").exists(), 60)
        time.sleep(trial.rng.random())
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        gate.open()
        assert second.wait() == 0, second.stderr
    assert differs(trial.folder / "cache", corpus / "whole", "all") == []
    return {"sum_locked_out": 0}
