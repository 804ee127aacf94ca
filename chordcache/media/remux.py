"""Copy packets of a media file into an MP4 file in memory, without decoding."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av

from chordcache.errors import MediaError
from chordcache.media.containers import best_audio, best_video, open_container


@contextmanager
def in_memory(data: bytes) -> Iterator[str]:
    """Yield a path at which bytes can be read as a file. It ends with the context."""
    with open(os.memfd_create("chordcache"), "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def remux(place: str, start: int | None = None, last: int | None = None) -> bytes:
    """Return an MP4 file with packets of a file, by the ``place`` of an ``open_source``. Nothing is decoded.

    ``start`` and ``last`` are the times [ticks of the video track] of the keyframe to begin with, which becomes time 0,
    and of the last frame. Without ``last``, the copy has all packets of the best video track and of the best audio
    track, otherwise packets of the video track only, up to those that are decoded before the last frame is shown. Raise
    ``MediaError`` if MP4 does not take the codec of a track, the file cannot be read, or the keyframe is not there.
    """
    buffer = io.BytesIO()
    try:
        with open_container(place, []) as source, av.open(buffer, "w", format="mp4") as target:
            tracks = [best_video(source), best_audio(source) if last is None else None]
            copies = {track: target.add_stream_from_template(track) for track in tracks if track is not None}
            packets = source.demux(list(copies))
            for packet in packets if last is None else _cut(packets, start, last):
                if packet.size:  # the last one of a track is empty
                    packet.stream = copies[packet.stream]
                    target.mux(packet)
    except (av.error.FFmpegError, ValueError, TypeError) as error:
        raise MediaError("open", "refused-format", f"MP4 does not take its packets, take JPEGs: {error}") from None
    return buffer.getvalue()


def _cut(packets: Iterator[Any], start: int | None, last: int) -> Iterator[Any]:
    """Yield the packets from a keyframe on up to those of the last frame. The keyframe's time becomes 0."""
    zero = start or 0
    has_begun = start is None
    for packet in packets:
        if packet.size and not has_begun:
            has_begun = packet.is_keyframe and packet.pts == start
        if packet.dts is not None and packet.dts > last:
            break
        if has_begun:
            packet.pts = None if packet.pts is None else packet.pts - zero
            packet.dts = None if packet.dts is None else packet.dts - zero
            yield packet
    if not has_begun:
        raise MediaError("open", "clock", "the keyframe before the clip is not found")
