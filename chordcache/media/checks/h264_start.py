"""Proof that H.264 which begins with an unmarked I picture refers to nothing before that picture."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import av

from chordcache.media.checks.nal_units import PPS, SPS, H264Reader, SliceHead, unescaped
from chordcache.media.checks.packet_reader import Bits

_SLICE, _IDR, _MESSAGE = 1, 5, 6
_P, _B, _I = 0, 1, 2
_RECOVERY_POINT = 6
"""Type of the message that marks a picture from which decoding can begin (ITU-T H.264, D.1.1)"""

_HEADER_BYTES = 1024
"""Length of the part of a slice that contains its header"""

_MAX_REORDERED = 16
"""Largest number of pictures that are stored between a picture and one that is shown before it (A.3.1, MaxDpbFrames)"""

_UNREF_SHORT, _RESET = 1, 5
"""Memory management operations that end the use of one short-term picture, or of all pictures, as references"""


class OpenStart(NamedTuple):
    """The packets after the first picture of a stream, numbered from 0 in decode order."""

    leading: frozenset[int]
    """Packets whose pictures are shown before the first picture, and may refer to pictures that are not in the file"""
    num_unsettled: int
    """Number of packets after which the decoder holds no more substitutes for pictures that are not in the file"""


class _Unproven(Exception):
    """A picture may refer to what came before the stream, or its headers are of a kind that is not read here."""


class _Slice(NamedTuple):
    """Header of a slice."""

    head: SliceHead
    order_lsb: int
    earlier: int
    """Step from its second field to the first, if the second one is shown first"""
    num_refs: tuple[int, ...]
    """Lengths of its lists of references"""
    changes: tuple[list[int], ...]
    """Differences of picture numbers that move pictures to the front of each list"""
    removed: list[int] | None
    """Distances of frame numbers to references that are removed; None if the oldest one is, when they are full"""
    is_reset: bool
    """True if all references before it are removed"""


@dataclass(frozen=True)
class _Reference:
    """Picture that later ones may refer to."""

    frame_num: int
    order: int
    is_right: bool
    """False if it may refer to what is not in the file"""


def begins_open(reader: H264Reader, packet: memoryview) -> bool:
    """Return whether all slices of a stream's first packet are of an I picture without a mark to begin with it."""
    kinds = set()
    for start, stop in reader.units(packet):
        kind = packet[start] & 0x1F
        if kind == _MESSAGE and _is_recovery_point(unescaped(packet[start + 1 : stop])):
            return False
        if kind == _SLICE:
            bits = Bits(bytes(packet[start + 1 : start + 9]))
            try:
                bits.ue()
                kinds.add(bits.ue() % 5 == _I and bool(packet[start] & 0x60))
            except ValueError:  # the decoder reports what it cannot read
                return False
        elif 2 <= kind <= _IDR:
            return False
    return kinds == {True}


def _is_recovery_point(message: bytes) -> bool:
    """Return whether one of the messages in a unit is a recovery point (ITU-T H.264, 7.3.2.3.1)."""
    at = 0
    while at + 2 <= len(message):
        values = []
        for _ in range(2):  # type and size
            value = 0
            while at < len(message) and message[at] == 0xFF:
                value, at = value + 255, at + 1
            values.append(value + (message[at] if at < len(message) else 0))
            at += 1
        if values[0] == _RECOVERY_POINT:
            return True
        at += values[1]
    return False


def prove_start(packets: Iterable[Any], extradata: bytes) -> OpenStart | None:
    """Follow the references of a stream that begins with an I picture until none before it can be left.

    ``packets`` are those of the track, from the first one on. No more are taken than the proof needs. ``extradata`` is
    the container's header of the track. Return None if a picture that is shown after the first one may refer to a
    picture before it. Also None for fields, flexible order of macroblocks, partitions, order type 1, frame numbers with
    gaps, and long-term references.

    Notes
    -----
    Source: ITU-T H.264, 7.3.3 (slice headers), 8.2.1 (order), 8.2.4 (lists of references), 8.2.5 (their marking). A
    long-term reference from before the start that no header names is not noticed.
    """
    proof = _Proof(H264Reader(extradata))
    try:
        for number, packet in enumerate(sent for sent in packets if sent.size):
            if proof.take(number, memoryview(packet)):
                break
    except MemoryError:
        raise
    except (_Unproven, av.error.FFmpegError, ValueError, LookupError):  # the decoder reports what it cannot read
        return None
    return OpenStart(frozenset(proof.leading), proof.num_packets)


