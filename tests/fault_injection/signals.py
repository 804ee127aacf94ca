"""R20: signals at any time of any command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conftest import run_chordcache
from helpers import processes

import chordcache as cc
from fault_injection.fixtures import build_args, differs, make_corpus
from fault_injection.harness import Figures, Trial, experiment

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

MAX_SECONDS = 60
"""To the end of the command, and from there to the end of its children."""

STOPPED = re.compile(
    r"(chordcache verify: built \d+ of \d+ videos? again(, \d+ needed only a sidecar)?\n)?"
    r"chordcache \w+: error: (stopped by signal (\d+)(; the same command resumes)?|interrupted)\n"
)
"""All that a user may see, unless the signal came before Python had its handlers; the first line is of a repair."""

IGNORING = """
import os, signal, sys
signal.signal(int(os.environ["IGNORED"]), signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "chordcache", *sys.argv[1:]])
"""
"""``chordcache`` as nohup and a script's background jobs start it."""


@dataclass(frozen=True)
class _Command:
    """A command to stop, and the check that it did its work in the end."""

    args: Callable[[Path], list[str | Path]]
    """Given the corpus; run in the trial's folder"""
    prepare: Callable[[Path, Path], None]
    """Given the corpus and the trial's folder"""
    check: Callable[[Path, Path], None]
    """The same, after the command has run undisturbed"""


def _make_corpus(folder: Path) -> None:
    """As ``make_corpus``; many/, copies of its videos, and many.json, their index."""
    make_corpus(folder, num_frames=48)
    (folder / "many").mkdir()
    for number in range(48):
        shutil.copy(folder / f"videos/{number % 4}.mp4", folder / f"many/{number:02}.mp4")
    cc.scan([folder / "many"], output=folder / "many.json", level="content", jobs=2)


def _no_preparation(corpus: Path, folder: Path) -> None:
    pass


def _check_scan(corpus: Path, folder: Path) -> None:
    assert (folder / "index.json").read_bytes() == (corpus / "many.json").read_bytes()
    names = {path.name for path in folder.iterdir() if path.suffix not in (".out", ".err")}
    assert names - {"index.json.runs.jsonl"} == {"index.json"}, names


def _check_build(corpus: Path, folder: Path) -> None:
    assert differs(folder / "cache", corpus / "whole", "all") == []
    assert processes.partials(folder / "cache") == []


def _copy_whole(corpus: Path, folder: Path) -> None:
    subprocess.run(["cp", "-a", corpus / "whole", folder / "cache"], check=True)


def _check_untouched(corpus: Path, folder: Path) -> None:
    assert processes.files_of(folder / "cache").keys() == processes.files_of(corpus / "whole").keys()
    _check_build(corpus, folder)


