"""The first trials of every experiment; ``make reliability`` runs them whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliability.experiments import EXPERIMENTS
from reliability.harness import Experiment, run_calls


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("common")


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [each for each in EXPERIMENTS if each.slice_calls], ids=lambda each: each.name)
def test_guarantee(chosen: Experiment, common: Path) -> None:
    outcomes = list(run_calls(chosen, chosen.calls()[: chosen.slice_calls], common))
    assert outcomes
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
