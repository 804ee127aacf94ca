"""Part of an audio track as samples, on the clock that it shares with the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

import av
import numpy as np

from chordcache import progress
from chordcache.errors import AbsentFeatureError, MediaError, UsageError
from chordcache.media.audio_track import SAMPLE_RATES, AudioClock, AudioTrack, Sound, is_readable, paste
from chordcache.media.containers import why_no_sound
from chordcache.media.demux import Media, open_media
from chordcache.media.joints import Joints

_PREROLL_SECONDS = 1
"""[seconds] decoded before the requested part: Opus needs 0.08, MP3's bit reservoir a few frames of 0.026"""

_NUM_GRID_PARTS = 8
"""Number of parts at the start of the sound, of which the first two may be shorter: the decoder's delay is cut off"""

_MAX_ROUNDING_UNITS = 1.1
"""Largest difference between two rounded timestamps and the samples between them [units of the container]"""

_MAX_SECONDS = 3600.0
"""[seconds] Longest chunk. One hour of stereo at 48 kHz takes 1.3 GiB."""


def read_sound(path: str, start_seconds: float, duration_seconds: float, *, joints: Joints | None = None) -> np.ndarray:
    """Return a part of a file's audio track at its rate [shape=(num_samples, channels), dtype=float32, -1 to 1].

    These are ``round(duration_seconds * rate)`` samples, silent where the track has none or its decoder refuses them.
    ``start_seconds`` is on the clock of the frames' ``pts_seconds``, and may be before the start of the track.
    ``joints`` are ``Media.joints`` of the file, if it was read before.

    Raises
    ------
    NotFoundError
        If the file does not have an audio track that can be decoded.
    MediaError
        If the file cannot be read.
    UsageError
        If the part is longer than an hour, or a number is not finite.
    """
    if not (abs(start_seconds) < 1e9 and 0 <= duration_seconds <= _MAX_SECONDS):
        raise UsageError(
            f"audio chunk: got start {start_seconds!r} and duration {duration_seconds!r}, expected seconds, of "
            f"duration 0 to {_MAX_SECONDS:g}"
        )
    with open_media(path, joints) as media:
        if media.audio is None:
            raise AbsentFeatureError(f"the file has {why_no_sound(media.container)}")
        joints = media.joints
        reader = _SoundReader(media.audio, start_seconds, duration_seconds)
        grid = _Grid.of(media) if _is_coarse(media.audio) else None
        can_seek = grid is not None or not _is_coarse(media.audio)
        if can_seek and media.seek(_before(start_seconds)) and reader.read(media, grid):
            return reader.samples
    with open_media(path, joints) as media:  # from the start: without an index, a seek may lead to any place
        reader.read(media, from_start=True)
    return reader.samples


def parts_of_sound(media: Media, start_seconds: float, end_seconds: float) -> Iterator[Sound]:
    """Decode the parts of a file's audio track that overlap with a time [seconds, on the clock of ``pts_seconds``].

    A part is what a packet decodes to, such as 21 ms of AAC. Its ends may be outside of the time. The file is opened
    once more. ``media`` gets the decoder of the sound, with its ``refusal``. Raise ``MediaError`` if the file cannot
    be read.
    """
    if media.audio is None:
        return
    for from_start in (False, True):  # without an index, a seek may lead to any place
        with open_media(media.container.name, media.joints) as reopened:
            media.sound_decoder = reopened.sound_decoder
            if not from_start and not reopened.seek(_before(start_seconds)):
                continue
            parts = _timed_parts(reopened)
            first = next(parts, None)
            if first is None or (first[0] > start_seconds and not from_start):
                continue
            for seconds, sound in chain([first], parts):
                if seconds >= end_seconds:
                    break
                if seconds + sound.samples / sound.sample_rate > start_seconds:
                    yield sound
            return


def _before(start_seconds: float) -> int:
    """Return the time to seek to [microseconds]."""
    return round((start_seconds - _PREROLL_SECONDS) * av.time_base)


def _timed_parts(media: Media) -> Iterator[tuple[float, Sound]]:
    """Yield the time of each part of the sound [seconds], and the part."""
    clock = AudioClock()
    for sound in chain(media.sounds(), [None]):
        progress.beat()
        for placed in clock.place(sound):
            yield clock.start_seconds + placed.position_seconds, placed.sound


