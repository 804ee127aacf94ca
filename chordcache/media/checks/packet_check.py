"""Role and faults of each packet of a video track, before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from chordcache.amounts import counted
from chordcache.media.checks.faults import Faults
from chordcache.media.checks.packet_reader import SMALL_PACKET_BYTES, PacketReader


class Role(Enum):
    """Result of decoding a packet."""

    SHOWN = "a frame"
    HIDDEN = "nothing of its own: it is only referred to, or completes another packet's frame"
    DISCARDED = "nothing: the edit list cuts it off"
    SKIPPED = "nothing: it needs what came before the start of the stream"


class PacketCheck:
    """Check of the packets of a track in decode order, from where decoding begins.

    A stream may begin in the middle of a group of pictures, as recordings and copied parts do. Packets before the
    first keyframe are skipped and counted. So are pictures after that keyframe which are shown before it.

    A thorough check also reads every packet, for ``problem`` and ``num_left_out``. This takes 5 us for each.
    ``is_called_key`` returns whether the container calls a packet a keyframe. The packet's own flag may have been
    corrected from its bytes. If ``dts_counts_frames``, a gap of decoding times after the first keyframe means that a
    frame is missing, and not that the next picture is shown before the keyframe.
    """

    def __init__(
        self,
        reader: PacketReader,
        *,
        is_thorough: bool,
        is_called_key: Callable[[Any], bool] | None = None,
        dts_counts_frames: bool = False,
    ) -> None:
        self.reader = reader
        self._is_thorough = is_thorough
        self._is_called_key = is_called_key
        self._dts_counts_frames = dts_counts_frames
        self.has_started = False
        """True after a packet with which decoding can begin"""
        self.has_clean_start = True
        """True if that was the first packet, and the packets after it do not need older ones"""
        self._start_pts: int | None = None
        self._may_lead = False
        """True if pictures that are shown before the first keyframe may still come"""
        self._last_dts: int | None = None
        self.num_packets = 0
        self.num_discarded = 0
        self.num_skipped = 0
        self.num_shown = 0
        self.leading_dts: list[int] = []
        """Decoding times of the skipped packets that come after the first keyframe"""
        self.problem: str | None = None
        """Fault of the last packet, which its decoder may not report; None if there is none"""
        self.num_left_out = 0
        """Number of missing frames before the last packet"""

    def role(self, packet: Any) -> Role:
        """Return the role of the next packet, and set ``problem``."""
        self.num_packets += 1
        is_settled = self.has_started and not (self._may_lead or self._is_thorough or self.reader.checks_all)
        if is_settled and packet.size >= SMALL_PACKET_BYTES and not (packet.is_keyframe or packet.is_discard):
            self.num_shown += 1
            return Role.SHOWN  # most packets of a scan, whose bytes need not be read
        data = memoryview(packet)
        self.problem, self.num_left_out = None, 0
        if self._is_thorough:
            self.problem, self.num_left_out = self.reader.problem(data), self.reader.num_left_out(data)
        is_skipped = self._is_skipped(packet, data)
        if packet.is_discard:
            self.num_discarded += 1
            return Role.DISCARDED
        if is_skipped:
            self.num_left_out = 0
            self.num_skipped += 1
            if self.has_started and packet.dts is not None:
                self.leading_dts.append(packet.dts)
            return Role.SKIPPED
        if (self.reader.checks_all or len(data) < SMALL_PACKET_BYTES) and self.reader.is_hidden(data):
            return Role.HIDDEN
        self.num_shown += 1
        return Role.SHOWN

    def report(self, faults: Faults, where: str) -> None:
        """Add the faults of the last packet to ``faults``."""
        if self.problem:
            faults.add("decode", f"{where}: {self.problem}")
        if self.num_left_out:
            faults.num_missing += self.num_left_out
            frames = counted(self.num_left_out, "frame")
            verb = "is" if self.num_left_out == 1 else "are"
            faults.add("decode", f"{where}: {frames} that others refer to {verb} not in the file")

    def why_nothing(self) -> str:
        """Return why no packet so far shows a frame."""
        if not self.num_packets:
            return "the video track has no packets"
        if self.num_discarded == self.num_packets:
            return f"its edit list cuts off all of the {self.num_packets} packets of the video track"
        if not self.has_started:
            return f"the {self.num_packets} packets of the video track contain no keyframe"
        return f"none of the {self.num_packets} packets of the video track shows a frame"

    def _is_skipped(self, packet: Any, data: memoryview) -> bool:
        if not self.has_started:
            self.has_started = self.reader.is_start(data, is_keyframe=packet.is_keyframe)
            is_clean = self.has_started and self.reader.is_clean_start(data)
            self.has_clean_start &= is_clean
            self._start_pts, self._may_lead = packet.pts, self.has_started and not is_clean
            # a program stream that begins within a packet gives its first keyframe the time of a later picture
            self._last_dts = packet.dts if self._dts_counts_frames else None
            is_called_key = self._is_called_key is not None and self.num_packets == 1 and self._is_called_key(packet)
            if not self.has_started and is_called_key and not self.problem:
                self.problem = "the first packet is called a keyframe, and is not one"
            return not self.has_started
        if packet.is_keyframe:
            self._start_pts, self._may_lead = packet.pts, self.reader.breaks_off(data)
            self._last_dts = packet.dts
            return False
        if not self._may_lead:
            return False
        last, self._last_dts = self._last_dts, packet.dts
        if last is not None and packet.dts is not None:
            is_joint = packet.dts < last
            self._may_lead = not is_joint and not (self._dts_counts_frames and packet.dts > last + 1)
        if not self._may_lead:
            return False
        return self.reader.is_leading(data, packet.pts, self._start_pts)
