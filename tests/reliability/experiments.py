"""Imports every module that holds experiments, so that ``EXPERIMENTS`` is complete."""

from __future__ import annotations

from reliability import (
    conditions,
    crashes,
    damage,
    damaged_media,
    disks,
    forged,
    fuzzing,
    hostile,
    locks,
    names,
    parsing,
    poison,
    power,
    readers,
    reading,
    same_answers,
    signals,
    sources,
    tears,
)
from reliability.harness import EXPERIMENTS

__all__ = [
    "EXPERIMENTS",
    "conditions",
    "crashes",
    "damage",
    "damaged_media",
    "disks",
    "forged",
    "fuzzing",
    "hostile",
    "locks",
    "names",
    "parsing",
    "poison",
    "power",
    "readers",
    "reading",
    "same_answers",
    "signals",
    "sources",
    "tears",
]
