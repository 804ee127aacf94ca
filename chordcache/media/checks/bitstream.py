"""Readers of the packets of all other codecs, and the choice of the reader for a track."""

from __future__ import annotations

import re
from collections import deque

from chordcache.media.checks.nal_units import H264Reader, HevcReader
from chordcache.media.checks.packet_reader import HEAD_BYTES, Bits, PacketReader

_MAX_NVOP_BYTES = 19
"""Largest MPEG-4 picture that only repeats the one before it ("not coded"). libavcodec's bitstream filter
``mpeg4_unpack_bframes`` uses the same limit."""

_MAX_HELD = 4
"""Number of packets before a mark that may hold the picture which the mark stands for"""

_LAYER_START = re.compile(rb"\x00\x00\x01[\x20-\x2f]")
"""Start of the header of an MPEG-4 layer, which defines how times are written"""

_DIRAC_HEADER_BYTES = 13
"""Length of a Dirac packet without content, such as the end of a sequence"""


class _FlaggedReader(PacketReader):
    """Codecs that can be decoded from each keyframe on, for all later pictures. Containers mark keyframes reliably."""

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        return is_keyframe

    def is_clean_start(self, packet: memoryview) -> bool:
        return True

    def is_entry(self, packet: memoryview) -> bool:
        return self.is_start(packet, is_keyframe=True)


class _Vp8Reader(_FlaggedReader):
    """VP8 (RFC 6386, 9.1), which marks keyframes in the packet."""

    checks_all = True

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        return not packet[0] & 1

    def is_hidden(self, packet: memoryview) -> bool:
        return not packet[0] >> 4 & 1


class _Vp9Reader(_FlaggedReader):
    """VP9, which marks keyframes too (bitstream specification, 6.2 and annex B; the last byte marks a superframe)."""

    checks_all = True

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        at = self._flags_at(packet)
        return not packet[0] >> at & 1 and not packet[0] >> at - 1 & 1

    def is_hidden(self, packet: memoryview) -> bool:
        if packet[-1] >> 5 == 0b110:
            return False
        at = self._flags_at(packet)
        return not packet[0] >> at & 1 and not packet[0] >> at - 2 & 1

    @staticmethod
    def _flags_at(packet: memoryview) -> int:
        """Return the position of the bit show_existing_frame. The frame's type and show_frame follow it."""
        profile = packet[0] >> 5 & 1 | packet[0] >> 3 & 2
        return 3 if profile < 3 else 2


class _MpegReader(PacketReader):
    """MPEG-1, MPEG-2 (ISO/IEC 13818-2, 6.2.3) and MPEG-4 part 2 (ISO/IEC 14496-2, 6.2.5).

    Part 2 has other start codes, and pictures that only repeat the one before them.
    """

    _GROUP_START = b"\0\0\1\xb8"
    """Start of the header of a group of pictures. 25 bits of time follow, then closed_gop."""

    def __init__(self, *, is_part_2: bool = False, extradata: bytes = b"") -> None:
        super().__init__()
        self._is_part_2 = self.checks_all = is_part_2
        self._time_bits = _time_bits(extradata)
        self._picture_start = b"\0\0\1\xb6" if is_part_2 else b"\0\0\1\0"
        self._has_anchor = False
        self._is_closed = False
        self._recent: deque[memoryview] = deque(maxlen=_MAX_HELD)
        """Packets that were not searched for second pictures yet"""
        self._num_held = 0
        """Number of second pictures in earlier packets. Each will be represented by a later mark."""

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        head = bytes(packet[:HEAD_BYTES])
        at = head.find(self._GROUP_START)
        self._is_closed = not self._is_part_2 and 0 <= at < len(head) - 7 and bool(head[at + 7] >> 6 & 1)
        self._has_anchor = False
        self._time_bits = _time_bits(head) or self._time_bits
        kind = self._picture_type(packet)
        return is_keyframe if kind is None else kind == "I"

    def is_clean_start(self, packet: memoryview) -> bool:
        return self._is_closed

    def is_entry(self, packet: memoryview) -> bool:
        return self._picture_type(packet) == "I"

    def is_leading(self, packet: memoryview, pts: int | None, start_pts: int | None) -> bool:
        # B pictures between the first picture and the next anchor are shown before the first
        is_b = self._picture_type(packet) == "B"
        self._has_anchor |= not is_b
        is_earlier = pts is None or start_pts is None or pts < start_pts
        return is_b and is_earlier and not self._has_anchor and not self._is_closed

    def is_hidden(self, packet: memoryview) -> bool:
        if not self._is_part_2:
            return False
        if len(packet) > _MAX_NVOP_BYTES or self._is_coded(bytes(packet)):
            self._recent.append(packet)
            return False
        self._num_held += sum(max(0, bytes(packet).count(self._picture_start) - 1) for packet in self._recent) - 1
        self._recent.clear()
        return self._num_held < 0

    def may_share_frames(self, smallest_bytes: int) -> bool:
        return self._is_part_2 and smallest_bytes <= _MAX_NVOP_BYTES

    def _is_coded(self, packet: bytes) -> bool:
        """Return whether a small packet's picture is more than a mark that nothing changes; True if unknown."""
        at = packet.find(self._picture_start)
        if at < 0 or not self._time_bits:
            return True
        bits = Bits(packet[at + 4 :])
        try:
            bits.u(2)
            while bits.u(1):  # seconds
                pass
            bits.u(1 + self._time_bits + 1)
            return bool(bits.u(1))
        except ValueError:
            return True

    def _picture_type(self, packet: memoryview) -> str | None:
        """Return the type of the first picture, such as "I", "P" or "B"; None if there is none."""
        head = bytes(packet[:HEAD_BYTES])
        at = head.find(self._picture_start) + 4
        if at < 4 or at + 1 >= len(head):
            return None
        if self._is_part_2:
            return "IPBS"[head[at] >> 6]
        return " IPBD   "[head[at + 1] >> 3 & 7]


