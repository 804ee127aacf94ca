"""Size and colors that a stream states in its own headers. A container may state others."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import av

from chordcache.media.checks.nal_units import H264Reader, Sps
from chordcache.media.checks.packet_reader import HEAD_BYTES, Bits, PacketReader
from chordcache.media.video_decoder import UNSTATED, context_like

_HEADER_DECODERS = ("hevc", "libdav1d", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp8")
"""Decoders that read headers without decoding a picture, if they are set to skip all frames (FFmpeg 8.1). libdav1d
reads them when it is opened. Others give no more than libavformat did, or decode the picture."""


class StreamHeader(NamedTuple):
    """Size and colors of a stream, as its pictures will have them. Colors are code points of ITU-T H.273."""

    width: int
    height: int
    matrix: int
    primaries: int
    transfer: int
    color_range: int
    """1 if limited, 2 if full, 0 if unstated"""


def stream_header(codec: Any, reader: PacketReader, packet: Any) -> StreamHeader:
    """Return what the stream states, and what the container states where the stream does not.

    ``codec`` is the context of the track with the container's claims. It stays as it is. ``packet`` is the first one
    that shows a picture. If it is None, only the headers in the container are read.
    """
    claims = _header_of(codec)
    if isinstance(reader, H264Reader):  # its decoder reads headers only when it decodes a picture
        sps = reader.active_sps(memoryview(b"") if packet is None else memoryview(packet)[:HEAD_BYTES])
        try:
            stated = _h264_display(sps, copy(sps.rest)) if sps else None
        except ValueError:  # it is cut off
            stated = None
    else:
        stated = _decoded_header(codec, packet) if codec.name in _HEADER_DECODERS else None
    if stated is None:
        return claims
    unstated = (0, 0, UNSTATED, UNSTATED, UNSTATED, 0)
    values = zip(stated, claims, unstated, strict=True)
    return StreamHeader(*(claim if value == none else value for value, claim, none in values))


def _header_of(codec: Any) -> StreamHeader:
    return StreamHeader(
        codec.width, codec.height, codec.colorspace, codec.color_primaries, codec.color_trc, codec.color_range
    )


def _h264_display(sps: Sps, bits: Bits) -> StreamHeader:
    """Read how the picture is shown (ITU-T H.264, 7.3.2.1.1 and E.1.1)."""
    bits.u(2 if sps.may_have_fields else 1)
    num_fields = 2 if sps.may_have_fields else 1
    width, height = 16 * sps.blocks[0], 16 * sps.blocks[1] * num_fields
    if bits.u(1):
        left, right, top, bottom = (bits.ue() for _ in range(4))
        width -= (left + right) * (2 if sps.chroma in (1, 2) else 1)
        height -= (top + bottom) * (2 if sps.chroma == 1 else 1) * num_fields
    matrix = primaries = transfer = UNSTATED
    color_range = 0
    if bits.u(1):
        if bits.u(1) and bits.u(8) == 255:  # the shape of a pixel
            bits.u(32)
        if bits.u(1):  # overscan
            bits.u(1)
        if bits.u(1):
            color_range = 1 + (bits.u(4) & 1)
            if bits.u(1):
                primaries, transfer, matrix = bits.u(8), bits.u(8), bits.u(8)
    return StreamHeader(width, height, matrix, primaries, transfer, color_range)


def _decoded_header(codec: Any, packet: Any) -> StreamHeader | None:
    """Let a second decoder read the headers. Return None if it refuses them; the decoder of the file reports that."""
    spare = context_like(codec)
    spare.thread_count = 1
    spare.skip_frame = "ALL"
    try:
        spare.open()
        if packet is not None and codec.name != "libdav1d":
            spare.decode(packet)
    except MemoryError:
        raise
    except (av.error.FFmpegError, ValueError):
        return None
    return _header_of(spare)
