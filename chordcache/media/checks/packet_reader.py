"""Base class of readers, which answer questions about the bytes of packets of any codec, and a reader of bits."""

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

    def has_picture(self, packet: memoryview) -> bool:
        """Return whether a packet that yields no frame of its own has a part of a picture, such as a second field."""
        return False

    def begins_picture(self, packet: memoryview) -> bool:
        """Return whether a packet without a picture has what only a picture may follow."""
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


class Bits:
    """Reader of bits from the front of some bytes (ITU-T H.264, 7.2 and 9.1). Raises ``ValueError`` behind the end.

    Examples
    --------
    >>> bits = Bits(bytes([0b1_010_0110, 0b0_0000000]))
    >>> bits.ue(), bits.ue(), bits.ue()
    (0, 1, 2)
    """

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._num_left = 8 * len(data)

    def u(self, num_bits: int) -> int:
        """Read an unsigned number of this many bits."""
        self._num_left -= num_bits
        return self._value >> self._num_left & ((1 << num_bits) - 1)

    def ue(self) -> int:
        """Read an Exp-Golomb code. A signed code has the same length, and can be skipped in this way."""
        num_zeros = self._num_left - (self._value & ((1 << self._num_left) - 1)).bit_length()
        self._num_left -= num_zeros
        return self.u(num_zeros + 1) - 1
