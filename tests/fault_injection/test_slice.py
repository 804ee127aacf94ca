"""Some trials of ten experiments; ``make reliability`` runs all of them, ``ARGS=--slice`` a few trials of most."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_injection.experiments import EXPERIMENTS
from fault_injection.harness import run_calls
from fault_injection.slice import SOME_TRIALS, SOME_VARIANTS, calls_in_slice

TEN = (
    "R1.killed_at_random[all]",
    "R4.torn_in_the_middle",
    "R5.lock_of_the_dead",
    "R10.cut_off[mp4]",
    "R11.random_bits[npz]",
    "R13.flip_and_read[lmdb-jpeg]",
    "R22.damaged[h264.ts]",
    "S3.special_files[during build]",
    "S7.no_loader_of_code",
    "S10.parsers[sidecars]",
)
"""One for each kind of fault: kills, torn files, locks, damage of sources and caches, hostile files"""


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("common")


@pytest.mark.parametrize("name", TEN)
def test_guarantee(name: str, common: Path) -> None:
    (chosen,) = (experiment for experiment in EXPERIMENTS if experiment.name == name)
    outcomes = list(run_calls(chosen, calls_in_slice(chosen)[:1], common))
    assert [outcome.failure for outcome in outcomes] == [None]


def test_the_slice_names_existing_variants() -> None:
    names = {(experiment.function.__name__, experiment.variant) for experiment in EXPERIMENTS}
    assert [(name, one) for name, some in SOME_VARIANTS.items() for one in some if (name, one) not in names] == []
    assert SOME_VARIANTS.keys() | SOME_TRIALS.keys() <= {name for name, _ in names}
