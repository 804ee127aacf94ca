"""Plugin of pytest for ``make reliability``: its options, the results that are kept, and one table with all figures."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from fault_injection.harness import (
    REPOSITORY,
    Experiment,
    Outcome,
    by_guarantee,
    digest_of_code,
    joined,
    load_experiments,
    matrix,
)
from fault_injection.slice import calls_in_slice

RESULTS = REPOSITORY / ".reliability.jsonl"

COMMON, SINCE = "RELIABILITY_COMMON", "RELIABILITY_SINCE"
"""Variables of a run: the folder that its experiments share, and the first byte of the results that count"""

MAX_NAMED = 8
"""Number of variants that a row of the table names"""

NUMBERS = re.compile(r"(?<=<!-- trials -->\n).*?(?=<!-- end of trials -->)", re.DOTALL)

Results = Mapping[tuple[int, int], Outcome]
"""First trial and number of trials of each call, and its outcome"""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("make reliability", "choose experiments with -k, such as -k 'R1. or S10.'")
    group.addoption("--slice", action="store_true", help="a few trials of most experiments, for CI")
    group.addoption("--trials", type=int, metavar="N", help="of each experiment, instead of its own number")
    group.addoption("--fresh", action="store_true", help="make all calls, also those with a result")
    group.addoption("--matrix", action="store_true", help="also tabulate the kinds of trials one by one")
    group.addoption("--write", type=Path, metavar="FILE", help="put the numbers of trials between the marks in FILE")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        RESULTS.touch()
        os.environ[SINCE] = str(RESULTS.stat().st_size if config.getoption("fresh") else 0)
        os.environ[COMMON] = tempfile.mkdtemp(prefix="chordcache-reliability-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ[COMMON], ignore_errors=True))


def plan(chosen: Experiment, config: pytest.Config) -> list[tuple[int, int]]:
    """Return (first trial, number of trials) of each call that the options ask for."""
    return calls_in_slice(chosen) if config.getoption("slice") else chosen.calls(config.getoption("trials"))


def results(chosen: Experiment, config: pytest.Config) -> Results:
    """Return the outcomes of the planned calls that were made with the present code."""
    code, by_call = digest_of_code(chosen), {}
    with RESULTS.open() as file:
        file.seek(int(os.environ[SINCE]))
        for data in map(json.loads, file):
            if (data.pop("code"), data["experiment"]) == (code, chosen.name):
                by_call[data["start"], data["count"]] = Outcome(**data)
    return {call: by_call[call] for call in plan(chosen, config) if call in by_call}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of the experiments that were run."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    names = {report.nodeid.partition("[")[2].removesuffix("]") for report in reports}
    outcomes = {e: list(results(e, config).values()) for e in load_experiments() if e.name in names}
    terminalreporter.write(f"\n{_table(outcomes)}")
    if config.getoption("matrix"):
        terminalreporter.write(f"\n{matrix(outcomes)}")
    if config.getoption("write"):
        text = config.getoption("write").read_text()
        numbers = _numbers(outcomes)
        config.getoption("write").write_text(NUMBERS.sub(lambda _: numbers, text))


def _machine() -> str:
    return (
        f"{date.today()}, {platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"Python {platform.python_version()}."
    )


def _numbers(outcomes: Mapping[Experiment, list[Outcome]]) -> str:
    """Return the number of trials of each guarantee, and of those that failed."""
    trials: dict[str, list[int]] = {}
    for experiment, calls in sorted(outcomes.items(), key=lambda item: by_guarantee(item[0])):
        counts = trials.setdefault(experiment.guarantee, [0, 0])
        counts[0] += sum(outcome.count for outcome in calls)
        counts[1] += sum(outcome.failure is not None for outcome in calls)
    numbers = [f"{name} {count:,}" + f" ({failed} failed)" * bool(failed) for name, (count, failed) in trials.items()]
    return f"{_machine()}\n\n{' · '.join(numbers)}\n"


def _table(outcomes: Mapping[Experiment, list[Outcome]]) -> str:
    lines = [f"{_machine()}\n", "| | what is done | trials | failures | figures |", "|---|---|---:|---:|---|"]
    rows: dict[tuple[str, str], list[Experiment]] = {}
    for experiment in sorted(outcomes, key=by_guarantee):
        rows.setdefault((experiment.guarantee, experiment.what), []).append(experiment)
    for (guarantee, what), experiments in rows.items():
        calls = [outcome for experiment in experiments for outcome in outcomes[experiment]]
        num_trials = sum(outcome.count for outcome in calls)
        num_failed = sum(outcome.failure is not None for outcome in calls)
        lines.append(
            f"| {guarantee} | {what}{_variants(experiments)} | {num_trials:,} | {num_failed} | {joined(calls)} |"
        )
    return "\n".join(lines) + "\n"


def _variants(experiments: list[Experiment]) -> str:
    """Return the variants of an experiment in parentheses, or their number if they are many."""
    names = [experiment.variant for experiment in experiments if experiment.variant]
    if len(names) > MAX_NAMED:
        return f" ({len(names)} variants)"
    return f" ({'; '.join(names)})" if names else ""
