"""Measurement of the ways to feed a training job with clips of the user's own videos."""

from __future__ import annotations

from chordcache.tools.bench.measurement import bench
from chordcache.tools.bench.result import BenchResult, RowResult, as_text
from chordcache.tools.bench.ways import BenchOptions

__all__ = ["BenchOptions", "BenchResult", "RowResult", "as_text", "bench"]