def _time_bits(data: bytes) -> int:
    """Return the length of a picture's time in MPEG-4, from a layer's header (ISO/IEC 14496-2, 6.2.3), or 0."""
    match = _LAYER_START.search(data)
    if not match:
        return 0
    bits = Bits(data[match.end() : match.end() + 64])
    try:
        bits.u(1 + 8)
        version = bits.u(4 + 3) >> 3 if bits.u(1) else 1
        if bits.u(4) == 15:  # the shape of a pixel
            bits.u(8 + 8)
        if bits.u(1) and bits.u(2 + 1 + 1) & 1:  # sizes of the decoder's buffer
            bits.u(79)
        if bits.u(2) == 3 and version != 1:  # pictures of a shape
            bits.u(4)
        bits.u(1)
        return max(1, (bits.u(16) - 1).bit_length())
    except ValueError:
        return 0


class _TheoraReader(PacketReader):
    """Theora (specification, 7.1: the first bit is 0 for data, the second for an intra frame)."""

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        return not packet[0] >> 6 & 1

    def is_clean_start(self, packet: memoryview) -> bool:
        return True


class _GifReader(_FlaggedReader):
    """GIF (GIF89a, 20 and 24 to 26): extensions after the last image, such as comments, are a packet of their own."""

    checks_all = True
    _IMAGE, _EXTENSION, _SIGNATURE = 0x2C, 0x21, b"GIF"

    def is_hidden(self, packet: memoryview) -> bool:
        # every block of the packet is an extension: a label, and parts with their lengths
        at = 0
        if packet[:3] == self._SIGNATURE and len(packet) > 10:
            at = 13 + (3 << (packet[10] & 7) + 1 if packet[10] & 0x80 else 0)
        while at + 2 < len(packet) and packet[at] == self._EXTENSION:
            at += 2
            while at < len(packet) and packet[at]:
                at += packet[at] + 1
            at += 1
        return at >= len(packet) or packet[at] != self._IMAGE


class _DiracReader(PacketReader):
    """Dirac, which has packets that only end a sequence."""

    def is_hidden(self, packet: memoryview) -> bool:
        return len(packet) <= _DIRAC_HEADER_BYTES


_READERS: dict[str, type[PacketReader]] = {
    "vp8": _Vp8Reader,
    "vp9": _Vp9Reader,
    "theora": _TheoraReader,
    "dirac": _DiracReader,
    "gif": _GifReader,
    **dict.fromkeys(("av1", "mjpeg", "prores", "dnxhd", "ffv1"), _FlaggedReader),
}
"""Readers that need no further facts, by libavcodec's name of the codec"""


def packet_reader(codec: str, extradata: bytes, pixel_format: str = "") -> PacketReader:
    """Return the reader for a track, by libavcodec's name of the codec.

    ``extradata`` is the container's header of the track, which states how H.264 and HEVC packets are divided.
    ``pixel_format`` is that of the decoded pictures.
    """
    if codec == "h264":
        # old x264 encoded 4:4:4 streams wrongly, and identifies itself only in the first packet
        return H264Reader(extradata, has_entries=not pixel_format.startswith("yuv444"))
    if codec == "hevc":
        return HevcReader((extradata[21] & 3) + 1 if len(extradata) > 21 and extradata[0] == 1 else 0)
    if codec in ("mpeg1video", "mpeg2video"):
        return _MpegReader()
    if codec == "mpeg4":
        return _MpegReader(is_part_2=True, extradata=extradata)
    return _READERS.get(codec, PacketReader)()
