"""Experiments, and the processes that run their trials.

An experiment is a function that tries one guarantee and raises if it does not hold::

    @experiment("R1", "kill -9 at a random moment, then the same command again", trials=200, variants=TIERS)
    def killed_at_random(trial: Trial) -> Figures:
        ...
        return {"median_redone_percent": 12.5}

``make reliability`` runs them whole (``trials``), with ``ARGS=--slice`` some trials of most (``slice``).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import inspect
import json
import os
import pkgutil
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

TESTS = Path(__file__).resolve().parent.parent
REPOSITORY = TESTS.parent

Figures: TypeAlias = Mapping[str, float]
"""Figures that a call measured. The first word of a name says how calls are joined: ``sum_``, ``max_``, ``min_``,
``median_``; ``cell_`` is a sum that only ``--matrix`` shows, and names its row and its column: ``cell_row_column``."""

_JOINED = {"sum": sum, "max": max, "min": min, "median": statistics.median, "cell": sum}


class BrokenGuarantee(AssertionError):
    """A failure that comes with what was measured.

    Parameters
    ----------
    message : str
        Cases in which the guarantee does not hold.
    figures : Figures
        As the experiment would have returned them.
    """

    def __init__(self, message: str, figures: Figures) -> None:
        super().__init__(message)
        self.figures = figures


CALL_TIMEOUT_SECONDS = 600
"""A call that takes longer hangs: that is a failure."""


@dataclass(frozen=True)
class Trial:
    """One call of an experiment."""

    number: int
    """Number of its first trial, from 0"""
    count: int
    """Trials that this call makes: 1, or up to the experiment's ``batch``"""
    variant: str
    """One of the experiment's variants, "" if it has none"""
    folder: Path
    """Empty; removed after the call"""
    shared: Path
    """The same for all calls of one process, for ``once``"""
    common: Path
    """The same for all experiments of a run, for ``once``"""
    rng: random.Random
    """Seeded with the experiment and ``number``: a call can be repeated"""

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return what ``make(path)`` made at the first call that asked for it. Do not write into it.

        What a function with a name makes serves every experiment of the run; a lambda's, those of this process.
        """
        if make.__name__ != "<lambda>":
            path = self.common / f"{make.__module__}.{make.__qualname__}.{name}"
        else:
            path = self.shared / name
        marker = path.with_name(f"{path.name}.made")
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not marker.exists():
                shutil.rmtree(path, ignore_errors=True)  # of a call that failed half-way
                make(path)  # in its place and never moved: an index names the folder of its videos
                marker.touch()
        return path


@dataclass(frozen=True)
class Experiment:
    """A guarantee, and how it is tried."""

    guarantee: str
    """R1 to R26, S1 to S10"""
    what: str
    """Description for the table"""
    function: Callable[[Trial], Figures | None]
    variant: str
    trials: int
    """In the whole run"""
    batch: int
    """Trials that one call makes"""
    alone: bool
    """Measures times, or fills the disk: nothing else may run beside it"""

    @property
    def name(self) -> str:
        """Unique, such as R1.killed_at_random[lmdb]."""
        variant = f"[{self.variant}]" if self.variant else ""
        return f"{self.guarantee}.{self.function.__name__}{variant}"

    def calls(self, trials: int | None = None) -> list[tuple[int, int]]:
        """(first trial, number of trials) of each call."""
        total = trials or self.trials
        return [(start, min(self.batch, total - start)) for start in range(0, total, self.batch)]


EXPERIMENTS: list[Experiment] = []
"""Those of the modules that are imported"""

NOT_IMPORTED = ("__main__", "dataloader_outcomes", "trials")
"""Programs, and a module that loads torch"""


def by_guarantee(experiment: Experiment) -> tuple[str, int]:
    """Return the letter and the number of its guarantee, to sort by."""
    return experiment.guarantee[0], int(experiment.guarantee[1:])


def load_experiments() -> list[Experiment]:
    """Import all modules beside this one. Return all experiments by guarantee, last those that run alone."""
    for module in pkgutil.iter_modules([str(TESTS / "fault_injection")]):
        if module.name not in NOT_IMPORTED:
            importlib.import_module(f"fault_injection.{module.name}")
    return sorted(EXPERIMENTS, key=lambda one: (one.alone, *by_guarantee(one), one.name))


def experiment(
    guarantee: str,
    what: str,
    *,
    trials: int = 1,
    batch: int = 1,
    variants: Sequence[str] = ("",),
    alone: bool = False,
) -> Callable[[Callable[[Trial], Figures | None]], Callable[[Trial], Figures | None]]:
    """Make a function an experiment; ``trials`` counts for each variant."""

    def add(function: Callable[[Trial], Figures | None]) -> Callable[[Trial], Figures | None]:
        for variant in variants:
            EXPERIMENTS.append(Experiment(guarantee, what, function, variant, trials, batch, alone))
        return function

    return add


# One process's calls


@dataclass(frozen=True)
class Outcome:
    """Result of one call."""

    experiment: str
    start: int
    count: int
    seconds: float
    failure: str | None = None
    figures: dict[str, float] = field(default_factory=dict)


def run_calls(chosen: Experiment, calls: Sequence[tuple[int, int]], common: Path) -> Iterator[Outcome]:
    """Make calls in a process of their own; one that dies or hangs with a call costs that call.

    ``common`` is a folder for what experiments share, see ``Trial.once``.
    """
    waiting = list(calls)
    while waiting:
        num_before = len(waiting)
        for outcome in _in_process(chosen, waiting, common):
            waiting.pop(0)
            yield outcome
        if len(waiting) == num_before:
            raise RuntimeError(f"{chosen.name}: the process that runs it does not start")


def _in_process(chosen: Experiment, calls: Sequence[tuple[int, int]], common: Path) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(prefix="chordcache-reliability-") as shared:
        process = subprocess.Popen(
            [sys.executable, "-m", "fault_injection", chosen.name, json.dumps(calls), shared, common],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun: tuple[int, int] | None = None
        started = time.monotonic()
        deadline = _deadline(process)
        assert process.stdout
        try:
            for line in process.stdout:
                deadline.cancel()
                data = json.loads(line)
                if "begun" in data:
                    begun, started = tuple(data["begun"]), time.monotonic()
                    deadline = _deadline(process)
                else:
                    begun = None
                    yield Outcome(chosen.name, **data)
            code = process.wait()
            if begun is not None:
                failure = f"the process died or hung: {signal.Signals(-code).name if code < 0 else f'exit {code}'}"
                yield Outcome(chosen.name, *begun, time.monotonic() - started, failure)
        finally:
            deadline.cancel()
            _end(process)
            process.stdout.close()


def _deadline(process: subprocess.Popen[str]) -> threading.Timer:
    timer = threading.Timer(CALL_TIMEOUT_SECONDS, _end, [process])
    timer.daemon = True
    timer.start()
    return timer


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def make_calls(chosen: Experiment, calls: Sequence[tuple[int, int]], shared: Path, common: Path) -> None:
    """Make calls in this process and print how each ended. What experiments print goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for start, count in calls:
        print(json.dumps({"begun": [start, count]}), file=out)
        folder = shared / "call"
        folder.mkdir()
        trial = Trial(start, count, chosen.variant, folder, shared, common, random.Random(f"{chosen.name} {start}"))
        started = time.monotonic()
        figures, failure = _call(chosen, trial)
        shutil.rmtree(folder, ignore_errors=True)
        ended: dict[str, Any] = {"start": start, "count": count, "seconds": time.monotonic() - started}
        print(json.dumps({**ended, "failure": failure, "figures": figures}), file=out)


