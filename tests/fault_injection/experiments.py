"""Imports every module that holds experiments, so that ``EXPERIMENTS`` is complete."""

from __future__ import annotations

from fault_injection import (
    concurrent_readers,
    conditions,
    crashes,
    crashing_inputs,
    damage,
    damaged_media,
    damaged_reads,
    disks,
    filenames,
    forged_metadata,
    forged_sidecars,
    fuzz,
    hostile,
    locks,
    parsing,
    power_cut,
    received_caches,
    same_answers,
    signals,
    sources,
    torn_files,
)
from fault_injection.harness import EXPERIMENTS

__all__ = [
    "EXPERIMENTS",
    "concurrent_readers",
    "conditions",
    "crashes",
    "crashing_inputs",
    "damage",
    "damaged_media",
    "damaged_reads",
    "disks",
    "filenames",
    "forged_metadata",
    "forged_sidecars",
    "fuzz",
    "hostile",
    "locks",
    "parsing",
    "power_cut",
    "received_caches",
    "same_answers",
    "signals",
    "sources",
    "torn_files",
]
