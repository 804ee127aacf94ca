"""Decode a video track. Each packet that promises a frame is matched with its frame."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import av

from chordcache import progress
from chordcache.errors import MediaError
from chordcache.media.audio_track import Sound
from chordcache.media.checks.faults import Faults
from chordcache.media.checks.packet_check import Role
from chordcache.media.demux import Media
from chordcache.media.joints import JOINABLE
from chordcache.media.picture_folders import has_jpeg_files

_STREAMS = (*JOINABLE, "h264", "hevc")
"""Formats in which no table or header states where packets begin and end, so that a parser divides them"""


class DecodedFrame(NamedTuple):
    """One picture in presentation order."""

    number: int
    """Number of the frame from 0, counted over all decoded frames"""
    pts_seconds: float
    """[seconds] Time on the clock that audio and video share, not shifted to start at 0"""
    picture: av.VideoFrame
    """Picture as the decoder returned it: coded size, not rotated"""
    jpeg: bytes | None = None
    """File that it was decoded from, if the source has a JPEG file for each frame"""


class Decoding:
    """Decoder of packets as they are demuxed, which keeps account of the frames that they promise.

    ``faults`` gets the faults that are found.
    """

    def __init__(self, media: Media, faults: Faults, *, motion_vectors: bool = False) -> None:
        self._media = media
        self._faults = faults
        self._decoder = media.video_decoder(motion_vectors=motion_vectors)
        self.check = media.packet_check(is_thorough=True)
        self._time_base = media.require_video().time_base or Fraction(1)
        self._due: deque[int | None] = deque()
        """Decoding times of packets whose frames have not come yet, if packets have no presentation times"""
        self._frame_seconds = float(media.frame_seconds)
        self._next_seconds = 0.0
        """[seconds] Time of the next frame, if its packet has none"""
        self._num_sent = 0
        """Number of packets that were sent to the decoder so far. They are numbered from 0, in decode order"""
        self._promised: dict[int, int | None] = {}
        """Presentation times of packets whose frames have not come yet, by number of the packet"""
        self._jpegs: dict[int, bytes] = {}
        """Packets whose frames have not come yet, if these are JPEG files"""
        self._has_jpegs = media.is_file and has_jpeg_files(media.container)
        self._first: tuple[int, int | None] | None = None
        """Number and time of the packet whose frame came first"""
        self._last: tuple[int, int | None] = (-1, None)
        """Number and time of the packet that the last frame came from, -1 before the first frame"""
        self._last_dts: int | None = None
        self._set_backs: list[int] = []
        """Packets at which the clock is set back, as in streams joined without rewriting"""
        self._num_frames = 0
        self._is_without_picture = self._is_begun = False
        """True if the last packet has no picture; if it has parameter sets, which a picture has to follow"""
        self._empty_problem: str | None = None
        """Fault of a packet without a picture. It is none at the end of a stream, which may end in any other unit"""

    def frames(self, packet: av.Packet[av.VideoStream]) -> Iterator[DecodedFrame]:
        """Decode a packet, and yield the frames that come out. An empty packet yields all remaining frames."""
        pictures = self._send(packet) if packet.size else self._decoder.finish()
        if self._empty_problem and packet.size:
            self._note_problem(self._empty_problem, is_damaged=True)
            self._empty_problem = None
        if self._decoder.problem and self._is_without_picture and packet.size:
            self._empty_problem = self._decoder.problem
        elif self._decoder.problem and (self.check.has_started or not packet.size):
            self._note_problem(self._decoder.problem, is_damaged=bool(packet.size) or self._decoder.is_cut_off)
        if self._is_begun and not packet.size:
            self._faults.num_damaged += 1
            self._faults.add("truncated", f"after frame {self._num_frames}: parameter sets without a picture")
        for number, picture in pictures:
            self._match(number, picture)
            jpeg = None if number is None else self._jpegs.pop(number, None)
            yield DecodedFrame(self._num_frames, self._time_of(picture), picture, jpeg)
            self._num_frames += 1

    def _note_problem(self, problem: str, *, is_damaged: bool) -> None:
        self._faults.num_damaged += is_damaged
        self._faults.add(
            "truncated" if self._decoder.is_cut_off else "decode", f"after frame {self._num_frames}: {problem}"
        )

    def _send(self, packet: av.Packet[av.VideoStream]) -> list[tuple[int | None, av.VideoFrame]]:
        role = self.check.role(packet)
        name, data = self._media.container.format.name, memoryview(packet)
        is_hidden = role is Role.HIDDEN and name in _STREAMS
        self._is_without_picture = is_hidden and not self.check.reader.has_picture(data)
        self._is_begun = self._is_without_picture and self.check.reader.begins_picture(data)
        if self.check.problem or self.check.num_left_out:
            self.check.report(self._faults, f"after frame {self._num_frames}")
        has_frame = role is Role.SHOWN or (role is Role.SKIPPED and self.check.has_started)
        if has_frame and self._media.timestamp_source == "dts":
            self._due.append(packet.dts)
            if role is Role.SKIPPED:  # its frame was to be shown before all expected ones
                self._due.popleft()
        if role is Role.SKIPPED or not self.check.has_started:
            return []
        number, self._num_sent = self._num_sent, self._num_sent + 1
        if role is Role.SHOWN:
            self._promised[number] = packet.pts
        if self._has_jpegs:
            self._jpegs[number] = bytes(packet)
        dts, last_dts, self._last_dts = packet.dts, self._last_dts, packet.dts
        if name in JOINABLE and last_dts is not None and dts is not None and dts < last_dts:
            self._set_backs.append(number)
        return self._decoder.decode(packet, number)

    def _match(self, number: int | None, picture: av.VideoFrame) -> None:
        """Mark a frame as received, and compare its time with that of the frame before it."""
        if number is None:  # this decoder does not report the packet of a frame
            number = next(iter(self._promised), self._num_sent)
        self._promised.pop(number, None)
        if self._first is None:
            self._first = (number, picture.pts)
        last, pts = self._last
        self._last = (number, picture.pts)
        is_timed = self._media.timestamp_source == "pts"
        if is_timed and pts is not None and picture.pts is not None and picture.pts < pts:
            early, late = sorted((last, number))
            if not any(early < at <= late for at in self._set_backs):
                what = f"frame {self._num_frames} has an earlier time than the one shown before it"
                if self.check.num_discarded:
                    raise MediaError("decode", "edit-list", f"{what}: its edit list repeats or moves parts of it")
                self._faults.add("decode", what)

    def _time_of(self, picture: av.VideoFrame) -> float:
        """Return the time of the next picture [seconds].

        B-frames delay the decoder, not the pictures. If packets have decoding times only, frame n is shown when packet
        n is due.
        """
        stamp = picture.pts if self._media.timestamp_source == "pts" else self._due.popleft() if self._due else None
        seconds = self._next_seconds if stamp is None else float(stamp * self._time_base)
        self._next_seconds = seconds + self._frame_seconds
        return seconds

    def settle(self) -> None:
        """Count the frames that did not come, after the last packet, and set ``Media.num_skipped``.

        Raise ``MediaError``, ``no-frames``, if no frame came, and no fault is known.
        """
        lost = [promise for promise in self._promised.items() if not self._is_before_start(*promise)]
        self._media.num_skipped = self.check.num_skipped + len(self._promised) - len(lost)
        self._faults.num_lost += len(lost)
        if lost and not self._faults.has_reason:
            self._faults.add(*self._reason_of(lost))
        if not self._num_frames and not self._faults:
            what = "no frame can be decoded" if self.check.num_shown else self.check.why_nothing()
            raise MediaError("decode", "no-frames", what)

    def _is_before_start(self, number: int, pts: int | None) -> bool:
        """Return whether a packet is shown before the first frame that the stream can be decoded from."""
        if self.check.has_clean_start or self.check.reader.knows_leading or self._first is None:
            return False
        first, first_pts = self._first
        return number < first or (pts is not None and first_pts is not None and pts < first_pts)

    def _reason_of(self, lost: list[tuple[int, int | None]]) -> tuple[str, str]:
        """Return cause and message for frames that are lost without a message of the decoder."""
        times = [pts for _, pts in lost if pts is not None]
        last = self._last[1]
        if self._media.timestamp_source != "pts" or not times or last is None:
            return "decode", "the decoder says nothing about it"
        if min(times) > last:
            return "short", f"the last {float((max(times) - last) * self._time_base):.3f} s cannot be decoded"
        first_seconds = float(min(times) * self._time_base)
        return "decode", f"the first at {first_seconds:.3f} s; the decoder says nothing about it"


def decode_frames(
    media: Media,
    *,
    motion_vectors: bool = False,
    on_sound: Callable[[Sound], None] | None = None,
) -> Iterator[DecodedFrame]:
    """Decode every frame that is to be shown, in presentation order, on one thread, from the start of the file.

    After a fault is found, no more frames are yielded. The rest of the file is still decoded, to count the lost frames.
    With ``motion_vectors``, pictures have those as side data. ``on_sound`` gets the audio track, decoded in the same
    pass. Packets that its decoder refuses are skipped, as in players.

    Raises
    ------
    MediaError
        At the end: ``decode`` if packets yield no frame, or if the decoder or the container reports damage;
        ``truncated`` or ``short`` if the file ends too early; ``no-frames`` if no frame comes out.
    """
    faults = Faults()
    decoding = Decoding(media, faults, motion_vectors=motion_vectors)
    num_ok = 0
    for packet in media.packets(faults, decoding.check, on_sound=on_sound):
        for frame in decoding.frames(packet):
            progress.beat()
            if not faults:
                yield frame
                num_ok += 1
            elif not media.is_file:
                raise faults.error(decoding.check.num_shown, num_ok)
    decoding.settle()
    if faults:
        raise faults.error(decoding.check.num_shown, num_ok)


def decode_from(media: Media, entry_pts: int | None, *, motion_vectors: bool = False) -> Iterator[DecodedFrame]:
    """Decode from a keyframe on, in a file whose packets were all checked before.

    ``entry_pts`` is as in ``Media.packets_from``, ``motion_vectors`` as in ``decode_frames``. The first pass over an
    open file decides. Raise ``MediaError``, ``decode``, before the first frame that may be wrong.
    """
    faults = Faults()
    decoding = Decoding(media, faults, motion_vectors=motion_vectors)
    num_ok = 0
    for packet in media.packets_from(entry_pts):
        frames = list(decoding.frames(packet))
        if faults:
            raise faults.error(decoding.check.num_shown, num_ok)
        yield from frames
        num_ok += len(frames)
