"""Counts, sizes and numbers of the packets of ASF and WMV files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from chordcache.media.checks.faults import Loss

_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")

_DATA_HEADER_BYTES = 50
"""Length of the data object without its packets"""

_MIN_PACKET_BYTES = 100
"""Length of packets that are not read. Real ones have kilobytes."""

_MIN_OBJECT_BYTES = 24
"""Length of an object without content: identifier and size"""

_MAX_HEADER_BYTES = 1 << 24
_IS_BROADCAST = 1
"""Flag of a file that was written as a stream. It states neither counts nor sizes."""

_ERROR_CORRECTION = b"\x82\0\0"
"""First bytes of a packet of most writers"""

_LENGTHS = (0, 1, 2, 4)
"""Length of a field [bytes], by its code in the header of a packet"""


class _Payload(NamedTuple):
    """Part of a media object in a packet. A media object is a packet of libavformat."""

    number: int
    """Number of the media object in its stream"""
    modulus: int
    """Modulus of ``number``, 1 if it is not stated"""
    start: int
    """[bytes] Where the part begins in the object"""
    stop: int
    """[bytes] Where it ends"""
    size: int | None
    """[bytes] Length of the object, None if it is not stated"""

    def follows(self, before: _Payload) -> bool:
        """Return whether it is the next part of its stream."""
        if self.start:
            return self.number == before.number and self.start == before.stop
        is_whole = before.size is None or before.stop == before.size
        return is_whole and (self.number - before.number - 1) % self.modulus == 0


def loss_of_asf(file: BinaryIO, track: int) -> Loss | None:
    """Compare the packets of an ASF with their count, with the size of their object, and with numbers in them.

    Times at which packets are sent do not show a loss: they also jump in sound files.

    Notes
    -----
    Source: Microsoft ASF specification 1.2, 3.2 (file properties), 5.1 (data object), 5.2.1 (error correction), 5.2.2
    and 5.2.3 (payloads). Only the files whose packets have one size are read. ``track`` is not needed.
    """
    num_bytes = file.seek(0, 2)
    file.seek(0)
    head = file.read(24)
    if len(head) < 24 or head[:16] != _HEADER:
        return None
    data_at = int(struct.unpack_from("<Q", head, 16)[0])
    if data_at > min(num_bytes, _MAX_HEADER_BYTES):
        return None
    head += file.read(max(0, data_at - 24))
    at = head.find(_FILE_PROPERTIES)
    file.seek(data_at)
    data_header = file.read(_DATA_HEADER_BYTES)
    if at < 0 or len(head) < at + 104 or len(data_header) < _DATA_HEADER_BYTES or data_header[:16] != _DATA:
        return None
    flags, size, largest_size = struct.unpack_from("<III", head, at + 88)
    (data_bytes,) = struct.unpack_from("<Q", data_header, 16)
    (num_packets,) = struct.unpack_from("<Q", data_header, 40)
    if size != largest_size or size < _MIN_PACKET_BYTES:
        return None
    first = data_at + _DATA_HEADER_BYTES
    is_stated = not flags & _IS_BROADCAST and num_packets > 0
    stop = first + num_packets * size if is_stated else num_bytes
    file.seek(first)
    if file.read(len(_ERROR_CORRECTION)) == _ERROR_CORRECTION:
        objects = _Objects()
        for position in range(first, min(stop, num_bytes - 2), size):
            file.seek(position)
            packet = file.read(size)
            if packet[: len(_ERROR_CORRECTION)] == _ERROR_CORRECTION:
                loss = objects.take(packet, position) if len(packet) == size else None
                if loss is not None:
                    return loss
            else:
                num_missing = num_packets - (position - first) // size if is_stated else 0
                return _loss_at(file, position, num_missing, size, num_bytes)
            if position + size > num_bytes:
                return Loss("the file ends inside of a packet", cause="truncated")
    if stop > num_bytes:
        return Loss(f"the file ends before its {num_packets} packets do", cause="truncated")
    if is_stated and data_bytes > _DATA_HEADER_BYTES and data_bytes != _DATA_HEADER_BYTES + num_packets * size:
        return Loss(f"its data object has {data_bytes} bytes, and {num_packets} packets of {size} bytes")
    return None


class _Objects:
    """The media objects of each stream, which are numbered, and whose parts state where they begin."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[_Payload, int]] = {}
        """Last part of each stream, and the position [bytes] behind its packet"""
        self._unnumbered: set[int] = set()
        """Streams whose numbers do not count"""

    def take(self, packet: bytes, position: int) -> Loss | None:
        """Read the next packet. Return the loss before it, if one of its parts does not continue its stream."""
        try:
            payloads = list(_payloads(packet))
        except (IndexError, struct.error):  # the demuxer reports what it cannot read
            return None
        for stream, payload in payloads:
            last, self._last[stream] = self._last.get(stream), (payload, position + len(packet))
            if last is None or stream in self._unnumbered:
                continue
            if payload.number == last[0].number and not payload.start:
                self._unnumbered.add(stream)
            elif not payload.follows(last[0]):
                what = f"part of media object {payload.number} follows part of media object {last[0].number}"
                return Loss(f"packets are missing in the file: in stream {stream}, {what}", last[1])
        return None


def _payloads(packet: bytes) -> Iterator[tuple[int, _Payload]]:
    """Yield number of the stream, and place in its media object, of each part in a packet (5.2.2, 5.2.3)."""
    at = len(_ERROR_CORRECTION) + 2
    kinds, fields = packet[at - 2], packet[at - 1]
    padding = 0
    for shift in (5, 1, 3):  # lengths of the packet, its sequence number, its padding
        length = _LENGTHS[kinds >> shift & 3]
        padding = int.from_bytes(packet[at : at + length], "little")
        at += length
    at += 6  # time and duration
    num_payloads, size_length = 1, 0
    if kinds & 1:
        num_payloads, size_length = packet[at] & 63, _LENGTHS[packet[at] >> 6]
        at += 1
    number_length, start_length, extra_length = (_LENGTHS[fields >> shift & 3] for shift in (4, 2, 0))
    for _ in range(num_payloads):
        stream = packet[at] & 127
        values = []
        at += 1
        for length in (number_length, start_length, extra_length):
            values.append(int.from_bytes(packet[at : at + length], "little"))
            at += length
        number, start, num_extra = values
        if num_extra == 1:  # several objects without numbers
            return
        size = struct.unpack_from("<I", packet, at)[0] if num_extra >= 8 else None
        at += num_extra
        num_bytes = int.from_bytes(packet[at : at + size_length], "little") if kinds & 1 else len(packet) - padding - at
        at += size_length + num_bytes
        yield stream, _Payload(number, 256**number_length, start, start + num_bytes, size)


def _loss_at(file: BinaryIO, position: int, num_missing: int, size: int, num_bytes: int) -> Loss | None:
    """Return the loss before a position where a packet should begin and does not.

    If the next object begins there, whole packets are missing at an unknown place.
    """
    file.seek(position + 16)
    object_bytes = int.from_bytes(file.read(8), "little")
    if not _MIN_OBJECT_BYTES <= object_bytes <= num_bytes - position:
        return Loss(f"got other data at byte {position}, expected a packet", position - size)
    return Loss(f"its header states {num_missing} more packets than the file has") if num_missing else None
