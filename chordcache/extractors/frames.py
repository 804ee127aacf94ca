"""The feature "frames": which pictures are kept, and the record that each becomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from chordcache import jpeg
from chordcache.config import FramesConfig
from chordcache.decode import DecodedFrame
from chordcache.manifest import fingerprint
from chordcache.picture import PictureScaler

VERSION = 1
"""Raised when the same parameters would give other pixels."""


def frames_params(config: FramesConfig) -> dict[str, Any]:
    """The parameters that change the records; their fingerprint tells whether cached ones are stale."""
    params: dict[str, Any] = {
        "codec": config.codec,
        "short_side": config.short_side,
        "fps": config.fps and float(config.fps),
    }
    if config.codec == "jpeg":
        params["quality"] = config.quality
    return params


def frames_fingerprint(config: FramesConfig) -> str:
    """16 hex digits over the extractor's version and parameters."""
    return fingerprint("frames", VERSION, frames_params(config))


def frame_record(frame: DecodedFrame, scaler: PictureScaler, config: FramesConfig) -> bytes:
    """The bytes that are cached of one picture: a JPEG, or RGB24 [shape=(H, W, 3), dtype=uint8]."""
    if config.codec == "raw":
        return scaler.rgb(frame.picture).tobytes()
    return jpeg.encode_planes(*scaler.planes(frame.picture), quality=config.quality)


def select_fps(frames: Iterable[DecodedFrame], fps: float | None) -> Iterator[DecodedFrame]:
    """Keep the first frame at or after each tick of a clock that starts with the first frame.

    A slower source keeps every frame; none is repeated. Half a millisecond of timestamp rounding is forgiven.
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
