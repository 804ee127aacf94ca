"""Pictures at cache size: ours, straight from the scaler, and those of the command ``ffmpeg``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.frame import Frame, FrameMaker
from helpers.ffmpeg import ffmpeg


def frames(path: Path, num_frames: int | None = None, *, short_side: int | None = None, **options: Any) -> list[Frame]:
    """The first frames of a video, as extractors get them."""
    with open_media(str(path)) as media:
        maker = FrameMaker(PictureConfig(short_side=short_side, **options), media.require_video().sample_aspect_ratio)
        return [maker.frame(decoded) for decoded in islice(decode_frames(media), num_frames)]


def notes(path: Path, **options: Any) -> tuple[str, ...]:
    """Return the scaler's notes on a video."""
    with open_media(str(path)) as media:
        maker = FrameMaker(PictureConfig(short_side=None, **options), None)
        for decoded in decode_frames(media):
            maker.frame(decoded).planes()
        return maker.notes


def flat(planes: tuple[np.ndarray, ...]) -> np.ndarray:
    """Planes after each other [shape=(N,), dtype=uint8]."""
    return np.concatenate([plane.reshape(-1) for plane in planes])


def filtered(path: Path, filters: str, size: tuple[int, int], num_frames: int) -> np.ndarray:
    """Return the first frames after ffmpeg's filters [shape=(T, H, W, 3), dtype=uint8, RGB]."""
    # fmt: off
    data = ffmpeg(
        "-threads", "1", "-i", path, "-map", "0:v:0", "-frames:v", str(num_frames), "-vsync", "passthrough",
        "-vf", filters, "-pix_fmt", "rgb24", "-f", "rawvideo", "-",
    )
    # fmt: on
    return np.frombuffer(data, np.uint8).reshape(-1, size[1], size[0], 3)
