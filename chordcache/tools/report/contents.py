"""The contents of a page: one pass over the videos, then the values of the template."""

from __future__ import annotations

import importlib.util
import json
import shlex
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from markupsafe import Markup

from chordcache import __version__
from chordcache.amounts import human_bytes
from chordcache.engine import terminal
from chordcache.errors import ChordcacheError, printable
from chordcache.media.frame_numbers import evenly_spread
from chordcache.tools.report.entries import PER_BLOCK, EntryWriter, try_levels
from chordcache.tools.report.inputs import CacheInput, Entry, IndexInput
from chordcache.tools.report.levels import LEVELS, NO_PICTURES, Level
from chordcache.tools.report.options import MAX_TILES, Options
from chordcache.tools.report.problems import Problems
from chordcache.tools.report.room import cut, escaped_bytes, within
from chordcache.tools.report.rows import FIELDS, ORDERS, measures_of
from chordcache.tools.report.run_rows import RunRow, run_rows
from chordcache.tools.report.texts import for_script, readable
from chordcache.tools.report.totals import Bar, MeasureFile, Totals, bars

_OVERHEAD_BYTES = 150_000
"""Room for scripts and styles (90 kB), charts, absent features, runs and everything else that has few bytes"""

_MAX_CHART_BYTES, _MAX_ABSENT_BYTES = 8_000, 15_000
"""Largest size of a chart and of the list of absent features"""

_NUM_TRIED = 24
"""Videos that are tried at each level before one is chosen"""

_LEGEND = (("motion", "codec motion"), ("luma", "luma change"), ("sound", "sound"))

_MAX_SETTINGS = 20_000
"""Largest size of each part of the config that is shown. It is smaller on a small page, [bytes]"""


class Card(NamedTuple):
    """One figure at the top of the page."""

    name: str
    value: str


class Chart(NamedTuple):
    """A chart of bars at the top of the page."""

    title: str
    bars: list[Bar]
    kind: str
    """Class of the bars in the style"""
    unit: str

    def format(self, value: float) -> str:
        """Return a value for people."""
        return human_bytes(value) if self.unit == "bytes" else f"{value:,.0f}"


