"""Everything that is wrong with a cache, as one list with what to do."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chordcache.building.fix_commands import repair_command
from chordcache.errors import ChordcacheError, NotFoundError, UsageError, printable
from chordcache.look.problems import Problem, problem_of_record, problems_of_video, quarantined
from chordcache.look.report.texts import readable
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.verifying.findings import Damage
from chordcache.verifying.verify import verify_quickly

_MAX_ROWS = 2000
"""Rows of a list on the page. A browser is slow with more, and the files have all of them"""

_MESSAGE = 600
"""Characters of a message"""


@dataclass(frozen=True)
class Line:
    """A line of one of the lists."""

    name: str
    """File of the source or of the cache"""
    stage: str
    cause: str
    message: str
    action: str
    """Next step, as a sentence or a command"""
    key: str = ""
    """Key of a cached video, if one is concerned"""


@dataclass(eq=False)
class ProblemList:
    """A list that keeps the first problems and counts all."""

    shown: list[Line] = field(default_factory=list)
    by_cause: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.by_cause.total()

    @property
    def num_hidden(self) -> int:
        """Number of problems that are counted but not shown."""
        return len(self) - len(self.shown)

    def add(self, problem: Line) -> None:
        """Count a problem, and keep it if there is room."""
        self.by_cause[problem.cause] += 1
        if len(self.shown) < _MAX_ROWS:
            self.shown.append(problem)


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
        self.checked = ""
        """Source of the findings, for people"""

    def __len__(self) -> int:
        return len(self.failures) + len(self.damaged) + len(self.findings)

    def add_quarantine(self, cache: Path) -> None:
        """Take the failures in the quarantine of a cache."""
        try:
            for failure in quarantined(cache):
                _add(self.failures, failure)
        except ChordcacheError as error:
            self.notes.append(readable(str(error)))

    def add_entry(self, video: Video | None, record: VideoRecord | None) -> None:
        """Take the damage of a cached video, or the error of the record of another."""
        if video is not None:
            for damage in problems_of_video(video, with_absent=False):
                _add(self.damaged, damage)
        elif record is not None and (problem := problem_of_record(record)) is not None:
            _add(self.failures, problem)

    def add_unreadable(self, key: str, message: str, cache: Path) -> None:
        """Take an artefact that could not be read for the page, unless ``verify`` has named its file."""
        if any(file in message for file in self._files.get(key, ())):
            return
        action = repair_command(cache)
        self.findings.add(Line(key, "report", "damaged", readable(message, _MESSAGE), action, key))

    def add_damage(self, damage: list[Damage]) -> None:
        """Take findings of ``verify``."""
        for finding in damage:
            self._files.setdefault(finding.key or "", []).append(finding.file)
            text = readable(finding.message, _MESSAGE)
            action, key = readable(finding.fix_command, 400), readable(finding.key or "", 80)
            self.findings.add(
                Line(readable(finding.file, 400), "verify", readable(finding.kind, 60), text, action, key)
            )


def _add(found: ProblemList, problem: Problem) -> None:
    name, text = readable(problem.path, 400), readable(problem.message, _MESSAGE)
    key = problem.key if problem.kind == "damaged" else ""
    found.add(Line(name, readable(problem.stage, 60), readable(problem.cause, 60), text, problem.remedy, key))


def check(cache: Path, problems: Problems) -> None:
    """Run ``verify --quick`` and take its findings."""
    problems.checked = "chordcache verify --quick, run for this page"
    try:
        problems.add_damage(verify_quickly(cache).damage)
    except ChordcacheError as error:
        problems.notes.append(readable(f"The cache could not be checked: {error}"))


def read_findings(path: Path) -> list[Damage]:
    """Read the output of ``chordcache verify --json``.

    Raises
    ------
    NotFoundError
        If the file cannot be read.
    UsageError
        If it is not such an output.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(f"verify: cannot read '{printable(path)}': {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _not_findings(path) from None
    if not isinstance(data, list):
        raise _not_findings(path)
    return [_finding(path, finding) for finding in data]


def _finding(path: Path, data: Any) -> Damage:
    try:
        finding = Damage(**data)
    except TypeError:
        raise _not_findings(path) from None
    texts = (finding.kind, finding.file, finding.message, finding.fix_command, finding.key or "", finding.record or "")
    if not all(isinstance(text, str) for text in texts):
        raise _not_findings(path)
    return finding


def _not_findings(path: Path) -> UsageError:
    return UsageError(f"verify: got '{printable(path)}', expected the output of 'chordcache verify --json'")
