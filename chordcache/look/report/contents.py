"""The contents of a page: one pass over the videos, then the values of the template."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from chordcache import __version__
from chordcache.amounts import counted, exact_duration, human_bytes
from chordcache.building.fix_commands import repair_command
from chordcache.engine import terminal
from chordcache.errors import ChordcacheError, printable
from chordcache.look.problems import Problem, problem_of_record, quarantined
from chordcache.look.report.curves import MOTION
from chordcache.look.report.inputs import Entry, ReportInput
from chordcache.look.report.rows import (
    FIELDS,
    NUM_BINS,
    ORDERS,
    MeasureTable,
    Shared,
    details_of,
    for_script,
    measures_of,
    readable,
    row_of,
)
from chordcache.look.summary import Totals
from chordcache.media.frame_numbers import evenly_spread
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage.run_log import Run, read_runs
from chordcache.verifying.findings import Leak
from chordcache.verifying.verify import verify_quickly

_PER_BLOCK = 8
"""Videos whose details are one script element. The page parses an element when one of its videos is first seen"""

_LEGEND = (("motion", "codec motion"), ("luma", "luma change"), ("sound", "sound"))

_MAX_RUNS = 30
"""Lines of the table of runs"""

_FINDING = "finding"
"""Kind of the problems that ``verify`` or the report itself has found"""

_MAX_ROWS = 2000
"""Rows of a list on the page. A browser is slow with more, and the files have all of them"""

_MAX_OPTIONS = 2000
"""Entries of a list of filters"""

_MAX_LINES = 400
"""Lines of each part of the config that is shown"""


@dataclass(eq=False)
class ProblemList:
    """A list that keeps the first problems and counts all."""

    shown: list[Problem] = field(default_factory=list)
    by_cause: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.by_cause.total()

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
        self.findings = ProblemList()
        """Findings of ``verify``, and artefacts that could not be read for the page"""
        self._files: dict[str, list[str]] = {}
        self.notes: list[str] = []
        """Reasons why something of the page is missing"""

    def __len__(self) -> int:
        return len(self.failures) + len(self.findings)

    def add_entry(self, video: Video | None, record: VideoRecord | None) -> None:
        """Take the error of the record of a video that is not cached."""
        if video is None and record is not None and (problem := problem_of_record(record)) is not None:
            self.failures.add(problem)

    def add_unreadable(self, key: str, message: str, cache: Path) -> None:
        """Take an artefact that could not be read for the page, unless ``verify`` has named its file."""
        if any(file in message for file in self._files.get(key, ())):
            return
        self.findings.add(Problem(_FINDING, key, "", key, "report", "damaged", message, repair_command(cache)))

    def check(self, cache: Path) -> None:
        """Take the failures in the quarantine of a cache, and the findings of ``verify --quick``."""
        try:
            for failure in quarantined(cache):
                self.failures.add(failure)
        except ChordcacheError as error:
            self.notes.append(readable(str(error)))
        try:
            damage = verify_quickly(cache).damage
        except ChordcacheError as error:
            self.notes.append(readable(f"The cache could not be checked: {error}"))
            return
        for finding in damage:
            self._files.setdefault(finding.key or "", []).append(finding.file)
            key, action = finding.key or "", finding.fix_command
            self.findings.add(Problem(_FINDING, key, "", finding.file, "verify", finding.kind, finding.message, action))


class Contents:
    """The contents of the page of a cache or an index. Artefacts that cannot be read are added to ``problems``."""

    def __init__(self, path: Path, source: ReportInput, problems: Problems, header: Mapping[str, Any]) -> None:
        self._path, self._source, self._problems = path, source, problems
        self._is_cache = source.cache is not None
        self._settings = list(_settings(header))
        self.totals, self._measures = Totals(), MeasureTable()
        has_opencv = importlib.util.find_spec("cv2") is not None
        if self._is_cache and not has_opencv:
            problems.notes.append("The page has no pictures without OpenCV: pip install 'chordcache[build]'")
        self.has_pictures = self._is_cache and has_opencv
        self._shared = Shared()
        self.rows: list[str] = []
        """JSON of the row of each video that the page shows"""
        self._details: list[str] = []
        """JSON of its details"""

    def fill(self, num_tiles: int, *, shown: bool) -> None:
        """Read all videos once, and make tiles of some. ``shown`` says whether a progress bar is."""
        chosen = set(evenly_spread(len(self._source), num_tiles).tolist())
        with terminal.progress_bar(len(self._source), "video", shown=shown) as bar:
            for number, entry in enumerate(self._source):
                measures = measures_of(entry)
                if number in chosen:
                    self._add_tile(entry, measures)
                if entry.video is not None:
                    self.totals.add_video(entry.video)
                elif entry.record is not None:
                    self.totals.add_record(entry.record)
                self._measures.add(measures)
                self._problems.add_entry(entry.video, entry.record)
                bar.update()

    def _add_tile(self, entry: Entry, measures: dict[str, float]) -> None:
        """Add a tile. "motion" is added to ``measures`` if the motion vectors are read for the picture."""
        details = details_of(entry, self._shared)
        if entry.video is not None and self._source.cache is not None and self.has_pictures:
            from chordcache.look.report.video_pictures import picture_of  # it needs OpenCV

            picture, mean_motion_px = picture_of(self._source.cache, entry.video)
            if "curves" in picture:
                measures["motion"] = mean_motion_px
                others = [curve for curve in details.get("curves", ()) if curve[0] != MOTION]
                details["curves"] = picture["curves"] + others
            details = picture | details
        problems: list[str] = details.get("problems", [])
        for message in problems:
            self._problems.add_unreadable(entry.key, message, self._path)
        self.rows.append(for_script(row_of(entry, measures, problems, self._shared)))
        self._details.append(for_script(details))

    def pair_of(self, leak: Leak) -> dict[str, str]:
        """Return the names of two videos that show the same seconds, and their picture, "" without OpenCV."""
        picture = ""
        if self._source.cache is not None and self.has_pictures:
            from chordcache.look.report.video_pictures import picture_of_pair  # it needs OpenCV

            picture = picture_of_pair(self._source.cache, leak)
        return {"path": readable(leak.train_path, 400), "text": readable(str(leak), 600), "picture": picture}

    def _blocks(self) -> Iterator[Markup]:
        """Yield the script elements of all details."""
        for start in range(0, len(self._details), _PER_BLOCK):
            details = ",".join(self._details[start : start + _PER_BLOCK])
            yield Markup(f'<script type="application/json" id="b{start // _PER_BLOCK}">[{details}]</script>\n')

    def context(self) -> dict[str, Any]:
        """Return the values of the template."""
        self._histograms = self._measures.histograms()
        problems, sample, videos = self._problems, self._sample(), counted(len(self.rows), "video")
        shown = f"It shows {videos}, {sample}; all figures are of all. More --videos show more."
        return {
            "title": readable("/".join(self._path.resolve().parts[-2:]).lstrip("/"), 120),
            "num_videos": self.totals.num_videos,
            "is_cache": self._is_cache,
            "cards": self._cards(),
            "notes": problems.notes,
            "charts": self._charts(),
            "runs": self._runs(),
            "filters": [
                ("label", "Label", "All labels", self._shared.labels.counts.most_common(_MAX_OPTIONS)),
                ("trait", "Property", "All properties", self._shared.traits.counts.most_common(_MAX_OPTIONS)),
            ],
            "orders": [(value, name) for value, name in ORDERS if value.lstrip("-") in self._known_fields()],
            "legend": [(name, text) for name, text in _LEGEND if name in self._known_fields()],
            "has_histograms": bool(self._histograms),
            "failures": problems.failures,
            "failures_file": "quarantine.jsonl in the cache" if self._is_cache else "the index",
            "findings": problems.findings,
            "num_problems": len(problems),
            "absent": [(readable(reason, 300), count) for reason, count in self.totals.absent.most_common(100)],
            "settings": self._settings,
            "version": __version__,
            "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "shown": shown if sample else "",
            "data": Markup(for_script(self._data())),  # JSON that cannot end its element
            "rows": Markup(",\n".join(self.rows)),
            "blocks": self._blocks(),
        }

    def _cards(self) -> list[tuple[str, str]]:
        """Return name and value of the figures at the top of the page."""
        totals = self.totals
        hours, minutes = totals.seconds / 3600, totals.seconds / 60
        if minutes < 2:
            length = "seconds", f"{totals.seconds:.1f}"
        else:
            length = ("minutes", f"{minutes:.1f}") if hours < 1 else ("hours", f"{hours:,.{int(hours < 100)}f}")
        return [
            ("videos", f"{totals.num_videos:,}"),
            length,
            ("frames", f"{totals.num_frames:,}"),
            ("on disk", human_bytes(totals.bytes.total())),
            ("failures", f"{len(self._problems.failures):,}"),
        ]

    def _charts(self) -> list[tuple[str, str, list[tuple[str, str, float]]]]:
        """Return title, class in the style, and bars of the charts at the top of the page."""
        causes = {readable(name, 60): n for name, n in self._problems.failures.by_cause.items()}
        labels = {readable(name, 80): n for name, n in self.totals.labels.most_common(12)}
        return [
            ("Bytes by feature and tier", "", _bars(self.totals.bytes, human_bytes)),
            ("Failures by cause", "bad-bar", _bars(causes)),
            ("Most common labels", "", _bars(labels)),
        ]

    def _known_fields(self) -> set[str]:
        """Return the fields by which videos can be sorted."""
        return {"path", *self._measures.known, *(["labels"] if self._shared.labels.counts else [])}

    def _runs(self) -> list[dict[str, Any]]:
        """Return the latest runs, the last one first."""
        if not self._is_cache:
            return []
        try:
            runs = deque(read_runs(self._path), maxlen=_MAX_RUNS)
        except ChordcacheError as error:
            self._problems.notes.append(readable(str(error)))
            return []
        speeds = [run.counts.get("num_frames", 0) / max(run.elapsed_seconds, 1e-3) for run in runs]
        fastest = max(speeds, default=0.0) or 1.0
        return [_row_of_run(run, speed, speed / fastest) for run, speed in zip(runs, speeds, strict=True)][::-1]

    def _data(self) -> dict[str, Any]:
        """Return what the page's script needs besides the videos."""
        shared = self._shared
        path = printable(self._path)
        return {
            "fields": FIELDS,
            "labels": list(shared.labels.counts),
            "traits": list(shared.traits.counts),
            "facts": list(shared.facts.counts),
            "per_block": _PER_BLOCK,
            "histograms": self._histograms,
            "num_bins": NUM_BINS,
            "command": f"chordcache show {shlex.quote(path)}" if self._is_cache else None,
            "sample": self._sample(),
            "empty": "no frames" if self.has_pictures else "no pictures on this page",
        }

    def _sample(self) -> str | None:
        """Return words about the videos that have a tile, or None if all have one."""
        num_videos = self.totals.num_videos
        return f"a sample of {num_videos:,}" if len(self.rows) < num_videos else None


