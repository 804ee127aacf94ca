"""Imports every module that holds experiments, so that ``EXPERIMENTS`` is complete."""

from __future__ import annotations

from reliability import crashes
from reliability.harness import EXPERIMENTS

__all__ = ["EXPERIMENTS", "crashes"]
