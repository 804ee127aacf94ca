"""One offline HTML page of a whole cache: figures, pictures, problems."""

from __future__ import annotations

from chordcache.look.report.make import ReportResult, report

__all__ = ["ReportResult", "report"]
