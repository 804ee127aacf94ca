"""``audit``: what a list or a dataset states about its videos, against the videos themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from chordcache.amounts import counted
from chordcache.building.fix_commands import remedy
from chordcache.engine.choice import Engine
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.errors import printable
from chordcache.index.lists.items import Item, ListOptions
from chordcache.index.lists.write import ListReader, read_list
from chordcache.index.scan import scan
from chordcache.index.walk import Corpus
from chordcache.look.problems import Problem
from chordcache.records import FrameFacts, VideoRecord

_FPS_SHARE = 0.01
"""Largest difference from a stated frame rate. 30 and 29.97 differ by 0.1 %, 25 and 24 by 4 %."""

_DURATION_SHARE, _DURATION_SECONDS = 0.01, 1.0
"""Largest difference from a stated duration: this share of it, or this many seconds. Many lists cut off fractions."""

_SYNC_SECONDS = 0.5
"""[seconds] Least time between the ends of picture and sound that is noted. Of encoders alone, it is below 0.1 s."""

_REPEATED_SHARE, _LEAST_REPEATED = 0.1, 10
"""Share and number of repeated frames that are noted. 30 frames per second made of 24 have a fifth."""

_FAULTS: Mapping[str, str] = {
    "missing": "Fetch the file, or remove it from the list.",
    "link": "Give --follow-symlinks if the target of the link can be trusted.",
    **dict.fromkeys(("frames", "fps", "duration", "sound"), "Correct the list, or fetch the file again."),
}
"""Kind of a fault to what a person does about it. The kind "broken" has the remedy of its cause."""

_NOTES: Mapping[str, str] = {
    "caption": "Add a caption, or remove the item from the list.",
    **dict.fromkeys(("black", "frozen"), "Look at the video: a title or a still shot is not a fault."),
    "repeated": "Look at the video: its frame rate may have been raised by copies.",
    "drift": "Play the end, to hear whether sound and picture agree.",
    "duplicate": "Keep one of them.",
}
"""Kind of a note to what a person does about it. A note need not be a fault: a title is a frozen picture."""


_CLAIMS: Mapping[str, tuple[str, ...]] = {
    "num_frames": ("num_frames", "frames", "frame_count", "n_frames", "nb_frames", "total_frames"),
    "fps": ("fps", "frame_rate", "framerate"),
    "duration_seconds": ("duration_seconds", "duration"),
    "has_sound": ("has_audio", "has_sound"),
}
"""Statement to the columns that make it, in lowercase. The first that the item has counts."""

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Finding:
    """One finding of ``audit``."""

    kind: str
    """"broken", "missing", "link", "frames", "fps", "duration" or "sound"; of a note "caption", "black", "frozen",
    "repeated", "drift" or "duplicate" """
    file: str
    """Root and path of the file, or the path in the list if the file does not exist"""
    got: str
    """Fact about the file"""
    expected: str
    """Statement of the list, or usual fact"""
    action: str
    is_note: bool
    """True if the finding need not be a fault"""

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}: got {self.got}, expected {self.expected}. {self.action}"


@dataclass(frozen=True)
class AuditResult:
    """The result of ``audit``."""

    num_items: int
    """Items of the list, those without a file too"""
    num_files: int
    """Files that exist"""
    num_faults: int
    """Findings about broken or missing files, and about statements that are not true"""
    num_notes: int
    """All other findings"""
    elapsed_seconds: float
    findings: tuple[Finding, ...]


def audit(
    source: str | Path,
    *,
    format: str | None = None,  # the option's name
    videos: str | Path | Sequence[str | Path] = (),
    where: Mapping[str, str] = MappingProxyType({}),
    options: ListOptions | None = None,
    output: str | Path | None = None,
    page: str | Path | None = None,
    jobs: int | Engine | None = None,
    follow_symlinks: bool = False,
    limits: Limits | None = None,
    progress: bool | Display = False,
) -> AuditResult:
    """Decode the videos of a list or a dataset, and compare what it states about them with what they hold.

    Parameters
    ----------
    source : str or Path
        A list, or a folder of a dataset or of videos.
    format : str, optional
        Name of ``LIST_FORMATS``. By default "csv" for a file, "lerobot" for a folder with ``meta/info.json``, and
        "pairs" for another folder.
    videos, where, options
        As in ``index_list``.
    output : str or Path, optional
        Index of the files to write, as that of a scan at level "frames". If it exists, unchanged files are not decoded
        again.
    page : str or Path, optional
        Page of ``report`` to write, with the findings.
    jobs, follow_symlinks, limits, progress
        As in ``scan``.

    Returns
    -------
    AuditResult
        Counts, and the findings in the order of the files. JSON data by ``dataclasses.asdict``.

    Raises
    ------
    UsageError, NotFoundError
        As ``index_list`` and ``scan`` raise them.
    NoSpaceError, WorkersDiedError, StoppedError
        As their names say.
    """
    from chordcache.look.report.make import check_output, report  # not before: it loads what draws

    started = time.monotonic()
    source = Path(source)
    if page is not None:
        check_output(Path(page), Path(output or source), "page")
    format = format or _format_of(source)
    listed = read_list(source, _Listed, format=format, videos=videos, where=where, options=options)
    index = scan(
        listed.corpora(), output=output, level="frames",
        jobs=jobs, follow_symlinks=follow_symlinks, limits=limits, progress=progress,
    )  # fmt: skip
    findings = [
        _finding("missing", printable(path), "no file", f"the file of {listed.unit} {row}")
        for path, row in listed.missing.items()
    ]
    links = set(listed.files)
    copies: dict[str, str] = {}
    for record in index:
        links.remove((record.root, record.path))
        findings += _of_file(record, listed, copies, is_complete=format == "lerobot" and not where)
    findings += [_finding("link", _name(*place), "a link out of its root", "a file in it") for place in sorted(links)]
    if page is not None:  # which has the broken files already
        report(index.path, page, findings=[_problem(finding) for finding in findings if finding.kind != "broken"])
    return AuditResult(
        num_items=listed.num_items,
        num_files=len(listed.files),
        num_faults=sum(not finding.is_note for finding in findings),
        num_notes=sum(finding.is_note for finding in findings),
        elapsed_seconds=round(time.monotonic() - started, 3),
        findings=tuple(findings),
    )


def _format_of(source: Path) -> str:
    if not source.is_dir():
        return "csv"
    return "lerobot" if (source / "meta" / "info.json").exists() else "pairs"


def _name(root: str, path: str) -> str:
    return printable(f"{root}/{path}")


def _finding(kind: str, name: str, got: str, expected: str, action: str = "") -> Finding:
    return Finding(kind, name, got, expected, action or {**_FAULTS, **_NOTES}[kind], kind in _NOTES)


def _problem(finding: Finding) -> Problem:
    """Return a finding for the report page."""
    message = f"got {finding.got}, expected {finding.expected}"
    stage = "note" if finding.is_note else "fault"
    return Problem("audit", "", "", finding.file, stage, finding.kind, message, finding.action)


class _Listed:
    """The items of a list, by their files."""

    def __init__(self, reader: ListReader) -> None:
        self._roots, self.unit = reader.roots, reader.unit
        self.files: dict[tuple[str, str], list[Item]] = {}
        """Root and path of each file to its items"""
        self.missing: dict[str, int] = {}
        """Path of each file that does not exist to its first row"""
        self.num_items, self.has_captions = 0, False
        for item, record in reader.items():
            self.num_items += 1
            if record is None:
                self.missing.setdefault(item.path, item.row)
            else:
                self.files.setdefault((record.root, record.path), []).append(item)
                self.has_captions = self.has_captions or bool(item.captions)
        if not self.files:
            raise reader.nothing()

    def corpora(self) -> list[Corpus]:
        """Return the files of each root that has some."""
        names: dict[str, list[str]] = {}
        for root, path in self.files:
            names.setdefault(root, []).append(path)
        return [Corpus(root, self._roots[root], tuple(paths)) for root, paths in names.items()]


def _of_file(record: VideoRecord, listed: _Listed, copies: dict[str, str], *, is_complete: bool) -> Iterator[Finding]:
    """Yield the findings about a file.

    ``copies`` has the digest of pictures to the first file that has them. ``is_complete`` says that the items of a file
    have all of its frames.
    """
    name, items = _name(record.root, record.path), listed.files[record.root, record.path]
    if record.error is not None:
        cause = record.error_cause or ""
        got = printable(record.error).removeprefix("got ")
        yield _finding("broken", name, got, "a video that decodes", remedy(cause))
        return
    statements: dict[tuple[str, str, str], int] = {}  # each once for all segments of a file
    for item in items:
        for statement in _untrue(item, record):
            statements.setdefault(statement, item.row)
        if listed.has_captions and not item.captions:
            statements.setdefault(("caption", "none", "a caption, as other items have"), item.row)
    for (kind, got, expected), row in statements.items():
        yield _finding(kind, name, got, f"{expected} ({listed.unit} {row})")
    facts = _facts(record)
    last = max((item.segment.end_frame or 0 for item in items if item.segment), default=0)
    if is_complete and 0 < last < facts.num_frames:
        expected = f"{last}, where the last {listed.unit} ends"
        yield _finding("frames", name, counted(facts.num_frames, "frame"), expected)
    first = copies.setdefault(facts.digest, name)
    if first != name:
        yield _finding("duplicate", name, f"the pictures of {first}", "other ones")
    yield from (_finding(kind, name, got, expected) for kind, got, expected in _odd(facts, _seconds(record)))


def _facts(record: VideoRecord) -> FrameFacts:
    assert record.frames is not None  # a record of this level without an error has them
    return record.frames


def _seconds(record: VideoRecord) -> float:
    assert record.packets is not None
    return record.packets.duration_seconds


def _untrue(item: Item, record: VideoRecord) -> Iterator[tuple[str, str, str]]:
    """Yield kind, fact and statement of what an item states and its file does not hold."""
    claims, segment, facts, seconds = stated_in(item), item.segment, _facts(record), _seconds(record)
    num_frames, fps = facts.num_frames, facts.num_frames / seconds if seconds > 0 else 0.0
    shown_frames = counted(num_frames, "frame")
    counts, durations = {num_frames}, [seconds]
    if facts.sound_start_seconds is not None and facts.sound_end_seconds is not None:
        durations.append(max(seconds, facts.sound_end_seconds) - min(0.0, facts.sound_start_seconds))
    if segment is not None:
        start, end = segment.start_frame or 0, segment.end_frame or num_frames
        counts.add(min(end, num_frames) - start)
        durations.append(record.replace(segment=segment).known_seconds or seconds)
        last_seconds = max(segment.start_seconds or 0.0, segment.end_seconds or 0.0)
        if max(start, end) > num_frames:
            yield "frames", shown_frames, f"{max(start, end)}, where its segment ends"
        if last_seconds - seconds > max(_DURATION_SECONDS, _DURATION_SHARE * seconds):
            yield "duration", f"{seconds:.2f} s", f"{last_seconds:.2f} s, where its segment ends"
    is_timed = segment is not None and (segment.start_seconds or segment.end_seconds) is not None
    if claims.num_frames is not None and claims.num_frames not in counts and not is_timed:
        yield "frames", shown_frames, f"{claims.num_frames:g}"
    if claims.fps is not None and num_frames > 1 and abs(fps - claims.fps) > _FPS_SHARE * claims.fps:
        yield "fps", f"{fps:.4g} frames per second", f"{claims.fps:.4g}"
    stated = claims.duration_seconds
    if stated is not None and min(abs(stated - duration) for duration in durations) > max(
        _DURATION_SECONDS, _DURATION_SHARE * stated
    ):
        yield "duration", f"{seconds:.2f} s", f"{stated:.2f} s"
    if claims.has_sound is not None and claims.has_sound != bool(facts.sound_seconds):
        yield "sound", *(("no sound", "sound") if claims.has_sound else ("sound", "no sound"))


def _odd(facts: FrameFacts, seconds: float) -> Iterator[tuple[str, str, str]]:
    """Yield kind, fact and usual value of what is odd in a video that lasts for some seconds."""
    for start, end in facts.black_seconds:
        yield "black", f"black pictures from {start:.2f} to {end:.2f} s", "a picture"
    for start, end in facts.frozen_seconds:
        if not any(low <= start and end <= high for low, high in facts.black_seconds):
            yield "frozen", f"one picture from {start:.2f} to {end:.2f} s", "a change of picture"
    if facts.num_repeated >= max(_LEAST_REPEATED, _REPEATED_SHARE * facts.num_frames):
        got = f"{facts.num_repeated} of {counted(facts.num_frames, 'frame')} that repeat the one before"
        yield "repeated", got, "new pictures"
    if facts.sound_start_seconds is None or facts.sound_end_seconds is None:
        return
    late, span = facts.sound_end_seconds - seconds, facts.sound_end_seconds - facts.sound_start_seconds
    if abs(late) >= _SYNC_SECONDS:
        side = "after" if late > 0 else "before"
        yield "drift", f"sound that ends {abs(late):.2f} s {side} the picture", "the same end"
    if abs(span - facts.sound_seconds) >= _SYNC_SECONDS:
        got = f"samples of {facts.sound_seconds:.2f} s in sound of {span:.2f} s"
        yield "drift", got, "no gaps and no overlaps"


class Stated(NamedTuple):
    """The statements about one item. None is a statement that the list does not make."""

    num_frames: float | None
    fps: float | None
    duration_seconds: float | None
    has_sound: bool | None


def stated_in(item: Item) -> Stated:
    """Return the statements of an item. A value that is not a number above 0, or not a truth value, is none.

    Examples
    --------
    >>> stated_in(Item("a.mp4", extra={"FPS": "25", "duration": "PT10S", "frames": -1, "has_audio": "yes"}))
    Stated(num_frames=None, fps=25.0, duration_seconds=None, has_sound=True)
    """
    stated = {name.lower(): value for name, value in {**item.extra, **item.claims}.items() if value is not None}
    values = {claim: next((stated[name] for name in names if name in stated), None) for claim, names in _CLAIMS.items()}
    has_sound = _TRUTHS.get(str(values.pop("has_sound")).lower())
    return Stated(**{claim: _number(value) for claim, value in values.items()}, has_sound=has_sound)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < math.inf else None
