"""The relation of the rows of a feature to the frames of its video.

Most features have a row for each frame. A sidecar states the clock of any other feature in its ``facts``:

==================================================  ===================================================================
``row_seconds``, ``start_seconds``, ``silence``     rows at times of their own, such as mel
``frames_per_row``, ``frames_in_first_row``         each row covers some frames, such as latents of a causal VAE: with 4
                                                    and 1, row 0 covers frame 0 and row i frames 4 i - 3 to 4 i. With
                                                    ``frames_per_clip``, this starts again after so many frames
``is_of_video``: true                               the rows belong to the whole video, such as those of its caption
==================================================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chordcache.errors import UsageError

_SECONDS = ("row_seconds", "start_seconds", "silence")

_GROUPS = ("frames_per_row", "frames_in_first_row")

_CLIP = "frames_per_clip"

_MAX_SECONDS = 1e12
_MIN_ROW_SECONDS = 1e-7
"""[seconds] Bounds of the clock of rows"""

CLOCK_FACTS = frozenset(("row_seconds", "frames_per_row", "is_of_video"))
"""Facts of which a feature with a clock of its own has exactly one"""


def is_of_video(facts: Mapping[str, Any]) -> bool:
    """Return whether rows belong to a whole video, and not to some of its frames."""
    return facts.get("is_of_video") is True


def has_times(facts: Mapping[str, Any]) -> bool:
    """Return whether rows have times of their own."""
    return "row_seconds" in facts


@dataclass(frozen=True)
class FrameGroups:
    """Rows that each cover some frames."""

    num_in_first: int
    """Number of frames that row 0 covers"""
    num_in_others: int
    """Number of frames that each later row covers"""
    num_in_clip: int | None = None
    """Number of frames after which the next row is again like row 0. None if there is none"""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> FrameGroups | None:
        """Return the groups that the facts of a feature state, or None if they state none."""
        if "frames_per_row" not in facts:
            return None
        return cls(facts["frames_in_first_row"], facts["frames_per_row"], facts.get(_CLIP))

    @property
    def rows_of_clip(self) -> int:
        """Number of rows of a whole clip, 0 without clips."""
        return 0 if self.num_in_clip is None else 1 + (self.num_in_clip - self.num_in_first) // self.num_in_others

    def row_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the number of the row that covers each frame, for frame numbers, both [shape=(T,), dtype=int64]."""
        clips, numbers = (0, numbers) if self.num_in_clip is None else np.divmod(numbers, self.num_in_clip)
        rows = np.maximum(0, (numbers - self.num_in_first) // self.num_in_others + 1)
        return np.asarray(clips * self.rows_of_clip + rows)

    def rows_of(self, numbers: np.ndarray, num_rows: int, what: str) -> np.ndarray:
        """Return the rows that cover some frames, each once, ascending.

        Raises ``UsageError`` if a frame has no row, since frames after the last whole group were left out. ``what``
        names the feature.
        """
        rows = np.unique(self.row_of(np.asarray(numbers, np.int64)))
        if len(rows) and rows[-1] >= num_rows:
            raise UsageError(
                f"frames: got number {int(np.max(numbers))}, expected less than {self._num_covered(num_rows)}. {what} "
                f"has {num_rows} rows, which do not cover the last frames."
            )
        return rows

    def num_rows(self, num_frames: int) -> range:
        """Return the possible numbers of rows of a video. An extractor may leave an incomplete last group out."""
        if self.num_in_clip is not None:
            num_clips, rest = divmod(num_frames, self.num_in_clip)
            possible = FrameGroups(self.num_in_first, self.num_in_others).num_rows(rest) if rest else range(1)
            before = num_clips * self.rows_of_clip
            return range(before + possible.start, before + possible.stop)
        if num_frames < self.num_in_first:
            return range(min(num_frames, 1) + 1)
        whole, rest = divmod(num_frames - self.num_in_first, self.num_in_others)
        return range(1 + whole, 2 + whole + (rest > 0))

    def _num_covered(self, num_rows: int) -> int:
        """Return the number of frames that the first rows cover."""
        num_clips, rest = (0, num_rows) if self.num_in_clip is None else divmod(num_rows, self.rows_of_clip)
        of_rest = self.num_in_first + (rest - 1) * self.num_in_others if rest else 0
        return num_clips * (self.num_in_clip or 0) + of_rest


def clock_problem(facts: Mapping[str, Any], num_rows: Mapping[str, int], num_frames: int) -> str | None:
    """Return the reason why the facts of a feature do not describe the clock of its rows, or None if they do.

    ``num_rows`` has the number of rows of each array, and ``num_frames`` counts the cached frames of the video.
    """
    if len(CLOCK_FACTS.intersection(facts)) != 1:
        return f"expected one clock: {', '.join(_SECONDS)}; or {', '.join(_GROUPS)}; or is_of_video: true"
    if "is_of_video" in facts:
        return None if is_of_video(facts) else "expected is_of_video: true"
    if has_times(facts):
        numbers: list[Any] = [facts.get(key) for key in _SECONDS]
        are_numbers = all(type(n) in (int, float) and -_MAX_SECONDS <= n <= _MAX_SECONDS for n in numbers)
        is_clock = are_numbers and facts["row_seconds"] >= _MIN_ROW_SECONDS
        return None if is_clock else f"expected the numbers {', '.join(_SECONDS)}, and row_seconds above 0"
    sizes = [facts.get(key) for key in _GROUPS]
    if not all(type(size) is int and 0 < size < 1 << 31 for size in sizes):
        return f"expected the whole numbers {' and '.join(_GROUPS)}, above 0"
    groups = FrameGroups.of(facts)
    assert groups is not None
    if groups.num_in_clip is not None and not _is_whole_clip(groups):
        return f"expected {_CLIP} to be {_GROUPS[1]} plus a multiple of {_GROUPS[0]}"
    possible = groups.num_rows(num_frames)
    for part, num_found in num_rows.items():
        if num_found not in possible:
            return f"'{part}' has {num_found} rows, expected {possible[0]} to {possible[-1]} for {num_frames} frames"
    return None


def _is_whole_clip(groups: FrameGroups) -> bool:
    """Return whether a clip ends with a whole group."""
    after_first = groups.num_in_clip - groups.num_in_first if type(groups.num_in_clip) is int else -1
    return after_first >= 0 and after_first % groups.num_in_others == 0 and after_first < 1 << 31
