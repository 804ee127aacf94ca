"""The decoder of an audio track. What it yields may be shared: no reader of a part of the sound changes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import av

from chordcache.media.audio_track import Sound
from chordcache.media.ffmpeg_log import reason_of
from chordcache.media.joints import TrackPart

_LAYOUTS = ("", "mono", "stereo", "2.1", "4.0", "5.0", "5.1", "6.1", "7.1")
"""libavutil's layout for each number of channels, of sound that states only this number"""

_EXACT_SAMPLES = 1e-3
"""Largest rounding error of a time, in samples"""


class SoundDecoder:
    """Decoder of the packets of an audio track, in their order.

    ``parts`` has the recording that the packet of a track is of, in a file of joined recordings. Sound outside of the
    recording's time is left out.
    """

    def __init__(self, format_name: str, parts: Mapping[int, TrackPart]) -> None:
        self._is_avi = format_name == "avi"
        self._parts = parts
        self._last: tuple[int | None, bytes] = (None, b"")
        self._part: TrackPart | None = None
        self._num_packets = self._num_refused = 0
        self._error = ""

    @property
    def refusal(self) -> str:
        """Sentence about the packets that the decoder refused, "" if there are none."""
        if not self._num_refused:
            return ""
        return f"{self._num_refused} of {self._num_packets} packets of sound cannot be decoded ({self._error})"

    def decode(self, packet: Any) -> list[Sound]:
        """Return the sound of a packet, empty if the decoder refuses it or the packet comes twice."""
        part = self._parts.get(packet.stream.index)
        if part is not self._part and self._part is not None:
            packet.stream.codec_context.flush_buffers()
        self._part = part
        last, self._last = self._last, (packet.pts, bytes(packet))
        if packet.size and packet.pts is not None and last == self._last and not self._is_avi:  # AVI counts blocks
            return []
        self._num_packets += bool(packet.size)
        try:
            sounds = [_with_layout(sound) for sound in packet.decode()]
        except MemoryError:
            raise
        except av.error.FFmpegError as error:
            self._num_refused += 1
            self._error = reason_of(error)
            return []
        if part is None:
            return sounds
        cut = (_cut(sound, part.start_seconds, part.stop_seconds) for sound in sounds)
        return [sound for sound in cut if sound is not None]


def _with_layout(sound: Sound) -> Sound:
    """Return sound whose layout is known, with the same samples.

    libavfilter writes a layout into sound without one, which its next reader would then refuse.
    """
    if not sound.layout.name.endswith(" channels") or not 0 < sound.layout.nb_channels < len(_LAYOUTS):
        return sound
    return _copied(sound, 0, sound.samples, _LAYOUTS[sound.layout.nb_channels])


def _cut(sound: Sound, start_seconds: float, stop_seconds: float) -> Sound | None:
    """Return the samples of sound in a range of time [start, stop), or None if there are none."""
    if sound.pts is None or sound.time_base is None:
        return sound
    rate, at_seconds = sound.sample_rate, float(sound.pts * sound.time_base)
    before = min(max((start_seconds - at_seconds) * rate, 0), sound.samples)
    until = min(max((stop_seconds - at_seconds) * rate, 0), sound.samples)
    first, stop = math.ceil(before - _EXACT_SAMPLES), math.ceil(until - _EXACT_SAMPLES)
    if (first, stop) == (0, sound.samples):
        return sound
    return _copied(sound, first, stop, sound.layout.name) if first < stop else None


def _copied(sound: Sound, first: int, stop: int, layout: str) -> Sound:
    """Copy samples [first, stop) under a layout."""
    out = av.AudioFrame(sound.format.name, layout, stop - first, align=1)
    sample_bytes = sound.format.bytes * (1 if sound.format.is_planar else sound.layout.nb_channels)
    planes: Any = zip(out.planes, sound.planes, strict=True)
    for plane, source in planes:
        plane.update(memoryview(source)[first * sample_bytes : stop * sample_bytes])
    out.sample_rate, out.time_base, out.pts = sound.sample_rate, sound.time_base, sound.pts
    if first and sound.pts is not None and sound.time_base is not None:
        out.pts = round(sound.pts * sound.time_base * sound.sample_rate) + first
        out.time_base = Fraction(1, sound.sample_rate)
    return out
