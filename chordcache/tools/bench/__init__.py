"""Measurement of the ways to feed a training job with clips of the user's own videos."""

from __future__ import annotations

from chordcache.tools.bench.ladder import bench
from chordcache.tools.bench.options import BenchOptions
from chordcache.tools.bench.page import as_html
from chordcache.tools.bench.result import BenchResult, RowResult, StageResult
from chordcache.tools.bench.text import as_markdown, as_text

__all__ = [
    "BenchOptions",
    "BenchResult",
    "RowResult",
    "StageResult",
    "as_html",
    "as_markdown",
    "as_text",
    "bench",
]
