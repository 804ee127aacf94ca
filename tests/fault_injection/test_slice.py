"""Some trials of most experiments; ``make reliability`` runs them whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fault_injection.experiments import EXPERIMENTS
from fault_injection.harness import Experiment, run_calls

SOME_VARIANTS: Mapping[str, Sequence[str]] = {
    "killed_after_each_call": ("npz",),
    "power_cut": ("npz",),
    "edited_while_read": ("overwritten, its mtime put back", "truncated"),
    "cut_off": ("mp4", "mkv", "ts", "flv", "ogv", "hevc"),
    "damaged": ("h264.ts", "h264.fragmented.mp4", "flv1.flv", "hevc.mp4", "msmpeg4.avi", "theora.ogv"),
    "same_answer": ("h264.mp4", "hevc.ts"),
    "tables_that_lie": ("h264.mp4",),
    "every_byte_at_the_edges": (),
    "flip_and_read": ("lmdb-jpeg", "lmdb-mpeg4", "hdf5-gzip"),
    "bad_items": ("fork-2", "spawn-2"),
    "crowd": ("as another user",),
    "stopped": ("scan at work", "build decoding", "build publishing", "verify --repair"),
    "claims": ("600",),
    "any_name": (),
    "hdf5_that_leads_out": ("external storage", "a claim of 512 GiB"),
    "mutants_of_media": (".mp4", ".mkv"),
    "resealed_mutants_of_artefacts": ("lmdb",),
}
"""Experiments that take long, and whose other variants run the same code."""


SOME_TRIALS: Mapping[str, int] = {
    "cut_off": 4,
    "damaged": 32,
    "flip_and_read": 20,
    "mutants_of_artefacts": 100,
    "mutants_of_media": 100,
    "parsers": 100,
    "power_cut": 10,
    "random_bits": 50,
    "resealed_mutants_of_artefacts": 100,
    "same_answer": 16,
    "tables_that_lie": 9,
}
"""Trials of experiments whose call repeats the same kinds of trials at other random places: each kind is tried"""


def is_in_slice(each: Experiment) -> bool:
    """Times are not measured beside other tests."""
    return not each.alone and each.variant in SOME_VARIANTS.get(each.function.__name__, (each.variant,))


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("common")


@pytest.mark.slow
@pytest.mark.parametrize("chosen", list(filter(is_in_slice, EXPERIMENTS)), ids=lambda each: each.name)
def test_guarantee(chosen: Experiment, common: Path) -> None:
    start, count = chosen.calls()[0]
    call = (start, min(count, SOME_TRIALS.get(chosen.function.__name__, count)))
    (outcome,) = run_calls(chosen, [call], common)
    assert outcome.failure is None


def test_the_slice_names_existing_variants() -> None:
    names = {(each.function.__name__, each.variant) for each in EXPERIMENTS}
    assert [(name, one) for name, some in SOME_VARIANTS.items() for one in some if (name, one) not in names] == []
    assert SOME_VARIANTS.keys() | SOME_TRIALS.keys() <= {name for name, _ in names}
