"""``make reliability``: every experiment whole, one table, and where it was stopped it goes on.

python -m fault_injection [--slice] [--only R1,S2] [--trials N] [-j N] [--fresh] [--matrix] [--write FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import queue
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from tqdm import tqdm

from fault_injection.experiments import EXPERIMENTS
from fault_injection.harness import (
    REPOSITORY,
    Experiment,
    Outcome,
    digest_of_code,
    joined,
    make_calls,
    matrix,
    run_calls,
)
from fault_injection.slice import calls_in_slice, is_in_slice

RESULTS = REPOSITORY / ".reliability.jsonl"
"""One line per call; those made with other code count for nothing."""

MAX_NAMED = 8
"""Number of variants that a row of the table names"""

NUMBERS = re.compile(r"(?<=<!-- trials -->\n).*?(?=<!-- end of trials -->)", re.DOTALL)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make reliability", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="R1,S2", help="only experiments whose name begins so")
    parser.add_argument("--slice", action="store_true", help="a few trials of most experiments, for CI")
    parser.add_argument("--trials", type=int, metavar="N", help="of each experiment, instead of its own number")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="experiments at once")
    parser.add_argument("--fresh", action="store_true", help="forget the results, or only those chosen")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the numbers of trials between the marks in FILE"
    )
    parser.add_argument("--matrix", action="store_true", help="also tabulate the kinds of trials one by one")
    parser.add_argument("--calls", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


class _Run:
    """The calls that are made, and the results of all."""

    def __init__(self, chosen: Sequence[Experiment], calls_of: Callable[[Experiment], list[tuple[int, int]]]) -> None:
        self._plan = {experiment.name: calls_of(experiment) for experiment in chosen}
        self._digests = {experiment.name: digest_of_code(experiment) for experiment in chosen}
        self.outcomes: dict[str, dict[tuple[int, int], Outcome]] = {experiment.name: {} for experiment in chosen}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop the results of these calls, and no others."""
        others = []
        for line in _lines():
            data = json.loads(line)
            if (data["start"], data["count"]) not in self._plan.get(data["experiment"], []):
                others.append(line)
        RESULTS.write_text("".join(f"{line}\n" for line in others))

    def load(self) -> None:
        """Take over what was done with the same code."""
        for line in _lines():
            data = json.loads(line)
            digest, outcome = data.pop("code"), Outcome(**data)
            call = (outcome.start, outcome.count)
            if self._digests.get(outcome.experiment) == digest and call in self._plan[outcome.experiment]:
                self.outcomes[outcome.experiment][call] = outcome

    def missing(self, experiment: Experiment) -> list[tuple[int, int]]:
        """Calls that are still to be made."""
        return [call for call in self._plan[experiment.name] if call not in self.outcomes[experiment.name]]

    def take(self, outcome: Outcome) -> None:
        """Keep a result, also on disk."""
        with self._lock:
            self.outcomes[outcome.experiment][outcome.start, outcome.count] = outcome
            line = {**dataclasses.asdict(outcome), "code": self._digests[outcome.experiment]}
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _lines() -> list[str]:
    return RESULTS.read_text().splitlines() if RESULTS.exists() else []


def _run_all(run: _Run, chosen: Sequence[Experiment], jobs: int, common: Path) -> None:
    """Make all missing calls: side by side first, then what wants to be alone."""
    ended: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()

    def work(experiment: Experiment) -> None:
        try:
            for outcome in run_calls(experiment, run.missing(experiment), common):
                ended.put(outcome)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    total = sum(count for experiment in chosen for _, count in run.missing(experiment))
    with tqdm(total=total, unit="trial", smoothing=0.02) as bar:
        for alone in (False, True):
            batch = [experiment for experiment in chosen if experiment.alone is alone and run.missing(experiment)]
            with ThreadPoolExecutor(1 if alone else jobs) as threads:
                for experiment in batch:
                    threads.submit(work, experiment)
                num_running = len(batch)
                while num_running:
                    item = ended.get()
                    if isinstance(item, BaseException):
                        raise item
                    if item is None:
                        num_running -= 1
                        continue
                    run.take(item)
                    bar.update(item.count)
                    bar.set_postfix_str(item.experiment, refresh=False)
                    if item.failure:
                        bar.write(f"{item.experiment} {item.start}: {item.failure}")


