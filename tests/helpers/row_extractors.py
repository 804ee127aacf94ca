"""Extractors whose rows do not match the frames one to one."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from chordcache.features.base import NO_ROWS, Extractor, Rows, VideoInfo


class Groups(Extractor):
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
        self._num_in_clip = 0

    def add_frame(self, frame: Any) -> Rows:
        """Return the row of a group with its last frame."""
        self._group.append(frame.number)
        self._num_in_clip += 1
        size = self._stated.get("frames_in_first_row" if self._is_first else "frames_per_row")
        return self._row() if len(self._group) == size else NO_ROWS

    def _row(self) -> Rows:
        row = np.array([[self._group[0], self._group[-1]]], np.float32)
        self._group, self._is_first = [], self._num_in_clip == self._stated.get("frames_per_clip")
        self._num_in_clip *= not self._is_first
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


class Network(Extractor):
    """A network whose weights take long and much memory to load. Its rows are the number of times it was loaded.

    Parameters
    ----------
    name : str
        Name of the feature.
    mebibytes : int
        Size of the weights.
    seconds : float
        Time to load them.
    log : str
        File that gets the number of the process for each time.
    fault : str
        "raises" for weights that cannot be loaded, "memory" for a video that needs as much as the weights again.
    """

    def __init__(self, name: str, *, mebibytes: int, seconds: float, log: str, fault: str = "") -> None:
        super().__init__(name)
        self._mebibytes, self._fault = mebibytes, fault

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Load the weights."""
        with open(arguments["log"], "a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {device}\n")
        if arguments.get("fault") == "raises":
            raise FileNotFoundError("no weights")
        time.sleep(arguments["seconds"])
        return np.ones(arguments["mebibytes"] << 17)

    def add_frame(self, frame: Any) -> Rows:
        """Return the sum of a weight."""
        if self._fault == "memory":
            np.ones(self._mebibytes << 17)
        return {self.name: self.model[:1].copy()}
