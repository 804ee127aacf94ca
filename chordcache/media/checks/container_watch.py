"""What a container says of its packets while they are read: marks, gaps, and whether all came that it promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import av

from chordcache.errors import MediaError
from chordcache.media.checks.transport_stream import joints, loses_first_picture
from chordcache.media.checks.truncation import end_problem

_PROMISING = ("flv", "matroska,webm")
"""Formats whose header states how long the content is, apart from any table of packets."""

_JOINABLE = ("mpegts", "mpeg")
"""Formats whose files can be put one behind the other; the clock is set back there."""

_MARK_DISTANCE = 2
"""Packets after a marked one until it is said to be damaged: a parser may hand the mark to the packet before."""

_TOLERANCE_SECONDS = 0.5
"""[seconds] that packets may end before that: writers round, and count the last frame or not."""


class ContainerWatch:
    """Look at each packet of the video track as it is demuxed.

    Parameters
    ----------
    container : av.container.InputContainer
        What is read.
    video : av.VideoStream
        Its video track.
    reopen : callable
        Opens the file once more.
    """

    def __init__(self, container: Any, video: av.VideoStream, reopen: Callable[[], Any]) -> None:
        self._container = container
        self._video = video
        self._reopen = reopen
        self.counts_frames = video.codec_context.name == "theora"
        """Whether presentation times count frames, so that a gap means a lost one"""
        self._may_be_joined = container.format.name in _JOINABLE
        self._is_promising = container.format.name in _PROMISING
        self._reads_times = self.counts_frames or self._is_promising
        self._marked: int | None = None
        """The first packet that is marked as damaged, and not said to be yet"""
        self._marked_at: list[int | None] = []
        """[bytes] Where it and those after it lie in the file"""
        self._joints: set[int] | None = None
        """[bytes] Where streams were joined in a transport stream, once that was looked for"""
        self._last_dts: int | None = None
        self._last_pts: int | None = None
        self._last_at: int | None = None
        """[bytes] Where the last packet lies in the file"""
        self._end_ticks = 0
        self.num_packets = 0
        self.num_missing = 0
        """Frames that are not in the file, as far as its container tells"""
        self.num_marked = 0
        """Packets that it marks as damaged"""

    def refuse_chained(self, packet: Any, said: str | None) -> None:
        """Raise ``MediaError`` at the second of several streams that follow each other in an Ogg file."""
        is_header = self.counts_frames and self.num_packets and packet.size and memoryview(packet)[0] >> 7
        if is_header or (said and "create or replace stream" in said):
            what = "chained Ogg: streams joined one after the other; split them, or convert them into one"
            raise MediaError("decode", "refused-format", what, self.num_packets)

    def faults_before(self, packet: Any) -> list[str]:
        """Take the next packet, also an empty one; return what is wrong with it or with the one before it."""
        size, dts = packet.size, packet.dts
        is_ordered = dts is not None and (self._last_dts is None or dts >= self._last_dts)
        if is_ordered and size and not (packet.is_corrupt or self._marked is not None or self._reads_times):
            self._last_dts = dts
            self.num_packets += 1
            return []
        faults: list[str] = []
        if dts is not None:
            if self._last_dts is not None and dts < self._last_dts:
                self._marked = None  # streams were joined here, and so the counters of their packets do not go on
                if not self._may_be_joined:
                    faults.append(f"packet {self.num_packets} has an earlier time than the one before it")
            if size:
                self._last_dts = dts
        if packet.is_corrupt and size and self._marked is None:
            self._marked, self._marked_at = self.num_packets, []
        if self._marked is not None:
            self._marked_at.append(packet.pos)
            if self.num_packets - self._marked >= _MARK_DISTANCE:
                faults += self._mark_faults()
        if self.counts_frames and packet.pts is not None:
            # libavformat guesses the first one
            num_missing = packet.pts - self._last_pts - 1 if self._last_pts is not None and self.num_packets > 1 else 0
            if num_missing > 0:
                self.num_missing += num_missing
                frames = "1 frame" if num_missing == 1 else f"{num_missing} frames"
                faults.append(f"{frames} before packet {self.num_packets} missing in the file")
            self._last_pts = packet.pts
        if size:
            self.num_packets += 1
            if self._is_promising:
                self._last_at = packet.pos
                if packet.pts is not None:
                    self._end_ticks = max(self._end_ticks, packet.pts + (packet.duration or 0))
        return faults

    def faults_at_end(self) -> list[tuple[str, str]]:
        """Return cause and words for what is missing after the last packet.

        Raises
        ------
        OSError
            If the file cannot be read any more.
        MediaError
            If it cannot be opened once more.
        """
        faults = [("decode", what) for what in self._mark_faults()] if self._marked is not None else []
        path, name = self._container.name, self._container.format.name
        if name == "mpegts" and loses_first_picture(path, self._video.id):
            self.num_marked += 1
            faults.append(("decode", "parts of its first picture are missing"))
        problem = end_problem(path, name, last_packet_at=self._last_at)
        if problem:
            faults.append(("truncated", f"the file ends {problem}"))
        num_behind = self._num_samples_behind_end() if "mp4" in name else 0
        if num_behind:
            self.num_missing += num_behind
            samples = "1 sample lies" if num_behind == 1 else f"{num_behind} samples lie"
            faults.append(("truncated", f"{samples} behind the end of the file"))
        promised = (self._container.duration or 0) / av.time_base if self._is_promising else 0.0
        found = float(self._end_ticks * (self._video.time_base or 0))
        if found < promised - _TOLERANCE_SECONDS:
            found = max(found, self._end_seconds())
        if found < promised - _TOLERANCE_SECONDS:
            faults.append(("truncated", f"its header promises {promised:.3f} s, and its packets end at {found:.3f} s"))
            rate = self._video.guessed_rate or self._video.average_rate
            self.num_missing += round((promised - found) * float(rate or 0))
        return faults

    def _num_samples_behind_end(self) -> int:
        """Count samples of an MP4 that were not read, since the file ends before them: libavformat says nothing."""
        samples = self._video.index_entries
        num_unread = len(samples) - self.num_packets
        if num_unread <= 0:
            return 0
        num_bytes: int = self._container.size
        return min(num_unread, sum([each.pos + each.size > num_bytes for each in samples]))

    def _mark_faults(self) -> list[str]:
        number, self._marked = self._marked, None
        if self._container.format.name == "mpegts" and self._joints is None:
            try:
                self._joints = joints(self._container.name, self._video.id)
            except OSError:  # what is read is no file, or not there any more
                self._joints = set()
        if self._joints and not self._joints.isdisjoint(self._marked_at):
            return []
        self.num_marked += 1
        return [f"its container marks packet {number} as damaged"]

    def _end_seconds(self) -> float:
        """[seconds] at which the last packet of any track ends: sound may be longer than the pictures."""
        end = 0.0
        with self._reopen() as container:
            for packet in container.demux():
                if packet.pts is not None and packet.time_base is not None:
                    end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        return end