def _machine() -> str:
    return (
        f"{date.today()}, {platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"Python {platform.python_version()}."
    )


def _numbers(run: _Run, chosen: Sequence[Experiment]) -> str:
    """Return the number of trials of each guarantee, and of those that failed."""
    trials: dict[str, list[int]] = {}
    for experiment in chosen:
        counts = trials.setdefault(experiment.guarantee, [0, 0])
        for outcome in run.outcomes[experiment.name].values():
            counts[0] += outcome.count
            counts[1] += outcome.failure is not None
    numbers = [f"{name} {count:,}" + f" ({failed} failed)" * bool(failed) for name, (count, failed) in trials.items()]
    return f"{_machine()}\n\n{' · '.join(numbers)}\n"


def _table(run: _Run, chosen: Sequence[Experiment]) -> str:
    lines = [f"{_machine()}\n", "| | what is done | trials | failures | figures |", "|---|---|---:|---:|---|"]
    rows: dict[tuple[str, str], list[Experiment]] = {}
    for experiment in sorted(chosen, key=lambda experiment: (experiment.guarantee[0], int(experiment.guarantee[1:]))):
        rows.setdefault((experiment.guarantee, experiment.what), []).append(experiment)
    for (guarantee, what), experiments in rows.items():
        outcomes = [outcome for experiment in experiments for outcome in run.outcomes[experiment.name].values()]
        num_trials = sum(outcome.count for outcome in outcomes)
        num_failed = sum(outcome.failure is not None for outcome in outcomes)
        lines.append(
            f"| {guarantee} | {what}{_variants(experiments)} | {num_trials:,} | {num_failed} | {joined(outcomes)} |"
        )
    return "\n".join(lines) + "\n"


def _variants(experiments: Sequence[Experiment]) -> str:
    """Return the variants of an experiment in parentheses, or their number if they are many."""
    names = [experiment.variant for experiment in experiments if experiment.variant]
    if len(names) > MAX_NAMED:
        return f" ({len(names)} variants)"
    return f" ({'; '.join(names)})" if names else ""


def _order(chosen: Sequence[Experiment]) -> list[Experiment]:
    return sorted(
        chosen, key=lambda experiment: (experiment.guarantee[0], int(experiment.guarantee[1:]), experiment.name)
    )


def main() -> int:
    """Run what is asked for; 1 if a guarantee was broken."""
    arguments = _arguments()
    if arguments.calls:
        name, calls, *folders = arguments.calls
        make_calls(name, [(start, count) for start, count in json.loads(calls)], *map(Path, folders))
        return 0
    wanted = tuple(prefix for prefix in arguments.only.split(",") if prefix)
    begun = tuple(prefix for prefix in wanted if "." in prefix)  # "R1" is not R10
    chosen = _order(
        [
            experiment
            for experiment in EXPERIMENTS
            if not wanted or experiment.guarantee in wanted or experiment.name.startswith(begun)
        ]
    )
    if arguments.slice:
        chosen = list(filter(is_in_slice, chosen))
    if not chosen:
        sys.exit(f"no experiment {arguments.only}; there are {', '.join(known.name for known in _order(EXPERIMENTS))}")
    run = _Run(chosen, calls_in_slice if arguments.slice else lambda experiment: experiment.calls(arguments.trials))
    if arguments.fresh:
        run.forget()
    run.load()
    with tempfile.TemporaryDirectory(prefix="chordcache-reliability-") as common:
        _run_all(run, chosen, arguments.jobs, Path(common))
    table = _table(run, chosen)
    sys.stdout.write(table)
    if arguments.matrix:
        sys.stdout.write(
            "\n" + matrix({experiment: list(run.outcomes[experiment.name].values()) for experiment in chosen})
        )
    if arguments.write:
        text = arguments.write.read_text()
        numbers = _numbers(run, chosen)
        arguments.write.write_text(NUMBERS.sub(lambda _: numbers, text))
    return 1 if any(_failures(run.outcomes)) else 0


def _failures(outcomes: Mapping[str, Mapping[tuple[int, int], Outcome]]) -> list[str]:
    return [outcome.failure for calls in outcomes.values() for outcome in calls.values() if outcome.failure]


if __name__ == "__main__":
    sys.exit(main())
