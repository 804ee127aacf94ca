"""Packets of H.264 and HEVC: types of units, fields, and the numbers of reference frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from chordcache.media.checks.packet_reader import HEAD_BYTES, SMALL_PACKET_BYTES, Bits, PacketReader

_ZERO_RUN = re.compile(rb"\0{16,}")
"""Run of zeros. H.264 and HEVC escape zeros inside a unit, so more than two in a row are padding or damage."""

_SPS, _PPS = 7, 8


class _NalReader(PacketReader):
    """Reader for codecs with NAL units: H.264 and HEVC.

    ``length_bytes`` is the size of the length field before each unit, 0 for start codes.
    """

    _mask, _shift = 0, 0
    """Position of a unit's type in its first byte"""
    _pictures = range(0)
    """Types that hold a part of a picture"""
    _parameter_sets = range(0)
    """Types that a picture has to follow"""
    _clean = range(0)
    """Types after which pictures that are shown later do not use older ones"""
    _clean_starts = range(0)
    """Types that are not followed by pictures which are shown earlier and need older ones"""

    def __init__(self, length_bytes: int = 0) -> None:
        super().__init__()
        self._length_bytes = length_bytes

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        return is_keyframe or self._first_type(packet) in self._clean

    def is_clean_start(self, packet: memoryview) -> bool:
        return self._first_type(packet) in self._clean_starts

    def is_entry(self, packet: memoryview) -> bool:
        return self._first_type(packet) in self._clean

    def is_hidden(self, packet: memoryview) -> bool:
        return len(packet) < SMALL_PACKET_BYTES and not self.has_picture(packet)

    def has_picture(self, packet: memoryview) -> bool:
        return self._first_type(packet) is not None

    def begins_picture(self, packet: memoryview) -> bool:
        kinds = (packet[start] >> self._shift & self._mask for start, _ in self.units(packet))
        return any(kind in self._parameter_sets for kind in kinds)

    def problem(self, packet: memoryview) -> str | None:
        # zeros inside a unit mean that a disk or a download left out data
        if self._length_bytes and [stop for _, stop in self.units(packet)][-1:] != [len(packet)]:
            return "the units in a packet are not as long as they say"
        has_run = bytes(packet).find(b"\0" * 16) >= 0  # several times as fast as the expression
        for run in _ZERO_RUN.finditer(packet) if has_run else ():
            if not self._is_padding(packet, run.end()):
                return f"{run.end() - run.start()} zero bytes in a packet, where its codec cannot have them"
        return None

    def _first_type(self, packet: memoryview) -> int | None:
        """Return the type of the first unit that holds a picture, None if there is none near the front."""
        head = packet[:HEAD_BYTES]
        kinds = (head[start] >> self._shift & self._mask for start, _ in self.units(head))
        return next((kind for kind in kinds if kind in self._pictures), None)

    def _is_padding(self, packet: memoryview, end: int) -> bool:
        """Return whether zeros that end here are behind a unit."""
        if end == len(packet) or (not self._length_bytes and packet[end] == 1):
            return True
        # the zeros may extend into the length field of the next unit
        return any(stop <= end <= stop + self._length_bytes for _, stop in self.units(packet))

    def units(self, packet: memoryview) -> Iterator[tuple[int, int]]:
        """Yield where each unit starts and stops; the last one may stop behind the end of the packet."""
        at = 0
        if self._length_bytes:
            while at + self._length_bytes < len(packet):
                start = at + self._length_bytes
                at = start + int.from_bytes(packet[at:start], "big")
                yield from self._parts(packet, start, at)
            return
        data = bytes(packet)
        while 0 <= (at := data.find(b"\0\0\1", at)) < len(data) - 3:
            at += 3
            following = data.find(b"\0\0\1", at)
            yield at, len(data) if following < 0 else following

    def _parts(self, packet: memoryview, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the units in one with a length: phones put a prefix and a picture into it, with a start code between.

        libavcodec divides it too. No unit has a start code inside. A picture is not searched, since it is long.
        """
        last = min(stop, len(packet)) - 1
        while packet[start] >> self._shift & self._mask not in self._pictures:
            size = bytes(packet[start:last]).find(b"\0\0\1")
            if size < 0:
                break
            yield start, start + size
            start += size + 3
        yield start, stop


class HevcReader(_NalReader):
    """HEVC (ITU-T H.265, table 7-1)."""

    _mask, _shift = 0x3F, 1
    _pictures, _parameter_sets, _clean, _clean_starts = range(32), range(32, 35), range(16, 22), range(18, 21)
    _BROKEN_LINKS = (16, 17)
    _SKIPPED_LEADING = (8, 9)
    """RASL pictures, which refer to pictures before the one where decoding began"""

    def is_start(self, packet: memoryview, *, is_keyframe: bool) -> bool:
        """See ``PacketReader``. The container's mark is not sufficient."""
        return self.is_entry(packet)

    def breaks_off(self, packet: memoryview) -> bool:
        """See ``PacketReader``."""
        return self._first_type(packet) in self._BROKEN_LINKS

    def is_leading(self, packet: memoryview, pts: int | None, start_pts: int | None) -> bool:
        """See ``PacketReader``."""
        return self._first_type(packet) in self._SKIPPED_LEADING


@dataclass(frozen=True)
class Sps:
    """Facts from a sequence parameter set of H.264 that slice headers depend on."""

    frame_num_bits: int
    has_planes: bool
    """True if each color has slices of its own"""
    may_skip: bool
    """True if gaps in frame_num are allowed"""
    may_have_fields: bool
    chroma: int
    """0 for gray, 1 for 4:2:0, 2 for 4:2:2, 3 for 4:4:4"""
    blocks: tuple[int, int]
    """Columns and rows of macroblocks, rows of a field if there may be fields"""
    rest: Bits
    """Bits that follow: the shown part of a picture, and its colors"""


class SliceHead(NamedTuple):
    """Beginning of a slice's header in H.264 (ITU-T H.264, 7.3.3)."""

    first_block: int
    """0 in the first slice of a picture"""
    sps: Sps
    frame_num: int
    is_field: bool
    is_bottom: bool
    is_reference: bool
    is_idr: bool


class H264Reader(_NalReader):
    """H.264 (ITU-T H.264, 7.3 and table 7-1), with fields and the numbers of reference frames.

    ``extradata`` is the container's header of the track. ``has_entries`` is False if the stream has to be decoded from
    its start.
    """

    _mask, _shift = 0x1F, 0
    _pictures, _parameter_sets, _clean, _clean_starts = range(1, 6), range(_SPS, _PPS + 1), range(5, 6), range(5, 6)
    knows_leading = False
    _HEADER_BYTES = 48
    """Length of the part of a slice that contains all header fields read here"""

    def __init__(self, extradata: bytes = b"", *, has_entries: bool = True) -> None:
        super().__init__((extradata[4] & 3) + 1 if len(extradata) > 4 and extradata[0] == 1 else 0)
        self._has_entries = has_entries
        self._sps: dict[int, Sps] = {}
        self._pps: dict[int, int] = {}
        """Number of a picture parameter set to that of its sequence parameter set"""
        self._open_field: SliceHead | None = None
        """First field of a frame whose second field has not come yet"""
        self._before: SliceHead | None = None
        self._last_number: int | None = None
        """Number of the last reference frame"""
        self._counts_all: bool | None = None
        """True if the encoder also numbers frames that are not references; None while this is unknown"""
        self.checks_all = True  # until the parameter sets show that fields never come in separate packets
        for unit in _parameter_sets(extradata):
            self._read_parameters(unit)

    def is_entry(self, packet: memoryview) -> bool:
        """See ``PacketReader``."""
        return self._has_entries and super().is_entry(packet)

    def is_leading(self, packet: memoryview, pts: int | None, start_pts: int | None) -> bool:
        """See ``PacketReader``."""
        return pts is not None and start_pts is not None and pts < start_pts

    def is_hidden(self, packet: memoryview) -> bool:
        """See ``PacketReader``. A second field completes a frame whose first field came in an earlier packet."""
        if super().is_hidden(packet):
            return True
        slices = list(self._pictures_of(packet)) if self.checks_all else []
        return bool(slices) and not sum([self._begins_frame(header) for header in slices])

    def may_share_frames(self, smallest_bytes: int) -> bool:
        """See ``PacketReader``."""
        return self.checks_all

    def num_left_out(self, packet: memoryview) -> int:
        """See ``PacketReader``. Reference frames are numbered."""
        return sum([self._num_left_out(picture) for picture in self._pictures_of(packet)])

    def active_sps(self, packet: memoryview) -> Sps | None:
        """Return the sequence parameter set of a packet's first picture, or None.

        Without a picture that can be read, return the first one of the container's header.
        """
        for picture in self._pictures_of(packet):
            return picture.sps
        return next(iter(self._sps.values()), None)

    def _slice_head(self, unit: memoryview) -> SliceHead:
        data = _unescaped(unit)
        bits = Bits(data[1:])
        first_block, _, pps_number = bits.ue(), bits.ue(), bits.ue()
        sps = self._sps[self._pps[pps_number]]
        bits.u(2 * sps.has_planes)
        frame_num = bits.u(sps.frame_num_bits)
        is_field = sps.may_have_fields and bool(bits.u(1))
        is_bottom = is_field and bool(bits.u(1))
        is_reference, is_idr = bool(data[0] & 0x60), data[0] & 0x1F == 5
        return SliceHead(first_block, sps, frame_num, is_field, is_bottom, is_reference, is_idr)

    def _num_left_out(self, picture: SliceHead) -> int:
        """Count missing frames between this picture and the last reference frame (ITU-T H.264, 7.4.3, frame_num)."""
        before, self._before, modulus = self._before, picture, 1 << picture.sps.frame_num_bits
        last = 0 if picture.is_idr else self._last_number
        if picture.is_reference or last is None:
            self._last_number = picture.frame_num
        # 0 and 1 also follow a picture that resets the numbers (memory management operation 5)
        if before is None or last is None or picture.sps.may_skip or picture.frame_num <= 1:
            return 0
        if not before.is_reference:
            if self._counts_all is None and picture.is_reference:
                # old encoders count all pictures, the standard only reference pictures
                self._counts_all = picture.frame_num == (before.frame_num + 1) % modulus
            if self._counts_all:
                return 0
        return max(0, (picture.frame_num - last) % modulus - 1) if picture.frame_num != last else 0

    def _begins_frame(self, picture: SliceHead) -> bool:
        """Return whether a picture is a frame or a first field. Fields are paired as in libavcodec."""
        first, self._open_field = self._open_field, None
        if not picture.is_field:
            return True
        if first and first.is_bottom != picture.is_bottom and first.frame_num == picture.frame_num:
            return False
        self._open_field = picture
        return True

    def _pictures_of(self, packet: memoryview) -> Iterator[SliceHead]:
        """Read the parameter sets in a packet, and yield the first slice of each picture."""
        for start, stop in self.units(packet):
            kind = packet[start] & 0x1F
            if kind in (_SPS, _PPS):
                self._read_parameters(packet[start:stop])
            elif kind in (1, 2, 5):
                try:
                    head = self._slice_head(packet[start : start + self._HEADER_BYTES])
                except (LookupError, ValueError):
                    continue
                if not head.first_block:
                    yield head
                    if not head.is_field:  # a frame is one picture
                        return

    def _read_parameters(self, unit: memoryview) -> None:
        """Read a parameter set (ITU-T H.264, 7.3.2.1.1 and 7.3.2.2). Other units are ignored."""
        with suppress(LookupError, ValueError):  # the decoder will report what it cannot read
            data = _unescaped(unit)
            bits = Bits(data[1:])
            if data[0] & 0x1F == _SPS:
                number, self._sps[number] = _read_sps(bits)
            elif data[0] & 0x1F == _PPS:
                number = bits.ue()
                self._pps[number] = bits.ue()
        self.checks_all = not self._sps or any(sps.may_have_fields for sps in self._sps.values())


_CHROMA_PROFILES = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
"""Profiles of H.264 whose parameter sets state how chroma is stored (7.3.2.1.1)"""


def _read_sps(bits: Bits) -> tuple[int, Sps]:
    """Read a sequence parameter set, and return its number and content (ITU-T H.264, 7.3.2.1.1)."""
    profile = bits.u(8)
    bits.u(16)
    number = bits.ue()
    has_planes, chroma = False, 1
    if profile in _CHROMA_PROFILES:
        chroma = bits.ue()
        has_planes = chroma == 3 and bool(bits.u(1))
        bits.ue(), bits.ue(), bits.u(1)
        if bits.u(1):
            for matrix in range(12 if chroma == 3 else 8):
                if bits.u(1):
                    _skip_scaling_list(bits, 16 if matrix < 6 else 64)
    frame_num_bits, order_type = bits.ue() + 4, bits.ue()
    if order_type == 0:
        bits.ue()
    elif order_type == 1:
        bits.u(1), bits.ue(), bits.ue()
        for _ in range(bits.ue()):
            bits.ue()
    bits.ue()
    may_skip = bool(bits.u(1))
    blocks = bits.ue() + 1, bits.ue() + 1
    may_have_fields = not bits.u(1)
    return number, Sps(frame_num_bits, has_planes, may_skip, may_have_fields, chroma, blocks, bits)


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            code = bits.ue()
            following = (last + (code // 2 + 1 if code % 2 else -code // 2)) % 256
        last = following or last


def _unescaped(unit: memoryview) -> bytes:
    """Return a unit without the bytes that prevent start codes inside it."""
    return bytes(unit).replace(b"\0\0\3", b"\0\0")


def _parameter_sets(extradata: bytes) -> Iterator[memoryview]:
    """Yield the units in H.264's extradata: an ``avcC`` box (ISO/IEC 14496-15, 5.3.3.1), or units with start codes."""
    view = memoryview(extradata)
    if extradata[:1] != b"\1":
        yield from (view[start:stop] for start, stop in _NalReader().units(view))
        return
    at = 5
    for mask in (0x1F, 0xFF):
        if at >= len(view):
            return
        num_units, at = view[at] & mask, at + 1
        for _ in range(num_units):
            size = int.from_bytes(view[at : at + 2], "big")
            yield view[at + 2 : at + 2 + size]
            at += 2 + size
