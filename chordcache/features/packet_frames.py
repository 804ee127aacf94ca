"""Frames that are cached as packets of a video codec: the decode of any of them from their chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chordcache.errors import DamageError, printable
from chordcache.media.cropping import Rectangle
from chordcache.media.planes import joined, to_rgb
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.feature_rules import first_of_chain

if TYPE_CHECKING:  # reading frames that are not packets does not load a decoder
    from chordcache.media.packet_codec import PacketDecoder

PACKET_CODECS = ("h264", "mpeg4")
"""Values of ``frames.codec`` that store packets."""


def read_planes(artefact: Artefact, info: FeatureInfo, number: int) -> np.ndarray:
    """Decode one frame, and return its planes as ``media.planes.joined`` does, without a conversion to RGB."""
    (planes,) = iter_planes(artefact, info, [number])
    return joined(planes)


class _Step(NamedTuple):
    """A packet to decode."""

    number: int
    is_first: bool
    num_wanted: int
    """Number of times that its frame is wanted: 0 if only later frames of the chain are"""


def iter_rgb(artefact: Artefact, info: FeatureInfo, numbers: Sequence[int], part: Rectangle) -> Iterator[np.ndarray]:
    """Decode a part of frames [shape=(part.height, part.width, 3), dtype=uint8, RGB], in the order of ``numbers``.

    Each frame is yielded in the same memory. Row numbers may come in any order, and repeat. Ascending numbers are the
    fast case. The pixels outside of ``part`` are decoded, but not converted. Raise ``DamageError`` if a packet is
    not what was written, or does not give its frame.
    """
    out = np.empty((part.height, part.width, 3), np.uint8)
    for planes in iter_planes(artefact, info, numbers):
        to_rgb(planes, part.top, part.left, out[None])
        yield out


def read_rgb(artefact: Artefact, info: FeatureInfo, numbers: Sequence[int], out: np.ndarray) -> None:
    """Decode frames into ``out`` [shape=(T, H, W, 3), dtype=uint8], in the order of the file. See ``iter_rgb``."""
    order = np.argsort(np.asarray(numbers, np.int64), kind="stable").tolist()
    pictures = iter_planes(artefact, info, [numbers[i] for i in order])
    for position, planes in zip(order, pictures, strict=True):
        to_rgb(planes, 0, 0, out[position : position + 1])


def packet_check(info: FeatureInfo) -> Callable[[int, Any], None]:
    """Return a function that decodes the packets of a file, which it takes in order. It raises ``DamageError``."""
    decoder, gop, stride = _decoder(info), info.params["gop"], info.params["stride"]

    def check(number: int, packet: Any) -> None:
        decoder.decode(number % stride, packet, is_first=first_of_chain(number, gop, stride) == number)

    return check


def iter_planes(artefact: Artefact, info: FeatureInfo, numbers: Sequence[int]) -> Iterator[list[np.ndarray]]:
    """Decode the frame of each number, after the packets before it in its chain, and yield views of its planes."""
    from chordcache.media.packet_codec import planes_of

    stride = info.params["stride"]
    steps = list(_steps(numbers, info.params["gop"], stride))
    decoder = _decoder(info)
    for step, packet in zip(steps, artefact.records(info.feature, [s.number for s in steps]), strict=True):
        try:
            picture = decoder.decode(step.number % stride, packet, is_first=step.is_first)
        except DamageError as error:
            raise DamageError(f"'{printable(artefact.path)}' is damaged: frame {step.number}: {error}") from None
        for _ in range(step.num_wanted):
            yield planes_of(picture)


def _decoder(info: FeatureInfo) -> PacketDecoder:
    from chordcache.media.packet_codec import PacketDecoder

    return PacketDecoder(info.params["codec"], (info.shape[2], info.shape[1]), info.params["stride"])


def _steps(numbers: Sequence[int], gop: int, stride: int) -> Iterator[_Step]:
    """Yield the packets to decode for some frames, in this order.

    Each of the ``stride`` chains that are open at the same time continues where it is, if the next frame lies ahead.

    Examples
    --------
    >>> [(s.number, s.num_wanted) for s in _steps([9, 10, 10, 12], gop=8, stride=1)]
    [(8, 0), (9, 1), (10, 2), (11, 0), (12, 1)]
    >>> [(s.number, s.num_wanted) for s in _steps([4, 5, 6], gop=4, stride=2)]
    [(0, 0), (2, 0), (4, 1), (1, 0), (3, 0), (5, 1), (6, 1)]
    """
    last: dict[int, int] = {}
    pending: _Step | None = None
    for number in numbers:
        if pending is not None and pending.number == number:
            pending = pending._replace(num_wanted=pending.num_wanted + 1)
            continue
        if pending is not None:
            yield pending
        first = first_of_chain(number, gop, stride)
        done = last.get(number % stride, -1)
        start = done + stride if first <= done < number else first
        for before in range(start, number, stride):
            yield _Step(before, before == first, 0)
        pending = _Step(number, number == first, 1)
        last[number % stride] = number
    if pending is not None:
        yield pending
