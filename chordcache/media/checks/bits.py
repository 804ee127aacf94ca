"""Bits of the headers of H.264 and MPEG-4."""

from __future__ import annotations


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
