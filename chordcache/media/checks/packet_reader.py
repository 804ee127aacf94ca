"""Base class of readers, which answer questions about the bytes of packets of any codec."""

from __future__ import annotations

HEAD_BYTES = 1 << 16
"""Length of the part of a packet that is searched for its first picture. Parameter sets and messages come before it."""

SMALL_PACKET_BYTES = 256
"""Size from which on a packet always holds a picture. Only smaller packets are searched for one."""


class PacketReader:
    """Reader of the packets of one video track in decode order. This class serves codecs without a reader."""

    checks_all = False
    """True if ``is_hidden`` has to see every packet, not only small ones"""
    knows_leading = True
    """True if ``is_leading`` names exactly the packets that show nothing after a start that is not clean"""

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        """Return whether decoding of a stream can begin with this packet."""
        return True

    def is_clean_start(self, packet: memoryview) -> bool:
        """Return whether all packets can be decoded after a start with this one, even if they are shown before it."""
        return False

    def is_entry(self, packet: memoryview) -> bool:
        """Return whether all pictures shown from this keyframe on are right if decoding begins at it."""
        return False

    def breaks_off(self, packet: memoryview) -> bool:
        """Return whether a keyframe in mid-stream states that the packets before it are missing."""
        return False

    def is_leading(self, packet: memoryview, pts: int | None, start_pts: int | None) -> bool:
        """Return whether a packet after an unclean start is shown before that start, and needs older packets."""
        return False

    def is_hidden(self, packet: memoryview) -> bool:
        """Return whether a packet yields no frame of its own: it is only referred to, or completes another frame."""
        return False

    def may_share_frames(self, smallest_bytes: int) -> bool:
        """Return whether there may be more packets than frames, if the smallest packet has this many bytes."""
        return False

    def problem(self, packet: memoryview) -> str | None:
        """Return a packet's fault, which its decoder may not report; None if there is none."""
        return None

    def num_left_out(self, packet: memoryview) -> int:
        """Return the number of missing frames between the packet before and this one, as far as frames are numbered."""
        return 0
