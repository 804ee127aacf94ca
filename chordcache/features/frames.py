"""The feature "frames": the pictures that are kept, and the record made of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from chordcache.features.base import Extractor, Rows
from chordcache.media import jpeg
from chordcache.media.scaling import Frame


class FramesExtractor(Extractor):
    """The extractor of the kept frames themselves.

    Parameters
    ----------
    name : str
        Name of the feature.
    codec : {"jpeg", "raw"}
        "jpeg" for a JPEG per frame, "raw" for RGB24 [shape=(H, W, 3), dtype=uint8].
    quality : int
        JPEG quality, 1 to 100.
    """

    version = 2
    is_local = True

    def __init__(self, name: str, *, codec: str, quality: int = 90) -> None:
        super().__init__(name)
        self._codec = codec
        self._quality = quality

    def add_frame(self, frame: Frame) -> Rows:
        """Return one record, or one row of pixels."""
        if self._codec == "raw":
            return {self.name: frame.rgb()[None]}
        return {self.name: [jpeg.encode_planes(*frame.planes(), quality=self._quality)]}


class Timed(Protocol):
    """A frame, with the fields that ``select_fps`` reads."""

    @property
    def pts_seconds(self) -> float:
        """Presentation time [seconds]."""


AnyFrame = TypeVar("AnyFrame", bound=Timed)


def select_fps(frames: Iterable[AnyFrame], fps: float | None) -> Iterator[AnyFrame]:
    """Keep the first frame at or after each tick of a clock that starts with the first frame.

    All frames of a slower source are kept, and no frame is repeated. A timestamp may be 0.5 ms early, due to rounding.
    """
    if fps is None:
        yield from frames
        return
    next_tick = last = float("-inf")
    start, num_ticks = 0.0, 0
    for frame in frames:
        if frame.pts_seconds < last or last == float("-inf"):  # the first, or a stream whose clock was set back
            start, num_ticks, next_tick = frame.pts_seconds, 0, frame.pts_seconds
        last = frame.pts_seconds
        if frame.pts_seconds >= next_tick - 0.0005:
            yield frame
            num_ticks = max(num_ticks, int((frame.pts_seconds - start + 0.0005) * fps)) + 1
            next_tick = start + num_ticks / fps