def _settings(header: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield title and text of the parts of a cache's header."""
    for name in ("config", "roots", "features", "versions"):
        if header.get(name):
            value = _config_in_use(header) if name == "config" else header[name]
            lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
            kept = [readable(line, 400) for line in lines[:_MAX_LINES]]
            yield name.capitalize(), "\n".join(kept if len(lines) <= _MAX_LINES else [*kept, "…"])


def _config_in_use(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a cache without the sections of features and tiers that it does not have."""
    tiers = header["features"]
    names = {name for features in tiers.values() for name in features}
    config = {name: section for name, section in header["config"].items() if name != "hdf5" or name in tiers}
    config["features"] = {name: section for name, section in config["features"].items() if name in names}
    return config


def _row_of_run(run: Run, speed: float, share: float) -> dict[str, Any]:
    """Return a line of the table of runs: texts, and the speed as a share of the fastest run's [percent]."""
    counts = run.counts
    num_videos = counts.get("num_videos", counts.get("num_inputs", counts.get("num_removed", 0)))
    num_failed = counts.get("num_failed", counts.get("num_damaged", 0) + counts.get("num_missing", 0))
    return {
        "when": readable(run.started[:16].replace("T", " "), 20),
        "command": readable(run.command, 20),
        "videos": f"{num_videos:,}",
        "failed": f"{num_failed:,}",
        "took": exact_duration(run.elapsed_seconds),
        "speed": f"{speed:,.0f} frames/s" if speed else "",
        "share": round(100 * share, 2),
        "outcome": readable(run.outcome, 40),
    }


def _bars(counts: Mapping[str, int], text_of: Callable[[int], str] = "{:,}".format) -> list[tuple[str, str, float]]:
    """Return the most common names, with the text of each count and the length of its bar, 0 to 100."""
    largest = max(counts.values(), default=0) or 1
    return [(name, text_of(count), round(100 * count / largest, 2)) for name, count in Counter(counts).most_common(20)]