def sample_rate_of(path: str) -> int:
    """Return the sample rate [Hz] of a file's audio track. Raises as ``read_sound``."""
    with open_media(path) as media:
        if media.audio is None:
            raise AbsentFeatureError(f"the file has {why_no_sound(media.container)}")
        return media.audio.codec_context.sample_rate


def _is_coarse(track: av.AudioStream) -> bool:
    """Return whether timestamps are rounded to more than a sample, as in Matroska, so that samples must be counted."""
    unit = track.time_base
    return unit is None or unit * track.codec_context.sample_rate > 1


class _Grid(NamedTuple):
    """The places where parts of the sound begin, in a track whose parts have one length after the first few."""

    start_seconds: float
    """[seconds] Timestamp of the first sample"""
    first: int
    """Sample at which one of the parts begins"""
    length: int
    """Samples of a part"""
    rate: int
    """[Hz]"""
    unit_seconds: float
    """[seconds] to which timestamps are rounded"""

    @classmethod
    def of(cls, media: Media) -> _Grid | None:
        """Decode the first parts of the sound. Return None if they differ in length, as in Vorbis, or are too few."""
        parts = list(islice(filter(is_readable, media.sounds()), _NUM_GRID_PARTS))
        sizes = [part.samples for part in parts]
        start, last = (parts[0], parts[-1]) if parts else (None, None)
        if start is None or last is None or len(set(sizes[2:])) != 1 or len(parts) < _NUM_GRID_PARTS:
            return None
        if start.pts is None or start.time_base is None or {part.sample_rate for part in parts} != {last.sample_rate}:
            return None
        start_seconds = float(start.pts * start.time_base)
        grid = cls(start_seconds, sum(sizes[:-1]), sizes[-1], last.sample_rate, float(start.time_base))
        return grid if grid._position_of(last) == grid.first else None

    def clock_at(self, sound: Sound) -> AudioClock | None:
        """Return the clock of the track as it is before a part of the sound; None if that is not on the grid."""
        position = self._position_of(sound)
        if position is None:
            return None
        return AudioClock.continued(self.start_seconds, position / self.rate, self.length)

    def _position_of(self, sound: Sound) -> int | None:
        """Return the number of the first sample of a part, counted from the first one of the track.

        None if the part has another length, or its timestamp is not that of a place on the grid.
        """
        if (
            sound.pts is None
            or sound.time_base is None
            or (sound.samples, sound.sample_rate) != (self.length, self.rate)
        ):
            return None
        near = (float(sound.pts * sound.time_base) - self.start_seconds) * self.rate
        position = self.first + round((near - self.first) / self.length) * self.length
        return position if abs(position - near) <= _MAX_ROUNDING_UNITS * self.unit_seconds * self.rate else None


class _SoundReader:
    """Reader that puts decoded sound at its place in one array of samples."""

    def __init__(self, track: av.AudioStream, start_seconds: float, duration_seconds: float) -> None:
        self.rate = track.codec_context.sample_rate
        if self.rate not in SAMPLE_RATES:
            what = f"the audio track has a rate of {self.rate} Hz, expected {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
            raise MediaError("decode", "decode", what)
        self._layout = track.codec_context.layout
        self._start_seconds = start_seconds
        shape = (round(duration_seconds * self.rate), self._layout.nb_channels)
        self.samples = np.zeros(shape, np.float32)

    def read(self, media: Media, grid: _Grid | None = None, *, from_start: bool = False) -> bool:
        """Fill ``samples``; return False, without a change, if the first sound comes after the start of the samples.

        With a grid, the first sound on it begins, and the sound before it is left out. Return False, too, if there is
        none before the start of the samples.
        """
        placed = None if grid else AudioTrack(self._layout, self.rate)
        for sound in chain(media.sounds(), [None]):
            if placed is None:
                assert grid is not None
                clock = grid.clock_at(sound) if sound else None
                if clock is None and sound and self._is_before(sound):
                    continue
                if clock is None:
                    return False
                placed = AudioTrack(self._layout, self.rate, clock)
            for from_first, piece in placed.pieces(sound):
                at = round((placed.start_seconds - self._start_seconds) * self.rate) + from_first
                if not from_start and at > 0:
                    return False
                from_start = True
                paste(self.samples, at, piece)
                if at + piece.shape[1] >= len(self.samples):
                    return True
        return from_start

    def _is_before(self, sound: Sound) -> bool:
        """Return whether a part of the sound ends before the samples start."""
        if sound.pts is None or sound.time_base is None:
            return False
        return float(sound.pts * sound.time_base) + sound.samples / sound.sample_rate < self._start_seconds