def _damage(corpus: Path, folder: Path) -> None:
    _copy_whole(corpus, folder)
    for tier, suffix in (("npz", "npz"), ("hdf5", "h5")):
        for artefact in (folder / "cache" / tier).rglob(f"*.{suffix}"):
            processes.flip(artefact, artefact.stat().st_size // 2)


SCAN = _Command(
    lambda corpus: ["scan", corpus / "many", "-o", "index.json", "--level", "content", "-j2"],
    _no_preparation,
    _check_scan,
)
BUILD = _Command(lambda corpus: build_args(corpus, "all"), _no_preparation, _check_build)
VERIFY = _Command(lambda corpus: ["verify", "cache", "--deep", "--source", "-j2"], _copy_whole, _check_untouched)
REPAIR = _Command(lambda corpus: ["verify", "cache", "--repair", "-j2"], _damage, _check_untouched)


@dataclass(frozen=True)
class _Phase:
    """A part of a command's course."""

    command: _Command
    has_begun: Callable[[processes.Run, Path], bool]
    lasts_seconds: float
    """The signal comes at a random moment of these"""


def _at_once(run: processes.Run, folder: Path) -> bool:
    return True


def _has_workers(run: processes.Run, folder: Path) -> bool:
    return bool(run.workers())


def _is_locked(run: processes.Run, folder: Path) -> bool:
    return (folder / "cache/.lock").exists()


def _writes(run: processes.Run, folder: Path) -> bool:
    return processes.is_writing(folder / "cache")


def _has_published(num_videos: int) -> Callable[[processes.Run, Path], bool]:
    return lambda run, folder: len(list((folder / "cache").glob("videos/*/*.json"))) >= num_videos


PHASES: Mapping[str, _Phase] = {
    "scan, from its start": _Phase(SCAN, _at_once, 0.8),
    "scan at work": _Phase(SCAN, _has_workers, 0.8),
    "build, from its start": _Phase(BUILD, _at_once, 0.8),
    "build registering": _Phase(BUILD, _is_locked, 0.1),
    "build decoding": _Phase(BUILD, _writes, 0.3),
    "build publishing": _Phase(BUILD, _has_published(1), 0.4),
    "build at its end": _Phase(BUILD, _has_published(4), 0.1),
    "verify": _Phase(VERIFY, _has_workers, 1.0),
    "verify --repair": _Phase(REPAIR, _writes, 0.5),
}


def _code(status: int) -> int:
    """An exit code as a shell shows it."""
    return 128 - status if status < 0 else status


def _send(run: processes.Run, number: int, *, to_group: bool) -> None:
    with suppress(ProcessLookupError):  # it has ended, and its whole group
        (os.killpg if to_group else os.kill)(run.process.pid, number)


@experiment(
    "R20", "SIGINT, SIGTERM or SIGHUP to the command or to its whole group, then the same command",
    trials=20, variants=tuple(PHASES),
)  # fmt: skip
def stopped(trial: Trial) -> Figures:
    """The three signals in turn, three to the command and three to its group."""
    phase = PHASES[trial.variant]
    corpus, folder = trial.once("corpus", _make_corpus), trial.folder
    phase.command.prepare(corpus, folder)
    args = phase.command.args(corpus)
    number = SIGNALS[trial.number % 3]
    with processes.running(folder, *args) as run:
        processes.wait_until(lambda: phase.has_begun(run, folder) or run.process.poll() is not None, 60)
        time.sleep(trial.rng.random() * phase.lasts_seconds)
        is_over = run.process.poll() is not None
        sent = time.monotonic()
        _send(run, number, to_group=trial.number // 3 % 2 == 1)
        code = _code(run.wait(MAX_SECONDS))
        seconds = time.monotonic() - sent
        assert run.survivors(MAX_SECONDS) == []
        _check_message(run, number, code, is_over=is_over)
    done = run_chordcache(*args, cwd=folder)
    assert (done.returncode, processes.fine(done.stderr)) == (0, True), (done.returncode, done.stdout, done.stderr)
    phase.command.check(corpus, folder)
    return {"max_seconds_to_exit": 0 if is_over else seconds, "sum_children_left": 0, "sum_over_before": is_over}


def _check_message(run: processes.Run, number: int, code: int, *, is_over: bool) -> None:
    """The exit code is that of the signal, and one line says so; or the command had done its work before it came."""
    if code == 0:
        assert run.stdout, run.stderr
        return
    assert not is_over, (code, run.stderr)
    if "KeyboardInterrupt" in run.stderr:  # Python's start, and the first imports, before there is anybody to catch it
        assert code in (1, 128 + number), code
        assert re.search(r"chordcache/(?!__init__|__main__|errors)", run.stderr) is None, run.stderr
        return
    assert code == 128 + number, (code, run.stderr)
    assert run.stderr == "" or STOPPED.fullmatch(run.stderr), run.stderr


@experiment("R20", "a second signal soon after the first", trials=20)
def twice(trial: Trial) -> Figures:
    """It ends the command at once, in the middle of what the first one had begun."""
    corpus, folder = trial.once("corpus", _make_corpus), trial.folder
    args = BUILD.args(corpus)
    first, second = SIGNALS[trial.number % 3], SIGNALS[trial.number // 3 % 3]
    with processes.running(folder, *args) as run:
        assert processes.wait_until(lambda: _writes(run, folder), 60), run.stderr
        time.sleep(trial.rng.random() * 0.3)
        _send(run, first, to_group=False)
        time.sleep(trial.rng.random() * 0.02)
        _send(run, second, to_group=False)
        sent = time.monotonic()
        code = _code(run.wait(MAX_SECONDS))
        seconds = time.monotonic() - sent
        assert run.survivors(MAX_SECONDS) == []
        assert code in (128 + first, 128 + second), (code, run.stderr)
        is_by_second = not STOPPED.fullmatch(run.stderr)
        assert not is_by_second or not run.stderr, run.stderr
    done = run_chordcache(*args, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    BUILD.check(corpus, folder)
    return {"max_seconds_to_exit": seconds, "sum_ended_by_the_second": is_by_second}


@experiment("R20", "signals that were ignored when the command was started, as under nohup", trials=6)
def ignored(trial: Trial) -> Figures:
    """They stay ignored, the others do not."""
    corpus, folder = trial.once("corpus", _make_corpus), trial.folder
    args = BUILD.args(corpus)
    number, other = SIGNALS[trial.number % 3], SIGNALS[(trial.number + 1) % 3]
    with processes.running(folder, *args, program=("-c", IGNORING), env={"IGNORED": str(int(number))}) as run:
        assert processes.wait_until(lambda: _writes(run, folder), 60), run.stderr
        for _ in range(3):
            _send(run, number, to_group=True)
            time.sleep(0.05)
        is_stopped = trial.number >= 3
        if is_stopped:
            _send(run, other, to_group=False)
        code = _code(run.wait())
        assert code == (128 + other if is_stopped else 0), (code, run.stderr)
        assert run.survivors(MAX_SECONDS) == []
    if is_stopped:
        done = run_chordcache(*args, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
    BUILD.check(corpus, folder)
    return {"sum_ignored": 3}
