"""Extractors whose rows do not match the frames one to one."""

from __future__ import annotations

from typing import Any

import numpy as np

from chordcache.features.base import NO_ROWS, Extractor, Rows, VideoInfo


class Latents(Extractor):
    """The numbers of the first and the last frame of each group, as a causal VAE groups them.

    Parameters
    ----------
    name : str
        Name of the feature.
    facts : dict
        Facts to state.
    keeps_rest : bool
        True to make a row of an incomplete last group, too.
    """

    def __init__(self, name: str, *, facts: dict[str, Any], keeps_rest: bool = True) -> None:
        super().__init__(name)
        self._stated, self._keeps_rest = facts, keeps_rest
        self._group: list[int] = []
        self._is_first = True

    def add_frame(self, frame: Any) -> Rows:
        """Return the row of a group with its last frame."""
        self._group.append(frame.number)
        size = self._stated.get("frames_in_first_row" if self._is_first else "frames_per_row")
        return self._row() if len(self._group) == size else NO_ROWS

    def _row(self) -> Rows:
        row = np.array([[self._group[0], self._group[-1]]], np.float32)
        self._group, self._is_first = [], False
        return {self.name: row}

    def finish(self) -> Rows:
        """Return the row of an incomplete last group."""
        self.facts.update(self._stated)
        if self._stated.get("is_of_video"):
            return {self.name: np.arange(15, dtype=np.float32).reshape(5, 3)}
        if self._group and (self._keeps_rest or self._is_first):
            return self._row()
        return {self.name: np.zeros((0, 2), np.float32)}

    def num_rows(self, num_frames: int) -> int | None:
        """Return None, since rows have another clock."""
        return None


class Words(Extractor):
    """The letters of the caption, one row for each.

    Parameters
    ----------
    name : str
        Name of the feature.
    """

    uses = ("caption", "label")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._caption: str | None = None

    def begin(self, video: VideoInfo) -> str | None:
        """Keep the caption."""
        assert set(video.fields) == {"caption", "label"}
        self._caption = video.fields["caption"]
        return None if self._caption else "it has no caption"

    def finish(self) -> Rows:
        """Return the letters."""
        self.facts["is_of_video"] = True
        return {self.name: np.frombuffer((self._caption or "").encode(), np.uint8)[:, None]}

    def num_rows(self, num_frames: int) -> int | None:
        """Return None, since rows belong to the video."""
        return None
