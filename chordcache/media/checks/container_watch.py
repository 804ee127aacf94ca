"""Faults that a container reveals: its numbers against its content, marks and gaps of packets, and missing packets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO, TypeAlias

import av

from chordcache.amounts import counted
from chordcache.errors import MediaError
from chordcache.media.checks.avi import loss_of_avi
from chordcache.media.checks.faults import Loss
from chordcache.media.checks.flv import loss_of_flv
from chordcache.media.checks.mp4 import loss_of_mp4
from chordcache.media.checks.ogg import loss_of_ogg
from chordcache.media.checks.transport_stream import joints, loss_of_transport_stream
from chordcache.media.checks.truncation import end_problem
from chordcache.media.joints import JOINABLE, TrackPart
from chordcache.media.source_bytes import opened

Reader: TypeAlias = "Callable[[BinaryIO, int], Loss | None]"
"""Function of an open file and the number of its video track in the container. It reads headers and tables only."""

_READERS: dict[str, Reader] = {
    "avi": loss_of_avi,
    "flv": loss_of_flv,
    "mov,mp4,m4a,3gp,3g2,mj2": loss_of_mp4,
    "mpegts": loss_of_transport_stream,
    "ogg": loss_of_ogg,
}
"""Reader by libavformat's name of the format"""

PROVED = frozenset((*_READERS, "matroska,webm", "mpeg", "h264", "hevc", "av1", "obu"))
"""Formats whose own numbers are compared with the content: here, by ``truncation``, or in the headers of pictures.
FFmpeg's report is believed of all others."""

_PROMISING = ("flv", "matroska,webm")
"""Formats whose header states the duration of the content, apart from any table of packets"""

MARK_DISTANCE = 2
"""Number of packets between a marked one and its report. A parser may attach the mark to the packet before."""

_TOLERANCE_SECONDS = 0.5
"""[seconds] Largest difference between the stated duration and the end of the packets. Writers round, and may leave out
the last frame's duration."""


def first_loss(path: str, container: str, *, track: int) -> Loss | None:
    """Return the first loss that the numbers of a container reveal; None if they agree with its content.

    ``container`` is libavformat's name of the format, and ``track`` the number of the video track in the container.
    Raise ``MediaError``, ``io``, if the file cannot be read.
    """
    if container not in _READERS:
        return None
    with opened(path) as file:
        return _READERS[container](file, track)


