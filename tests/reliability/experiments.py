"""Imports every module that holds experiments, so that ``EXPERIMENTS`` is complete."""

from __future__ import annotations

from reliability import crashes, damage, disks, fuzzing, hostile, names, power, reading
from reliability.harness import EXPERIMENTS

__all__ = ["EXPERIMENTS", "crashes", "damage", "disks", "fuzzing", "hostile", "names", "power", "reading"]