def _call(chosen: Experiment, trial: Trial) -> tuple[dict[str, float], str | None]:
    try:
        return dict(chosen.function(trial) or {}), None
    except BrokenGuarantee as error:
        return dict(error.figures), str(error)
    except Exception:
        return {}, traceback.format_exc(limit=-4)


# Results


def digest_of_code(chosen: Experiment) -> str:
    """Digest the experiment's module, those it imports from beside it, what tests share, and the package."""
    own = Path(inspect.getfile(chosen.function))
    modules = sorted((REPOSITORY / "chordcache").rglob("*.py"))
    names = re.findall(r"^from fault_injection\.(\w+)", own.read_text(), re.M)
    beside = [own.with_name(f"{name}.py") for name in names]
    digest = hashlib.sha256()
    for path in (*modules, own, *beside, TESTS / "helpers" / "processes.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def joined(outcomes: Sequence[Outcome]) -> str:
    """The figures of an experiment's calls in words."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.figures)
    parts = []
    for name in names:
        how, _, words = name.partition("_")
        if how == "cell":
            continue
        value = _JOINED[how]([outcome.figures[name] for outcome in outcomes if name in outcome.figures])
        shown = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
        parts.append(f"{'' if how == 'sum' else how + ' '}{words.replace('_', ' ')} {shown}")
    return ", ".join(parts)


def matrix(experiments: Mapping[Experiment, Sequence[Outcome]]) -> str:
    """Tabulate the cells of experiments: a row for each variant, a column for each kind of trial.

    Parameters
    ----------
    experiments : mapping of Experiment to sequence of Outcome
        Those whose figures have cells are shown.
    """
    sums: dict[str, Counter[str]] = {}
    for experiment, outcomes in experiments.items():
        cells = Counter[str]()
        for outcome in outcomes:
            cells.update({name[5:]: int(value) for name, value in outcome.figures.items() if name.startswith("cell_")})
        if cells:
            sums[experiment.variant] = cells
    columns = list(dict.fromkeys(name.rpartition("_")[0] for cells in sums.values() for name in cells))
    endings = list(dict.fromkeys(name.rpartition("_")[2] for cells in sums.values() for name in cells))
    lines = [
        f"Each cell: {' / '.join(endings)}.\n",
        f"| | {' | '.join(column.replace('_', ' ') for column in columns)} | in all |",
        f"|---|{'---:|' * (len(columns) + 1)}",
    ]
    for variant, cells in sums.items():
        counts = [[cells[f"{column}_{ending}"] for ending in endings] for column in columns]
        counts.append([sum(column) for column in zip(*counts, strict=True)])
        shown = [" / ".join(map(str, cell)) if any(cell) else "" for cell in counts]
        lines.append(f"| {variant} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"
