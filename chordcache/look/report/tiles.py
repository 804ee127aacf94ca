"""The tiles of a page: rows that its grid shows, and details of the page of each video."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from chordcache.look.report.curves import MOTION
from chordcache.look.report.inputs import Entry
from chordcache.look.report.rows import Measures, Shared, details_of, row_of
from chordcache.look.report.texts import for_script
from chordcache.read.cache import Cache

PER_BLOCK = 8
"""Videos whose details are one script element. The page parses an element when one of its videos is first seen"""


class Tiles:
    """The rows and details of the videos that a page shows, as JSON texts.

    Parameters
    ----------
    cache : Cache or None
        Cache of the pictures, or None for a page without pictures.
    """

    def __init__(self, cache: Cache | None) -> None:
        self.shared = Shared()
        self._cache = cache
        self._rows: list[str] = []
        self._details: list[str] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, entry: Entry, measures: Measures) -> list[str]:
        """Add a video. Return the messages of artefacts that cannot be read.

        ``measures.motion`` is set if the motion vectors are read for the picture.
        """
        details = details_of(entry, self.shared)
        if entry.video is not None and self._cache is not None:
            from chordcache.look.report.video_pictures import picture_of  # it needs OpenCV

            picture, mean_motion_px = picture_of(self._cache, entry.video)
            if "curves" in picture:
                measures.motion = mean_motion_px
                others = [curve for curve in details.get("curves", ()) if curve[0] != MOTION]
                details["curves"] = picture["curves"] + others
            details = picture | details
        problems: list[str] = details.get("problems", [])
        self._rows.append(for_script(row_of(entry, measures, problems, self.shared)))
        self._details.append(for_script(details))
        return problems

    def rows(self) -> Markup:
        """Return the rows as the items of a JSON list."""
        return Markup(",\n".join(self._rows))  # JSON of `for_script`, in an element of our own

    def blocks(self) -> Iterator[Markup]:
        """Yield the script elements of all details."""
        for start in range(0, len(self._details), PER_BLOCK):
            details = ",".join(self._details[start : start + PER_BLOCK])
            yield Markup(f'<script type="application/json" id="b{start // PER_BLOCK}">[{details}]</script>\n')
