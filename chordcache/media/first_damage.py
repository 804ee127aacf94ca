"""Trim a damaged file: find the frames before the first damage, in presentation order."""

from __future__ import annotations

from typing import Any

from chordcache.errors import MediaError
from chordcache.media.checks.container_watch import MARK_DISTANCE
from chordcache.media.checks.faults import Faults
from chordcache.media.decoding import Decoding
from chordcache.media.demux import Media, open_media
from chordcache.media.video_decoder import MARKED
from chordcache.records import DamageFacts

_CAUSES = ("decode", "truncated", "short")
"""Causes of a ``MediaError`` after which the first frames of the file may be right"""


def may_trim(error: MediaError) -> bool:
    """Return whether the first frames of a file may be right although decoding it ended with an error."""
    return error.stage == "decode" and error.cause in _CAUSES


def damage_of(path: str) -> DamageFacts | None:
    """Return the first damage of a file, or None if no frame before it can be cached. See ``survey``."""
    with open_media(path) as media:
        return survey(media)


def damage_after(error: MediaError, path: str) -> DamageFacts:
    """Return the first damage of a file whose decode ended with an error.

    Raises ``error`` if it is not about damage, or if no frame before it can be cached.
    """
    if not may_trim(error):
        raise error
    try:
        damage = damage_of(path)
    except MediaError:
        damage = None
    if damage is None:
        raise error
    return damage


def survey(media: Media) -> DamageFacts | None:
    """Decode a damaged file, newly opened, from start to end, and count the frames before its first damage.

    Damage seldom begins where it is reported: a decoder may take the first wrong bytes for a valid picture, and the
    later pictures of a group refer to it. The count ends at the group of pictures in which the first report is. If the
    file is only cut off at its end, it ends before the packets that the cut may concern.

    Return None if the place of the damage is unknown, or no frame is before it. Raise ``MediaError`` if no frame can be
    decoded.
    """
    track = _Track(media)
    track.read()
    return track.facts()


class _FaultLog(Faults):
    """Faults with the cause and message of each."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[tuple[str, str]] = []

    def add(self, cause: str, what: str) -> None:
        """Note a fault."""
        super().add(cause, what)
        self._new.append((cause, what))

    def taken(self) -> list[tuple[str, str]]:
        """Return the faults since the last call."""
        new, self._new = self._new, []
        return new


class _Track:
    """The packets of a damaged video track, their frames, and the place of the first damage."""

    def __init__(self, media: Media) -> None:
        self._media = media
        self._faults = _FaultLog()
        self._decoding = Decoding(media, self._faults)
        self._num_shown: list[int] = []
        """Number of frames that the packets up to and with each sent one promise"""
        self._entries: list[int] = []
        """Packets whose picture, and all that follow it in decode order, refer to no picture before it"""
        self._shown: list[tuple[int, float]] = []
        """Packet and time [seconds] of each frame, in presentation order"""
        self._cut: int | None = None
        """Number of the first packet that may be damaged, or None as long as there is none"""
        self._cut_off: int | None = None
        """Number of the first packet that the end of the file may concern, if the file ends too early"""
        self._cause = self._message = ""
        self._container = media.container.format.name
        self._has_tables = "mp4" in self._container
        """True if tables give the place of each packet. What the demuxer reports is about them, not about a place"""
        self._reach = 1 if self._has_tables else MARK_DISTANCE + 1
        """Number of packets, before that of a report, that the report may concern"""

    def read(self) -> None:
        """Decode the file, and locate its faults."""
        packet = None
        for packet in self._media.packets(self._faults, self._decoding.check):
            self._decode_and_locate(packet)
        if packet is not None and packet.size:  # the file cannot be read to its end
            self._decode_and_locate(type(packet)())
        for cause, what in self._faults.taken():  # found after the last packet: at its end, or at no known place
            is_cut_off = cause == "truncated"
            self._mark(len(self._num_shown) - self._reach if is_cut_off else 0, cause, what, is_cut_off=is_cut_off)
        self._decoding.settle()
        reasons = self._faults.taken() or [("decode", "the decoder shows no frame for a packet")]
        for number, _ in self._decoding.lost():
            self._mark(number, *reasons[0])

    def _decode_and_locate(self, packet: Any) -> None:
        """Decode the next packet, and locate the faults that were reported since the last one."""
        decoding, check = self._decoding, self._decoding.check
        of_container = self._faults.taken()
        pictures = []
        for frame in decoding.frames(packet):
            self._shown.append((decoding.last[0], frame.pts_seconds))
            pictures.append((decoding.last[0], frame.picture))
        number = decoding.num_sent - 1
        if decoding.num_sent > len(self._num_shown):
            self._num_shown.append(check.num_shown)
            if packet.is_keyframe or check.reader.is_entry(memoryview(packet)):
                self._entries.append(number)
        is_after_end = not packet.size
        for cause, what in of_container:
            is_cut_off = cause == "truncated"
            is_of_demuxer = f": {self._container}:" in what or ": : " in what  # its helpers have no name
            has_place = is_cut_off or not (self._has_tables and is_of_demuxer)
            place = number - self._reach + is_after_end if has_place else 0
            self._mark(place, cause, what, is_cut_off=is_cut_off)
        for cause, what in self._faults.taken():
            if not check.has_started:
                self._mark(0, cause, what)
            elif decoding.decoder.problem == MARKED:
                marked = [number for number, picture in pictures if picture.is_corrupt]
                self._mark(min(marked, default=0), cause, what)
            elif decoding.decoder.problem or check.problem or is_after_end or not pictures:
                self._mark(number - self._reach, cause, what, is_cut_off=cause == "truncated")
            else:  # about the frames that came out
                self._mark(min(number for number, _ in pictures), cause, what)

    def _mark(self, number: int, cause: str, what: str, *, is_cut_off: bool = False) -> None:
        """Note a damaged packet. The first one in decode order counts."""
        if is_cut_off and self._cut_off is None:
            self._cut_off = number
        if self._cut is None or number < self._cut:
            self._cut, self._cause, self._message = max(0, number), cause, what

    def facts(self) -> DamageFacts | None:
        """Return the number of frames before the damage."""
        cut = self._cut or 0
        if self._cut_off is None or cut < self._cut_off - MARK_DISTANCE:  # the damage is not at the end
            cut = max((entry for entry in self._entries if entry <= cut), default=0)
        # Frame n is shown once n + delay packets with a frame are decoded. Later packets show no frame before it
        delay = self._media.require_video().codec_context.has_b_frames
        num_kept = (self._num_shown[cut - 1] if cut else 0) - delay
        num_kept = next((n for n, (packet, _) in enumerate(self._shown[:num_kept]) if packet >= cut), max(0, num_kept))
        if not num_kept:
            return None
        check = self._decoding.check
        seconds = [at for _, at in self._shown]
        frame_seconds = float(self._media.frame_seconds)
        return DamageFacts(
            num_frames_kept=num_kept,
            num_frames=max(check.num_shown + self._faults.num_missing, num_kept),
            seconds_kept=round(max(seconds[:num_kept]) - seconds[0] + frame_seconds, 6),
            cause=self._cause,
            message=self._message,
        )