class ContainerWatch:
    """Watch over the packets of the video track as they are demuxed.

    ``loss`` is ``first_loss`` of the file. It is reported at the first packet behind it. ``reopen`` opens the file
    again.
    """

    def __init__(self, container: Any, video: av.VideoStream, loss: Loss | None, reopen: Callable[[], Any]) -> None:
        self._container = container
        self._video = video
        self._reopen = reopen
        self.counts_frames = container.format.name == "ogg" and video.codec_context.name == "theora"
        """True if presentation times count frames, so that a gap means a lost frame. Matroska's are milliseconds"""
        is_guess = video.codec_context.name == "mpeg4" and container.format.name in ("m4v", "matroska,webm")
        self._may_be_set_back = is_guess or container.format.name in JOINABLE
        """True if recordings may be joined, or if libavformat guesses decoding times, before it knows of B pictures"""
        self._is_promising = container.format.name in _PROMISING
        self._marked: int | None = None
        """First packet that is marked as damaged and not reported yet"""
        self._marked_at: list[int | None] = []
        """[bytes] Positions in the file of this packet and those after it"""
        self._joints: set[int] | None = None
        """[bytes] Positions where streams were joined in a transport stream; None before they were searched"""
        self._part: TrackPart | None = None
        self._loss = loss
        """Loss that is not reported yet"""
        self._last_dts: int | None = None
        self._last_pts: int | None = None
        self._last_at: int | None = None
        """[bytes] Position of the last packet in the file"""
        self._end_ticks = 0
        self.num_packets = 0
        self.num_missing = 0
        """Number of frames that are missing in the file, according to its container"""
        self.num_marked = 0
        """Number of packets that the container marks as damaged"""

    def refuse_chained(self, packet: Any, said: str | None) -> None:
        """Raise ``MediaError`` at the second of several streams that follow each other in an Ogg file."""
        is_header = self.counts_frames and self.num_packets and packet.size and memoryview(packet)[0] >> 7
        if is_header or (said and "create or replace stream" in said):
            what = "chained Ogg: streams joined one after the other; split them, or convert them into one"
            raise MediaError("decode", "refused-format", what, self.num_packets)

    def faults_before(self, packet: Any, part: TrackPart | None) -> list[str]:
        """Take the next packet, or the empty one at the end. Return faults of this packet or the one before it.

        ``part`` is the recording that it belongs to, in a file of joined recordings.
        """
        size, dts = packet.size, packet.dts
        is_set_back = dts is not None and self._last_dts is not None and dts < self._last_dts
        if packet.is_discard:  # it separates the parts of an edit list, whose decoding times may overlap
            self._last_dts, is_set_back = None, False
        elif size and dts is not None:
            self._last_dts = dts
        if part is not self._part:
            self._part, self._marked = part, None  # the counters of packets jump between recordings
        faults: list[str] = []
        if self._loss is not None and self._loss.at is not None and size and (packet.pos or 0) >= self._loss.at:
            faults.append(self._loss.what)
            self._loss = None
        if is_set_back and not self._may_be_set_back:
            faults.append(f"packet {self.num_packets} has an earlier time than the one before it")
        if packet.is_corrupt and size and self._marked is None:
            self._marked, self._marked_at = self.num_packets, []
        if self._marked is not None:
            self._marked_at.append(packet.pos)
            if self.num_packets - self._marked >= MARK_DISTANCE or not size:
                faults += self._mark_faults()
        if self.counts_frames and packet.pts is not None:
            # libavformat guesses the first time
            num_missing = packet.pts - self._last_pts - 1 if self._last_pts is not None and self.num_packets > 1 else 0
            if num_missing > 0:
                self.num_missing += num_missing
                faults.append(f"{counted(num_missing, 'frame')} before packet {self.num_packets} missing in the file")
            self._last_pts = packet.pts
        self.num_packets += bool(size)
        if size and self._is_promising:
            self._last_at = packet.pos
            if packet.pts is not None:
                self._end_ticks = max(self._end_ticks, packet.pts + (packet.duration or 0))
        return faults

    def faults_at_end(self) -> list[tuple[str, str]]:
        """Return cause and message of each fault that is found after the last packet.

        Raise ``OSError`` if the file cannot be read any more, and ``MediaError`` if it cannot be opened again.
        """
        faults: list[tuple[str, str]] = []
        path, name = self._container.name, self._container.format.name
        if self._loss is not None:
            # no packet is behind it
            faults.append((self._loss.cause if self._loss.at is None else "truncated", self._loss.what))
        problem = end_problem(path, name, last_packet_at=self._last_at)
        if problem:
            faults.append(("truncated", f"the file ends {problem}"))
        entries = self._video.index_entries if "mp4" in name else ()
        if len(entries) > self.num_packets:  # libavformat is silent about samples that it does not read
            num_unread = max(0, sum([entry.size > 0 for entry in entries]) - self.num_packets)
            is_cut = any(entry.pos + entry.size > self._container.size for entry in entries)
            self.num_missing += num_unread
            samples = counted(num_unread, "sample")
            if num_unread and is_cut:
                verb = "lies" if num_unread == 1 else "lie"
                faults.append(("truncated", f"{samples} {verb} behind the end of the file"))
            elif num_unread:
                faults.append(("decode", f"{samples} of its tables cannot be read"))
        promised = (self._container.duration or 0) / av.time_base if self._is_promising else 0.0
        end_seconds = float(self._end_ticks * (self._video.time_base or 0))
        if end_seconds < promised - _TOLERANCE_SECONDS:  # sound may be longer than the pictures
            with self._reopen() as container:
                for packet in container.demux():
                    if packet.pts is not None and packet.time_base is not None:
                        end_ticks = packet.pts + (packet.duration or 0)
                        end_seconds = max(end_seconds, float(end_ticks * packet.time_base))
        if end_seconds < promised - _TOLERANCE_SECONDS:
            faults.append(
                ("truncated", f"its header promises {promised:.3f} s, and its packets end at {end_seconds:.3f} s")
            )
            rate = self._video.guessed_rate or self._video.average_rate
            self.num_missing += round((promised - end_seconds) * float(rate or 0))
        return faults

    def _mark_faults(self) -> list[str]:
        number, self._marked = self._marked, None
        if self._container.format.name == "mpegts" and self._joints is None:
            try:
                self._joints = joints(self._container.name, self._video.id)
            except OSError:  # the input is not a file, or the file was removed
                self._joints = set()
        if self._joints and not self._joints.isdisjoint(self._marked_at):
            return []
        self.num_marked += 1
        return [f"its container marks packet {number} as damaged"]
