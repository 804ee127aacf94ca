"""A frame as extractors see it. Features can name its type where a cache is read, without a decoder."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from chordcache.config.picture import Bucket, PictureConfig

if TYPE_CHECKING:  # they load PyAV
    from chordcache.media.decoding import DecodedFrame
    from chordcache.media.geometry import Orientation
    from chordcache.media.resample import Planes
    from chordcache.media.scaling import PictureScaler
    from chordcache.media.stereo3d import Region


class FrameMaker:
    """Maker of ``Frame`` objects from one video's decoded pictures. The parameters are as in ``PictureScaler``."""

    def __init__(self, config: PictureConfig, aspect: Fraction | None, bucket: Bucket | None = None) -> None:
        self._config = config
        self._aspect = aspect
        self._bucket = bucket
        self._scalers: dict[int | None, PictureScaler] = {}
        self._num_frames = 0
        self._first_size: tuple[int, int] | None = None
        self.num_resized = 0
        """Number of frames whose coded size differs from that of the first frame"""
        self.scaler = self.scaler_to(config.short_side if bucket is None else None)
        """Scaler of the cached frames"""

    def frame(self, decoded: DecodedFrame) -> Frame:
        """Return the next kept frame."""
        self.scaler.settle(decoded.picture)
        size = decoded.picture.width, decoded.picture.height
        self._first_size = self._first_size or size
        self.num_resized += size != self._first_size
        self._num_frames += 1
        return Frame(self._num_frames - 1, decoded, self)

    def scaler_to(self, short_side: int | None) -> PictureScaler:
        """Return the scaler for a short side, made on the first call."""
        if short_side not in self._scalers:
            from chordcache.media.scaling import PictureScaler  # not before: it loads PyAV

            config = replace(self._config, short_side=short_side, buckets=None)
            self._scalers[short_side] = PictureScaler(config, self._aspect, self._bucket)
        return self._scalers[short_side]

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes made to the content of the pictures so far, at any size, as text."""
        notes = dict.fromkeys(note for scaler in self._scalers.values() for note in scaler.notes)
        enlargement = round(self.scaler.enlargement, 3)
        return (
            *notes,
            *([f"enlarged {enlargement:.2f} times to fill bucket {self._bucket}"] if enlargement > 1 else []),
        )


class Frame:
    """One kept frame as extractors see it.

    Each of its pictures is made once, at the first request, and is read-only, since all extractors get the same.
    """

    def __init__(self, number: int, decoded: DecodedFrame, maker: FrameMaker) -> None:
        self.number = number
        """Number of the frame in the cache, from 0"""
        self.source_number = decoded.number
        """Number of the frame in the source, from 0"""
        self.pts_seconds = decoded.pts_seconds
        self.picture = decoded.picture
        """Picture as the decoder returned it: coded size, not rotated, with its side data"""
        self._jpeg = decoded.jpeg
        self._maker = maker
        self._planes: dict[PictureScaler, Planes] = {}
        self._rgb: np.ndarray | None = None

    @property
    def orientation(self) -> Orientation:
        """Orientation of the stored picture."""
        return self._maker.scaler.orientation

    @property
    def region(self) -> Region:
        """Shown part (left, top, width, height) of the stored picture: all of it, one eye's half, the bucket's part."""
        return self._maker.scaler.region_of(self.picture)

    def planes(self) -> Planes:
        """Return the planes of the cached frame, see ``PictureScaler.planes``."""
        return self._scaled(self._maker.scaler)

    def jpeg(self) -> bytes | None:
        """Return the JPEG file that the source has for this frame, if the cached frame has the same planes, or None."""
        return self._jpeg if self._jpeg is not None and self._maker.scaler.keeps(self.picture) else None

    def luma(self, short_side: int | None) -> np.ndarray:
        """Return the upright gray picture [shape=(H, W), dtype=uint8, 0 to 255], C-contiguous, with this short side."""
        return np.ascontiguousarray(self._scaled(self._maker.scaler_to(short_side))[0])

    def rgb(self) -> np.ndarray:
        """Return the cached frame before JPEG [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB], C-contiguous."""
        if self._rgb is None:
            self._rgb = self._maker.scaler.rgb(self.picture)
            self._rgb.flags.writeable = False
        return self._rgb

    def _scaled(self, scaler: PictureScaler) -> Planes:
        if scaler not in self._planes:
            self._planes[scaler] = planes = scaler.planes(self.picture)
            for plane in planes:
                plane.flags.writeable = False
        return self._planes[scaler]
