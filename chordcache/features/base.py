"""What an extractor is: one feature of a video, fed by the one decode that all features share.

A plug-in is any class with this interface, named in a config as ``extractor: "mypackage.module:Class"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from chordcache.media.audio_track import Sound
from chordcache.media.scaling import Frame

Rows: TypeAlias = Mapping[str, "np.ndarray | Sequence[bytes]"]
"""Array name to the rows that follow those handed out before, [shape=(n, ...)], n may be 0; or n records of bytes."""

NO_ROWS: Rows = {}


@dataclass(frozen=True)
class VideoInfo:
    """What is known of a video before its first frame is decoded."""

    codec: str
    """libavcodec's canonical name, such as "h264" """
    width: int
    """[pixels] as stored"""
    height: int
    """[pixels] as stored"""
    has_sound: bool


class Extractor:
    """One feature of one video. A new instance is made for each video: ``Class(name, **params)``.

    Arrays are named ``name``, which is the feature itself, and ``name.something`` for what goes with it. The first
    rows of an array settle the shape of a row and the dtype; an array of no rows is handed out once all the same.

    Parameters
    ----------
    name : str
        Of the feature.
    """

    version: ClassVar[int] = 1
    """Raised when the same parameters would give other numbers; part of the fingerprint"""
    needs_motion_vectors: ClassVar[bool] = False
    needs_sound: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    """Whether a row depends on its frame and the one after it alone: ``verify --source`` then makes some rows again"""
    units: ClassVar[Mapping[str, str]] = {}
    """Array name without the feature's ("" for the feature itself, "scale" for ``name.scale``) to its unit"""

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        """Plain data for the sidecar, such as a start time; read after ``finish``"""

    @classmethod
    def missing_requirement(cls) -> str | None:
        """What has to be installed before it can be used, with the command that does; None if nothing."""
        return None

    def begin(self, video: VideoInfo) -> str | None:
        """Look at what there is. Return why the feature is absent from this video, or None."""
        return None

    def add_frame(self, frame: Frame) -> Rows:
        """Take the next kept frame. Return the rows that are complete now: they are written at once."""
        return NO_ROWS

    def add_sound(self, sound: Sound) -> Rows:
        """Take the next piece of the audio track, if ``needs_sound``. It may come before or after its frames."""
        return NO_ROWS

    def finish(self) -> Rows:
        """Return the rows that were held back. If none was ever returned, ``absent`` says why."""
        return NO_ROWS

    @property
    def absent(self) -> str | None:
        """After ``finish``: why the feature turned out to be absent, though ``begin`` did not see it."""
        return None

    def num_rows(self, num_frames: int) -> int | None:
        """How many rows each array must have for so many kept frames.

        None if it has a clock of its own: ``facts`` then hold ``start_seconds`` and ``row_seconds`` (row j is centred
        on their sum, j times the second) and ``silence``, the value of rows where there is nothing.
        """
        return num_frames
