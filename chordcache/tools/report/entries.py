"""The videos of a page, one after the other: written to temporary files, within the size of the page."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from markupsafe import Markup

from chordcache.read.cache import Cache
from chordcache.storage.atomic import no_space_as_error
from chordcache.tools.report.inputs import Entry
from chordcache.tools.report.levels import LEVELS, NO_PICTURES, Level
from chordcache.tools.report.room import FilterOptions
from chordcache.tools.report.rows import Measures, Shared, details_of, labels_of, measures_of, row_of, traits_of
from chordcache.tools.report.texts import for_script

PER_BLOCK = 8
"""Videos whose details are one script element. The page parses an element when one of its videos is first seen"""

_CHARACTERS = 1 << 16

_MAX_FILTER_BYTES = 200_000
"""Largest size of a list of filters"""

_MARKUP_BYTES = 80
"""Start of a block, and the commas and brackets of an entry"""


class EntryWriter:
    """A writer of rows and details, which keeps within a number of bytes.

    Parameters
    ----------
    cache : Cache or None
        Cache of the pictures.
    level : Level
        Amount of pictures.
    max_bytes : int
        Bytes of all rows and details on the page.
    num_videos : int
        Number of videos that will be added.
    folder : Path, optional
        Folder for the pictures, one file for each video. By default they are part of the details.
    """

    def __init__(
        self, cache: Cache | None, level: Level, max_bytes: int, num_videos: int, folder: Path | None = None
    ) -> None:
        self.shared = Shared()
        self.counts: Counter[str] = Counter()
        """Number of rows, pictures, and of what did not fit"""
        self.labels, self.traits = (FilterOptions(min(_MAX_FILTER_BYTES, max_bytes // 20)) for _ in range(2))
        """Number of rows with each label and each trait"""
        self._cache, self.level, self._folder = cache, level, folder
        self._max_bytes, self._num_left = max_bytes, num_videos
        self._num_bytes = self._row_bytes = 0
        self._rows: IO[str] = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115 # until `close`
        self._details: IO[str] = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115 # until `close`

    def add(self, entry: Entry, measures: Measures) -> list[str]:
        """Write a video, with as much as fits. Return the messages of artefacts that cannot be read.

        ``measures.motion`` is set if the motion vectors are read for the picture.
        """
        self.shared.limit(self._max_bytes - self.num_bytes)
        details, picture, problems = self._details_of(entry, measures)
        labels, traits = labels_of(entry), traits_of(entry, problems)
        row = for_script(row_of(entry, measures, labels, traits, self.shared))
        self._num_left -= 1
        room = self._max_bytes - self.num_bytes
        room_now = room - self._num_left * self._row_bytes // max(1, self.counts["rows"])
        if len(row) + _MARKUP_BYTES + self.labels.added_bytes(labels) + self.traits.added_bytes(traits) > room:
            self.counts["hidden"] += 1
            return problems
        self.labels.update(labels)
        self.traits.update(traits)
        text = for_script(details)
        if picture and self._folder is not None:
            self._write_picture(entry.key, picture)
        elif picture:
            with_picture = {**details, "picture": base64.b64encode(picture).decode()}
            if len(row) + len(text) + len(with_picture["picture"]) > room_now:
                self.counts["without picture"] += 1
                picture, details = b"", {name: value for name, value in details.items() if name != "layout"}
                text = for_script(details)
            else:
                text = for_script(with_picture)
        if len(row) + len(text) > room_now:
            self.counts["without details"] += 1
            text = "{}"
        elif picture:
            self.counts["pictures"] += 1
        self._write(row, text)
        return problems

    def _details_of(self, entry: Entry, measures: Measures) -> tuple[dict[str, Any], bytes, list[str]]:
        details = details_of(entry, self.shared)
        if entry.video is None or self._cache is None or self.level is NO_PICTURES:
            return details, b"", []
        from chordcache.tools.report.pictures import picture_of  # it needs OpenCV

        made = picture_of(self._cache, entry.video, self.level)
        if made.mean_motion_px is not None:
            measures.motion = made.mean_motion_px
        if made.motion:
            details["curves"] = [made.motion, *(each for each in details.get("curves", ()) if each[0] != "motion")]
        if made.keyframes:
            details.setdefault("keyframes", made.keyframes)
        found = {"layout": made.layout, "times": made.seconds, "flow": made.flow_px, "pose": made.pose}
        details |= {name: value for name, value in found.items() if value}
        if made.problems:
            details["problems"] = made.problems
        return details, made.webp, made.problems

    def _write(self, row: str, details: str) -> None:
        number = self.counts["rows"]
        self._rows.write(f"{',' if number else ''}\n{row}")
        if number % PER_BLOCK == 0:
            end = "]</script>\n" if number else ""
            start = f'{end}<script type="application/json" id="b{number // PER_BLOCK}">['
            self._details.write(start)
            self._num_bytes += len(start)
        self._details.write(f"{',' if number % PER_BLOCK else ''}{details}")
        self._num_bytes += len(row) + len(details) + 3
        self._row_bytes += len(row) + 2
        self.counts["rows"] += 1

    def _write_picture(self, key: str, picture: bytes) -> None:
        assert self._folder is not None
        path = self._folder / key[-16:-14] / f"{key}.webp"
        with no_space_as_error(path):
            os.makedirs(path.parent, exist_ok=True)
            path.write_bytes(picture)

    @property
    def num_bytes(self) -> int:
        """Bytes of everything that was written, on the page."""
        shared = self.shared
        lists = (shared.labels, shared.traits, shared.facts, self.labels, self.traits)
        return self._num_bytes + sum(each.num_bytes for each in lists)

    def rows(self) -> Iterator[Markup]:
        """Yield the text of all rows in pieces."""
        return _pieces(self._rows)

    def blocks(self) -> Iterator[Markup]:
        """Yield the script elements of all details in pieces."""
        yield from _pieces(self._details)
        if self.counts["rows"]:
            yield Markup("]</script>\n")

    def flush(self) -> None:
        """Write what is buffered, so that a full disk is noticed here."""
        self._rows.flush()
        self._details.flush()

    def close(self) -> None:
        """Remove the temporary files."""
        for file in (self._rows, self._details):
            with contextlib.suppress(OSError):  # a full disk: what is buffered is not needed
                file.close()


def _pieces(file: IO[str]) -> Iterator[Markup]:
    file.seek(0)
    while text := file.read(_CHARACTERS):
        yield Markup(text)  # JSON of `for_script`, in elements of our own


def try_levels(cache: Cache, entries: list[Entry], num_videos: int, max_bytes: int) -> Level:
    """Return the richest level that fits, from the bytes of some videos at each level."""
    for level in LEVELS:
        writer = EntryWriter(cache, level, 1 << 40, len(entries))
        for entry in entries:
            writer.add(entry, measures_of(entry))
        writer.close()
        if level.fits(writer.num_bytes / max(1, len(entries)) * num_videos, max_bytes):
            return level
    return NO_PICTURES
