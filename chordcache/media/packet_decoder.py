"""Decoder of the packets that ``packet_encoder`` makes."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, TypeAlias

import av
import numpy as np

from chordcache.errors import DamageError
from chordcache.media.ffmpeg_log import reason_of
from chordcache.media.picture_data import plane_array

Picture: TypeAlias = av.VideoFrame
"""A decoded picture, of format yuv420p, or yuvj420p if its stream states the full range"""

_FORMATS = ("yuv420p", "yuvj420p")

_LOW_DELAY = 1 << 19
"""AV_CODEC_FLAG_LOW_DELAY: a packet gives its picture at once"""

_MAX_IDLE = 16
"""Number of idle contexts that a thread keeps. A context of 456x256 pixels takes about 1 MiB"""

_idle = threading.local()
"""Contexts that were used, by thread, with the codec and the size of the pictures. The last ones are at the end"""


class PacketDecoder:
    """Decoder of one or several chains at the same time. It is a context manager.

    ``codec`` is "h264" or "mpeg4", ``size`` the (width, height) of the pictures, [pixels], and ``stride`` the number of
    chains at the same time.
    """

    def __init__(self, codec: str, size: tuple[int, int], stride: int) -> None:
        self._codec = codec
        # A context that had larger pictures refuses packets of a few bytes, which are whole pictures (FFmpeg 8.1)
        self._size = size
        self._contexts: list[Any] = [None] * stride

    def __enter__(self) -> PacketDecoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, DamageError):
            idle = _idle_contexts()
            idle += [(self._codec, self._size, context) for context in self._contexts if context is not None]
            del idle[:-_MAX_IDLE]

    def decode(self, chain: int, packet: Any, *, is_first: bool) -> Picture:
        """Return the picture of the next packet of a chain, whose number is in [0, stride).

        The packet was checked before: the decoder does not notice every change. ``is_first`` is True for the first one
        of a chain.

        Raise ``DamageError`` if the packet does not give exactly one whole picture of the size, or a chain does not
        begin with a keyframe.
        """
        context = self._contexts[chain]
        if context is None:
            context = self._contexts[chain] = _take_idle(self._codec, self._size) or _open(self._codec)
        if is_first:
            context.flush_buffers()
        coded = av.Packet(len(packet))  # of libavcodec's own memory, which has the padding that decoders read
        coded.update(packet)
        try:
            pictures = context.decode(coded)
        except av.error.FFmpegError as error:
            raise DamageError(f"a packet of {self._codec} cannot be decoded: {reason_of(error)}") from None
        if len(pictures) != 1 or pictures[0].is_corrupt or pictures[0].format.name not in _FORMATS:
            raise DamageError(f"a packet of {self._codec} gave {len(pictures)} pictures, expected a whole one")
        size = pictures[0].width, pictures[0].height
        if size != self._size:
            raise DamageError("the picture is {}x{}, expected {}x{}".format(*size, *self._size))
        if is_first and not pictures[0].key_frame:
            raise DamageError(f"a chain of {self._codec} begins with another packet than a keyframe")
        picture: Picture = pictures[0]
        return picture


def _idle_contexts() -> list[tuple[str, tuple[int, int], Any]]:
    contexts: list[Any] = _idle.__dict__.setdefault("contexts", [])
    return contexts


def _take_idle(codec: str, size: tuple[int, int]) -> Any:
    """Return a context of this thread that had such pictures before, None if there is none."""
    idle = _idle_contexts()
    for i in reversed(range(len(idle))):
        if idle[i][:2] == (codec, size):
            return idle.pop(i)[2]
    return None


def _open(codec: str) -> Any:
    context = av.VideoCodecContext.create(codec, "r")
    context.thread_count = 1
    context.flags |= _LOW_DELAY
    context.open()
    return context


def planes_of(picture: Picture) -> list[np.ndarray]:
    """Return views of the planes of a picture [shape=(1, H, W), twice (1, H / 2, W / 2), dtype=uint8]."""
    return [plane_array(plane)[None] for plane in picture.planes]
