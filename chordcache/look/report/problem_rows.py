"""Everything that is wrong with a cache, as one list with what to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from chordcache.building.fix_commands import repair_command
from chordcache.errors import ChordcacheError
from chordcache.look.problems import Problem, problem_of_record, problem_of_video, quarantined
from chordcache.look.report.texts import readable
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.verifying.verify import verify_quickly

FINDING = "finding"
"""Kind of the problems that ``verify`` or the report itself has found"""

_MAX_ROWS = 2000
"""Rows of a list on the page. A browser is slow with more, and the files have all of them"""


@dataclass(eq=False)
class ProblemList:
    """A list that keeps the first problems and counts all."""

    shown: list[Problem] = field(default_factory=list)
    by_cause: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.by_cause.total()

    @property
    def num_hidden(self) -> int:
        """Number of problems that are counted but not shown."""
        return len(self) - len(self.shown)

    def add(self, problem: Problem) -> None:
        """Count a problem, and keep it if there is room, with texts that can be shown."""
        lengths = {"path": 400, "stage": 60, "cause": 60, "message": 600, "remedy": 400, "key": 80}
        shown = {name: readable(getattr(problem, name), length) for name, length in lengths.items()}
        self.by_cause[shown["cause"]] += 1
        if len(self.shown) < _MAX_ROWS:
            self.shown.append(replace(problem, **shown))


class Problems:
    """The problems of a cache or of an index."""

    def __init__(self) -> None:
        self.failures = ProblemList()
        """Files that could not be scanned or cached"""
        self.damaged = ProblemList()
        """Cached videos that lack frames of their source"""
        self.findings = ProblemList()
        """Findings of ``verify``, and artefacts that could not be read for the page"""
        self._files: dict[str, list[str]] = {}
        self.notes: list[str] = []
        """Reasons why something of the page is missing"""

    def __len__(self) -> int:
        return len(self.failures) + len(self.damaged) + len(self.findings)

    def add_quarantine(self, cache: Path) -> None:
        """Take the failures in the quarantine of a cache."""
        try:
            for failure in quarantined(cache):
                self.failures.add(failure)
        except ChordcacheError as error:
            self.notes.append(readable(str(error)))

    def add_entry(self, video: Video | None, record: VideoRecord | None) -> None:
        """Take the damage of a cached video, or the error of the record of another."""
        if video is not None and (damage := problem_of_video(video)) is not None:
            self.damaged.add(damage)
        elif video is None and record is not None and (problem := problem_of_record(record)) is not None:
            self.failures.add(problem)

    def add_unreadable(self, key: str, message: str, cache: Path) -> None:
        """Take an artefact that could not be read for the page, unless ``verify`` has named its file."""
        if any(file in message for file in self._files.get(key, ())):
            return
        self.findings.add(Problem(FINDING, key, "", key, "report", "damaged", message, repair_command(cache)))

    def check(self, cache: Path) -> None:
        """Run ``verify --quick`` and take its findings."""
        try:
            damage = verify_quickly(cache).damage
        except ChordcacheError as error:
            self.notes.append(readable(f"The cache could not be checked: {error}"))
            return
        for finding in damage:
            self._files.setdefault(finding.key or "", []).append(finding.file)
            key, action = finding.key or "", finding.fix_command
            self.findings.add(Problem(FINDING, key, "", finding.file, "verify", finding.kind, finding.message, action))
