"""What is asked of the bytes of packets, whatever their codec."""

from __future__ import annotations

HEAD_BYTES = 1 << 16
"""Of a packet, searched for its first picture; parameter sets and messages come before it."""

SMALL_PACKET_BYTES = 256
"""A packet of this size or more holds a picture: only smaller ones are searched for one."""


class PacketReader:
    """Read packets of one video track in decode order. This class serves codecs of which nothing is known."""

    checks_all = False
    """Whether ``is_hidden`` has to see every packet, not only small ones"""
    knows_leading = True
    """Whether exactly the packets that ``is_leading`` names show nothing after a start that is not clean"""

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        """Whether decoding of a stream can begin with this packet."""
        return True

    def is_clean_start(self, packet: memoryview) -> bool:
        """Whether everything can be decoded that follows a start with this packet, also what is shown before it."""
        return False

    def is_entry(self, packet: memoryview) -> bool:
        """Whether all that is shown from this keyframe's packet on comes out as if decoded from the start."""
        return False

    def breaks_off(self, packet: memoryview) -> bool:
        """Whether a keyframe in mid-stream says that what came before it is not there any more."""
        return False

    def is_leading(self, packet: memoryview, pts: int | None, start_pts: int | None) -> bool:
        """Whether a packet after a start that is not clean is shown before it, and needs what came before it."""
        return False

    def is_hidden(self, packet: memoryview) -> bool:
        """Whether no frame of its own comes out of a packet: it is only referred to, or completes another one."""
        return False

    def may_share_frames(self, smallest_bytes: int) -> bool:
        """Whether packets, the smallest of which has so many bytes, may be more than the frames that they show."""
        return False

    def problem(self, packet: memoryview) -> str | None:
        """What is wrong with a packet, although its decoder may not report it; None if nothing is."""
        return None

    def num_left_out(self, packet: memoryview) -> int:
        """Frames that were to come between the packet before and this one, as far as they are numbered."""
        return 0
