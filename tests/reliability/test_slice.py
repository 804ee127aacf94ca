"""The first trials of every experiment; ``make reliability`` runs them whole."""

from __future__ import annotations

import pytest

from reliability.experiments import EXPERIMENTS
from reliability.harness import Experiment, run_calls


@pytest.mark.slow
@pytest.mark.parametrize("chosen", EXPERIMENTS, ids=lambda each: each.name)
def test_guarantee(chosen: Experiment) -> None:
    outcomes = list(run_calls(chosen, chosen.calls()[: chosen.slice_calls]))
    assert outcomes
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