class _Proof:
    """The reference pictures of a stream, as its headers mark them."""

    def __init__(self, reader: H264Reader) -> None:
        self._reader = reader
        self._references: list[_Reference] = []
        self._num_absent = 0
        """Largest number of references before the start that may be left"""
        self._substitutes: set[int] = set()
        """Frame numbers of pictures that libavcodec puts in their place, one for each number"""
        self._first_order: int | None = None
        self._last_number = 0
        """Frame number of the last reference"""
        self._last_order = (0, 0)
        """Order of the last reference: multiple of the modulus, and rest"""
        self.leading: set[int] = set()
        self.num_packets = 0

    def take(self, number: int, packet: memoryview) -> bool:
        """Take the next packet. Return True if no later one can refer to what came before the first."""
        slices = []
        for start, stop in self._reader.units(packet):
            kind = packet[start] & 0x1F
            if kind in (SPS, PPS):
                self._reader.read_set(packet[start:stop])
            elif kind == _IDR:
                return True
            elif kind == _SLICE:
                header = self._read_slice(packet[start : start + _HEADER_BYTES])
                slices += [header] if header else []
            elif 2 <= kind < _IDR:
                raise _Unproven
        self.num_packets = number + 1
        if not slices:
            return False
        picture = slices[0]
        if any(part.head.frame_num != picture.head.frame_num or part.order_lsb != picture.order_lsb for part in slices):
            raise _Unproven
        order = self._order_of(picture)
        if self._first_order is None:
            self._begin(picture, order)
            return False
        last = self._last_number
        if picture.head.frame_num != (last + 1) % picture.head.modulus:
            raise _Unproven
        is_right = all(self._is_right(part, order) for part in slices)
        if order < self._first_order:
            self.leading.add(number)
        elif not is_right:
            raise _Unproven
        if picture.is_reset:
            return True
        if picture.head.is_reference:
            self._mark(picture, _Reference(picture.head.frame_num, order, is_right))
        is_settled = number >= _MAX_REORDERED and not self._num_absent and not self._substitutes
        return is_settled and all(reference.is_right for reference in self._references)

    def _begin(self, picture: _Slice, order: int) -> None:
        if picture.head.kind != _I or not picture.head.is_reference or picture.is_reset:
            raise _Unproven
        self._first_order = order
        self._last_number = picture.head.frame_num
        self._references = [_Reference(picture.head.frame_num, order, True)]
        num_left = picture.head.sps.num_references - 1
        self._num_absent = num_left
        self._substitutes = {(picture.head.frame_num - n) % picture.head.modulus for n in range(1, num_left + 1)}

    def _order_of(self, picture: _Slice) -> int:
        """Return the place of a picture in the order in which pictures are shown (8.2.1.1)."""
        if picture.head.sps.order_bits is None:  # decode order
            return self.num_packets
        modulus = 1 << picture.head.sps.order_bits
        high, low = self._last_order
        step = picture.order_lsb - low
        if self._first_order is not None and -step >= modulus // 2:
            high += modulus
        elif self._first_order is not None and step > modulus // 2:
            high -= modulus
        if picture.head.is_reference:
            self._last_order = high, picture.order_lsb
        return high + picture.order_lsb - picture.earlier

    def _is_right(self, part: _Slice, order: int) -> bool:
        """Return whether all references that a slice may use are right."""
        lists = self._initial_lists(part, order)
        for initial, length, changes in zip(lists, part.num_refs, part.changes, strict=False):
            chosen = (initial + [None] * length)[:length]
            number = part.head.frame_num
            for place, change in enumerate(changes):
                number = (number + change) % part.head.modulus
                target = next((reference for reference in self._references if reference.frame_num == number), None)
                later = [other for other in chosen[place:] if other is not target or target is None]
                chosen = [*chosen[:place], target, *later][:length]
            if len(chosen) < length or not all(reference is not None and reference.is_right for reference in chosen):
                return False
        return True

    def _initial_lists(self, part: _Slice, order: int) -> list[list[_Reference | None]]:
        """Return both lists before changes, with None for what is unknown (8.2.4.2.1, 8.2.4.2.3).

        The decoder's substitutes are older than all pictures, and shown before them (libavcodec 62).
        """
        substitutes: list[_Reference | None] = [None] * _MAX_REORDERED if self._substitutes else []
        if part.head.kind == _P:
            references = {
                (part.head.frame_num - reference.frame_num) % part.head.modulus: reference
                for reference in self._references
            }
            return [[references[age] for age in sorted(references)]]
        if part.head.kind != _B or self._num_absent:  # an absent picture may be shown later than some of the others
            return [[], []]
        by_order = sorted(self._references, key=lambda reference: reference.order)
        before = [reference for reference in reversed(by_order) if reference.order < order]
        after = [reference for reference in by_order if reference.order > order]
        first = [*before, *substitutes, *after]
        second = [*after, *before, *substitutes]
        if not after and len(before) > 1:
            second[:2] = second[1::-1]
        elif not after and substitutes:
            second = []
        return [first, second]

    def _mark(self, picture: _Slice, reference: _Reference) -> None:
        """Add a reference, and remove others (8.2.5)."""
        largest = picture.head.sps.num_references
        for distance in picture.removed or ():
            number = (picture.head.frame_num - distance) % picture.head.modulus
            left = [reference for reference in self._references if reference.frame_num != number]
            if len(left) == len(self._references):
                self._num_absent -= 1
            if self._num_absent < 0:
                raise _Unproven
            self._references = left
            self._substitutes.discard(number)
        self._references.append(reference)
        if picture.removed is None:
            del self._references[:-largest]
        if len(self._references) > largest:
            raise _Unproven
        room = largest - len(self._references)
        self._num_absent = min(self._num_absent, room)
        newest = sorted(self._substitutes, key=lambda number: (picture.head.frame_num - number) % picture.head.modulus)
        self._substitutes = set(newest[:room])
        self._last_number = picture.head.frame_num

    # Headers

    def _read_slice(self, unit: memoryview) -> _Slice | None:
        """Read a slice's header and its picture parameter set (7.3.3, 7.3.2.2). Return None for a redundant slice."""
        head = self._reader.slice_head(unit)
        kind, sps, bits, pps = head.kind, head.sps, head.rest, copy(head.pps.rest)
        pps.u(1)
        has_bottom_order, num_groups = pps.u(1), pps.ue()
        if kind > _I or sps.is_order_cyclic or sps.may_skip or head.is_field or num_groups:
            raise _Unproven
        usual_refs = pps.ue() + 1, pps.ue() + 1
        is_weighted = pps.u(1) == 1, pps.u(2) == 1
        pps.ue(), pps.ue(), pps.ue(), pps.u(2)
        order_lsb = earlier = 0
        if sps.order_bits is not None:
            order_lsb = bits.u(sps.order_bits)
            code = bits.ue() if has_bottom_order else 0
            earlier = 0 if code % 2 else code // 2
        if pps.u(1) and bits.ue():
            return None
        num_refs: tuple[int, ...] = ()
        changes: tuple[list[int], ...] = ()
        if kind != _I:
            bits.u(kind == _B)
            num_lists = 2 if kind == _B else 1
            num_refs = usual_refs[:num_lists]
            if bits.u(1):
                num_refs = tuple(bits.ue() + 1 for _ in range(num_lists))
            changes = tuple(_changes(bits) for _ in range(num_lists))
            if is_weighted[kind]:
                _skip_weights(bits, sps.chroma if not sps.has_planes else 0, sum(num_refs))
        removed, is_reset = _removed(bits) if head.is_reference else (None, False)
        return _Slice(head, order_lsb, earlier, num_refs, changes, removed, is_reset)


def _changes(bits: Bits) -> list[int]:
    """Read the changes of a list of references (7.3.3.1)."""
    changes: list[int] = []
    if bits.u(1):
        while (operation := bits.ue()) != 3:
            if operation > 1:
                raise _Unproven
            distance = bits.ue() + 1
            changes.append(distance if operation else -distance)
    return changes


def _skip_weights(bits: Bits, chroma: int, num_refs: int) -> None:
    """Pass over the weights of all references (7.3.3.2)."""
    bits.ue()
    if chroma:
        bits.ue()
    for _ in range(num_refs):
        for num_values in (2, 4) if chroma else (2,):
            if bits.u(1):
                for _ in range(num_values):
                    bits.ue()


def _removed(bits: Bits) -> tuple[list[int] | None, bool]:
    """Read how references are marked (7.3.3.3). Return the distances to those removed, and whether all are."""
    if not bits.u(1):
        return None, False
    removed = []
    while operation := bits.ue():
        if operation == _RESET:
            return [], True
        if operation != _UNREF_SHORT:
            raise _Unproven
        removed.append(bits.ue() + 1)
    return removed, False
