"""The slice: the first call of most experiments, with fewer variants and trials. ``make reliability ARGS=--slice``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fault_injection.harness import Experiment

SOME_VARIANTS: Mapping[str, Sequence[str]] = {
    "killed_after_each_call": ("npz",),
    "power_cut": ("npz",),
    "edited_while_read": ("overwritten, its mtime put back", "truncated"),
    "cut_off": ("mp4", "mkv", "ts", "flv", "ogv", "hevc"),
    "damaged": ("h264.ts", "h264.fragmented.mp4", "flv1.flv", "hevc.mp4", "msmpeg4.avi", "theora.ogv"),
    "same_answer": ("h264.mp4", "hevc.ts"),
    "tables_that_lie": ("h264.mp4",),
    "every_byte_at_the_edges": (),
    "flip_and_read": ("lmdb-jpeg", "lmdb-mpeg4", "hdf5-flow"),
    "forged_sidecars": ("jpeg",),
    "bad_items": ("fork-2",),
    "crowd": ("as another user",),
    "stopped": ("scan at work", "build, from its start", "build publishing", "verify --repair"),
    "claims": ("600",),
    "tmpfs_fills_up": ("hdf5",),
    "forks": ("lmdb", "hdf5"),
    "repair": ("lmdb",),
    "levels": ("hdf5",),
    "special_files": ("during build",),
    "indexes_that_lead_out": ("json", "csv"),
    "any_name": ("csv",),
    "hdf5_that_leads_out": ("external storage", "a claim of 512 GiB"),
    "mutants_of_media": (".mp4", ".mkv"),
    "resealed_mutants_of_artefacts": ("lmdb", "hdf5"),
}
"""Experiments that take long, and whose other variants run the same code."""


SOME_TRIALS: Mapping[str, int] = {
    "any_name": 60,
    "bits_of_packs": 10,
    "cut_off": 4,
    "damaged": 32,
    "flip_and_read": 20,
    "forged_sidecars": 40,
    "ignored": 3,
    "killed_after_each_call": 9,
    "killed_at_random": 6,
    "links": 3,
    "mutants_of_artefacts": 100,
    "mutants_of_media": 100,
    "packing_killed": 3,
    "parsers": 100,
    "power_cut": 10,
    "random_bits": 50,
    "random_walk": 5,
    "repair": 3,
    "resealed_mutants_of_artefacts": 100,
    "same_answer": 16,
    "stopped": 4,
    "tables_that_lie": 9,
    "tmpfs_fills_up": 2,
    "waiting": 2,
}
"""Trials of experiments that repeat the same kinds of trials at other random places: each kind is tried"""


def check_names(experiments: Sequence[Experiment]) -> None:
    """Raise if a name of this module is not that of an experiment or of a variant."""
    names = {(experiment.function.__name__, experiment.variant) for experiment in experiments}
    assert [(name, one) for name, some in SOME_VARIANTS.items() for one in some if (name, one) not in names] == []
    assert SOME_VARIANTS.keys() | SOME_TRIALS.keys() <= {name for name, _ in names}


def is_in_slice(experiment: Experiment) -> bool:
    """Return whether the slice has the experiment. Times are not measured beside others."""
    return not experiment.alone and experiment.variant in SOME_VARIANTS.get(
        experiment.function.__name__, (experiment.variant,)
    )


def calls_in_slice(experiment: Experiment) -> list[tuple[int, int]]:
    """(first trial, number of trials) of each call that the slice makes: one, but for those of single trials."""
    return experiment.calls(SOME_TRIALS.get(experiment.function.__name__, min(experiment.batch, experiment.trials)))
