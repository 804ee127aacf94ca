"""Facts about the frames one by one: repeated, black and frozen pictures, their digest, and the place of the sound."""

from __future__ import annotations

from typing import Any

import av
import numpy as np

from chordcache.digests import digest_of_parts, file_digest
from chordcache.media.activity import LumaPoints
from chordcache.media.audio_track import AudioClock, Sound
from chordcache.media.decoding import DecodedFrame
from chordcache.records import FrameFacts

_BLACK_LUMA, _BLACK_SHARE, _BLACK_SECONDS = 0.10, 0.98, 2.0
"""A picture is black if this share of its points is at most this part of the way from black to white. A stretch of this
length [seconds] is a finding: a cut or a fade is shorter. All three are the defaults of ffmpeg's blackdetect."""

_FROZEN_LEVELS, _FROZEN_SECONDS = 0.001 * 256, 2.0
"""[gray levels] Largest mean difference from the first picture of a frozen stretch, and its least length [seconds].
Both are the defaults of ffmpeg's freezedetect: -60 dB."""

_MAX_COPIES = 3
"""Most repeats of a picture in a row that count as repeated frames. 15 frames per second written as 60 have three"""

_MAX_STRETCHES = 100
"""Stretches of each kind that are kept of one file"""


class FrameMeter:
    """Meter that gathers ``FrameFacts`` from frames and sound as they are decoded, in any order of the two.

    Only exact copies of a picture count as repeated frames. Black and frozen pictures are judged by their luma, at the
    points of ``LumaPoints``.
    """

    def __init__(self) -> None:
        self._points = LumaPoints()
        self._digest, self._last_digest = file_digest(), b""
        self._num_frames = self._num_repeated = self._num_copies = 0
        self._start_seconds = self._last_seconds = self._step_seconds = 0.0
        self._black, self._frozen = _Stretches(_BLACK_SECONDS), _Stretches(_FROZEN_SECONDS)
        self._still: np.ndarray | None = None
        """Points of the first picture of the stretch that may be frozen"""
        self._clock = AudioClock()
        self._sound_end_seconds = self._sound_seconds = 0.0

    def add_frame(self, frame: DecodedFrame) -> None:
        """Take the next frame, in presentation order."""
        if not self._num_frames:
            self._start_seconds = frame.pts_seconds
        seconds = frame.pts_seconds - self._start_seconds
        self._step_seconds, self._last_seconds = seconds - self._last_seconds, seconds
        self._num_frames += 1
        self._count_copy(_digest_of(frame.picture))
        luma = self._points.of(frame.picture)
        self._black.add(seconds, is_inside=luma is not None and self._is_black(luma))
        if not self._is_still(luma):
            self._frozen.add(seconds, is_inside=False)
            self._still = luma
        self._frozen.add(seconds, is_inside=luma is not None)

    def _count_copy(self, digest: bytes) -> None:
        self._digest.update(digest)
        if digest == self._last_digest:
            self._num_copies += 1
            return
        self._num_repeated += self._num_copies if self._num_copies <= _MAX_COPIES else 0
        self._last_digest, self._num_copies = digest, 0

    def _is_black(self, luma: np.ndarray) -> bool:
        white = self._points.white
        threshold = (16 if white == 219 else 0) + _BLACK_LUMA * white
        return bool(np.count_nonzero(luma <= threshold) >= _BLACK_SHARE * luma.size)

    def _is_still(self, luma: np.ndarray | None) -> bool:
        if luma is None or self._still is None or luma.shape != self._still.shape:
            return False
        difference = np.maximum(luma, self._still) - np.minimum(luma, self._still)
        return bool(difference.sum(dtype=np.uint32) <= _FROZEN_LEVELS * luma.size)

    def add_sound(self, sound: Sound | None) -> None:
        """Take the next part of the sound. None is its end."""
        for placed in self._clock.place(sound):
            seconds = placed.sound.samples / placed.sound.sample_rate
            self._sound_seconds += seconds
            self._sound_end_seconds = max(self._sound_end_seconds, placed.position_seconds + seconds)

    def facts(self) -> FrameFacts:
        """Return the facts that were gathered. The last frame counts as long as the one before it."""
        self.add_sound(None)
        self._count_copy(b"")
        end_seconds = self._last_seconds + self._step_seconds
        start = self._clock.start_seconds - self._start_seconds if self._sound_seconds else None
        return FrameFacts(
            num_frames=self._num_frames,
            digest=self._digest.hexdigest(),
            num_repeated=self._num_repeated,
            black_seconds=self._black.until(end_seconds),
            frozen_seconds=self._frozen.until(end_seconds),
            sound_start_seconds=None if start is None else round(start, 6),
            sound_end_seconds=None if start is None else round(start + self._sound_end_seconds, 6),
            sound_seconds=round(self._sound_seconds, 6),
        )


class _Stretches:
    """The stretches of time in which something holds that are not shorter than a limit."""

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._start: float | None = None
        self._stretches: list[tuple[float, float]] = []

    def add(self, seconds: float, *, is_inside: bool) -> None:
        """Take the time from which on it holds, or does not."""
        if is_inside:
            self._start = seconds if self._start is None else self._start
        elif self._start is not None:
            if seconds - self._start >= self._least_seconds and len(self._stretches) < _MAX_STRETCHES:
                self._stretches.append((round(self._start, 3), round(seconds, 3)))
            self._start = None

    def until(self, end_seconds: float) -> tuple[tuple[float, float], ...]:
        """Return start and end of each stretch, of a video that ends at a time."""
        self.add(end_seconds, is_inside=False)
        return tuple(self._stretches)


def _digest_of(picture: av.VideoFrame) -> bytes:
    """Return the xxh3-64 of the samples of all planes, without the padding of rows."""
    digest = digest_of_parts()
    row_bytes: dict[int, int] = {}
    for part in picture.format.components:
        row_bytes[part.plane] = row_bytes.get(part.plane, 0) + part.width * -(-part.bits // 8)
    for number, num_bytes in row_bytes.items():
        plane: Any = picture.planes[number]
        rows: Any = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, :num_bytes]
        digest.update(np.ascontiguousarray(rows).data)
    return digest.digest()