class Contents:
    """The contents of a page.

    Parameters
    ----------
    options : Options
    source : CacheInput or IndexInput
        The videos.
    problems : Problems
        Failures and findings so far. Artefacts that cannot be read are added.
    header : mapping
        Header of the cache as JSON data, empty for an index.
    """

    def __init__(
        self, options: Options, source: CacheInput | IndexInput, problems: Problems, header: Mapping[str, Any]
    ) -> None:
        self._options, self._source, self._problems = options, source, problems
        self._settings = list(_settings(header, min(_MAX_SETTINGS, options.max_bytes // 50)))
        self.totals = Totals()
        self._measures = MeasureFile()
        num_tiles = options.num_videos or (len(source) if options.folder else MAX_TILES)
        self._shown = evenly_spread(len(source), num_tiles)
        settings_bytes = sum(escaped_bytes(text) for _, text in self._settings)
        self._room = options.max_bytes - _OVERHEAD_BYTES - settings_bytes - problems.seal(is_cache=options.is_cache)
        self.writer = EntryWriter(source.cache, NO_PICTURES, self._room, len(self._shown))

    def __enter__(self) -> Contents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._measures.close()
        self.writer.close()

    def fill(self, folder: Path | None) -> None:
        """Read all videos once. ``folder`` is where pictures are written that are not inside of the page."""
        self.writer.close()
        level = self._level(folder)
        self.writer = EntryWriter(self._source.cache, level, self._room, len(self._shown), folder)
        places = iter(self._shown.tolist())
        place = next(places, -1)
        with terminal.progress_bar(len(self._source), "video", shown=self._options.progress) as bar:
            for number, entry in enumerate(self._source):
                measures = measures_of(entry)
                if number == place:
                    self._add(entry, measures)
                    place = next(places, -1)
                self.totals.add(entry, measures)
                self._measures.add(measures)
                self._problems.add_entry(entry.video, entry.record)
                bar.update()
        self.writer.flush()
        self._measures.flush()

    def _add(self, entry: Entry, measures: Any) -> None:
        for message in self.writer.add(entry, measures):
            self._problems.add_unreadable(entry.key, message, self._options.path)

    def _level(self, folder: Path | None) -> Level:
        cache = self._source.cache
        if cache is None:
            return NO_PICTURES
        if importlib.util.find_spec("cv2") is None:
            self._problems.notes.append(
                "The page has no pictures, because OpenCV is missing: pip install 'chordcache[cv]'"
            )
            return NO_PICTURES
        if folder is not None:
            return LEVELS[1]
        tried = [self._source.at(int(place)) for place in evenly_spread(len(self._source), _NUM_TRIED)]
        return try_levels(cache, [entry for entry in tried if entry is not None], len(self._shown), self._room)

    def context(self) -> dict[str, Any]:
        """Return the values of the template."""
        self._histograms = self._measures.histograms()
        problems = self._problems
        is_cache = self._options.is_cache
        return {
            "title": readable(self._options.path.absolute().name, 120),
            "is_cache": is_cache,
            "cards": self._cards(),
            "notes": problems.notes,
            "charts": self._charts(),
            "runs": self._runs(),
            "filters": [
                ("label", "Label", "All labels", self.writer.labels.most_common()),
                ("trait", "Property", "All properties", self.writer.traits.most_common()),
            ],
            "orders": [(value, name) for value, name in ORDERS if value.lstrip("-") in self._known_fields()],
            "legend": [(name, text) for name, text in _LEGEND if name in self._known_fields()],
            "has_histograms": bool(self._histograms),
            "failures": problems.failures,
            "failures_file": "quarantine.jsonl in the cache" if is_cache else "the index",
            "damaged": problems.damaged,
            "findings": problems.findings,
            "checked": problems.checked,
            "num_problems": len(problems),
            "absent": self._absent(),
            "settings": self._settings,
            "version": __version__,
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "spent": self._spent(),
            "data": Markup(for_script(self._data())),  # JSON that cannot end its element
            "rows": self.writer.rows(),
            "blocks": self.writer.blocks(),
        }

    def _cards(self) -> list[Card]:
        totals, problems = self.totals, self._problems
        hours = totals.seconds / 3600
        length = Card("hours", f"{hours:,.{0 if hours >= 100 else 1}f}")
        if hours < 1:
            length = (
                Card("minutes", f"{60 * hours:.1f}") if hours * 60 >= 2 else Card("seconds", f"{totals.seconds:.1f}")
            )
        found = [
            Card("videos", f"{totals.num_videos:,}"),
            length,
            Card("frames", f"{totals.num_frames:,}"),
            Card("on disk", human_bytes(totals.num_bytes)),
            Card("failures", f"{len(problems.failures):,}"),
        ]
        if totals.num_damaged:
            found.append(Card("damaged sources", f"{totals.num_damaged:,}"))
        return found

    def _charts(self) -> list[Chart]:
        causes = bars(Counter({readable(name, 60): n for name, n in self._problems.failures.by_cause.items()}))
        labels = bars(Counter({readable(name, 80): n for name, n in self.totals.labels.most_common(12)}))
        shown = [
            Chart("Bytes by feature and tier", self.totals.bytes_by_feature(), "", "bytes"),
            Chart("Failures by cause", causes, "bad-bar", "count"),
            Chart("Most common labels", labels, "", "count"),
        ]
        return [chart._replace(bars=within(chart.bars, _bar_bytes, _MAX_CHART_BYTES)) for chart in shown]

    def _absent(self) -> list[tuple[str, int]]:
        """Return the most common reasons why features are absent."""
        found = [(readable(reason, 300), count) for reason, count in self.totals.absent.most_common(100)]
        return within(found, lambda each: escaped_bytes(each[0]) + 100, _MAX_ABSENT_BYTES)

    def _known_fields(self) -> set[str]:
        """Return the fields by which videos can be sorted."""
        return {"path", *self._measures.known, *(["labels"] if self.writer.labels else [])}

    def _runs(self) -> list[RunRow]:
        """Return the latest runs, the last one first."""
        if not self._options.is_cache:
            return []
        try:
            return run_rows(self._options.path)
        except ChordcacheError as error:
            self._problems.notes.append(readable(str(error)))
            return []

    def _data(self) -> dict[str, Any]:
        """Return what the page's script needs besides the videos."""
        shared, folder = self.writer.shared, self._options.folder
        path = printable(self._options.path)
        return {
            "fields": FIELDS,
            "labels": shared.labels.all(),
            "traits": shared.traits.all(),
            "facts": shared.facts.all(),
            "per_block": PER_BLOCK,
            "histograms": self._histograms,
            "folder": urllib.parse.quote(folder.name) if folder else None,
            "command": f"chordcache show {shlex.quote(path)}" if self._options.is_cache else None,
            "sample": self._sample(),
            "empty": "no frames" if self.writer.level is not NO_PICTURES else "no pictures on this page",
        }

    def _sample(self) -> str | None:
        num_rows, num_videos = self.writer.counts["rows"], self.totals.num_videos
        return f"a sample of {num_videos:,}" if num_rows < num_videos else None

    def _spent(self) -> str:
        """Return how the bytes of the page were spent."""
        counts, limit = self.writer.counts, human_bytes(self._options.max_bytes)
        num_rows = counts["rows"]
        if self._source.cache is None:
            return "The page is of an index, which has no pictures."
        where = "in files beside the page" if self._options.folder else f"within the limit of {limit}"
        parts = [f"{self.writer.level.name.capitalize()} of {num_rows:,} videos, {where}."]
        if num_rows < self.totals.num_videos:
            parts.append(f"They are a sample of {self.totals.num_videos:,}; all figures are of all.")
        if counts["without picture"]:
            parts.append(f"{counts['without picture']:,} pictures did not fit.")
        if counts["without details"]:
            parts.append(f"Curves and facts of {counts['without details']:,} videos did not fit.")
        if self.writer.level in LEVELS[2:] and not self._options.folder:
            parts.append("A larger --max-mb, fewer --videos or --folder have room for more.")
        return " ".join(parts)


def _bar_bytes(bar: Bar) -> int:
    return 2 * escaped_bytes(bar.name) + 300


def _settings(header: Mapping[str, Any], max_bytes: int) -> Iterable[tuple[str, str]]:
    """Yield title and text of the parts of a cache's header, each within a number of bytes."""
    for name in ("config", "roots", "features", "versions"):
        if header.get(name):
            text = json.dumps(header[name], indent=2, ensure_ascii=False)
            yield name.capitalize(), cut("\n".join(readable(line, 400) for line in text.split("\n")), max_bytes)
