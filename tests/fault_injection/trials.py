"""``make reliability``: each experiment is a test, whose calls are made in a process of their own.

A call is written to ``RESULTS`` as soon as it ends, and counts until the package or the experiment changes. So a run
that was killed goes on where it was, and makes again what failed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from pathlib import Path

import pytest

from fault_injection.harness import Experiment, digest_of_code, load_experiments, run_calls
from fault_injection.results import COMMON, RESULTS, plan, results
from fault_injection.slice import check_names, is_in_slice


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = load_experiments()
    check_names(chosen)
    if metafunc.config.getoption("slice"):
        chosen = list(filter(is_in_slice, chosen))
    metafunc.parametrize("chosen", chosen, ids=[experiment.name for experiment in chosen])


@pytest.mark.timeout(0)  # a call has a limit of its own
@pytest.mark.filterwarnings("default")
def test_experiment(chosen: Experiment, pytestconfig: pytest.Config) -> None:
    """Make the calls without a result. Nothing else runs beside an experiment that is to run alone."""
    code = digest_of_code(chosen)
    done = {call for call, outcome in results(chosen, pytestconfig).items() if not outcome.failure}
    missing = [call for call in plan(chosen, pytestconfig) if call not in done]
    failures = []
    with RESULTS.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if chosen.alone else fcntl.LOCK_SH)
        for outcome in run_calls(chosen, missing, Path(os.environ[COMMON])):
            file.write(json.dumps({**dataclasses.asdict(outcome), "code": code}) + "\n")
            file.flush()
            failures += [f"trial {outcome.start}: {outcome.failure}"] * (outcome.failure is not None)
    assert not failures, "\n".join(failures)
