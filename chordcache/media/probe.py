"""Probe of one media file: header facts and measured facts go into a record under different names."""

from __future__ import annotations

import statistics
import zlib
from copy import copy
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import av
import numpy as np

from chordcache.arguments import check_choice
from chordcache.choices import SCAN_LEVELS
from chordcache.errors import MediaError
from chordcache.media.activity import ContentMeter
from chordcache.media.checks.nal_units import H264Reader, Sps
from chordcache.media.checks.packet_reader import HEAD_BYTES, Bits, PacketReader
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import Media, open_media
from chordcache.media.geometry import Orientation, display_size, orientation_of_matrix
from chordcache.media.mp4_boxes import display_matrices
from chordcache.media.source_file import open_source
from chordcache.media.video_decoder import UNSTATED, context_like
from chordcache.records import AudioFacts, HeaderFacts, PacketFacts, VideoRecord

_MATRICES = {
    0: "gbr", 1: "bt709", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "ycgco", 9: "bt2020nc",
    10: "bt2020c", 11: "smpte2085", 12: "chroma-derived-nc", 13: "chroma-derived-c", 14: "ictcp",
}  # fmt: skip
_PRIMARIES = {
    1: "bt709", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "film", 9: "bt2020", 10: "smpte428",
    11: "smpte431", 12: "smpte432", 22: "ebu3213",
}  # fmt: skip
_TRANSFERS = {
    1: "bt709", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "linear", 9: "log100", 10: "log316",
    11: "iec61966-2-4", 12: "bt1361e", 13: "iec61966-2-1", 14: "bt2020-10", 15: "bt2020-12", 16: "smpte2084",
    17: "smpte428", 18: "arib-std-b67",
}  # fmt: skip
_RANGES = {1: "limited", 2: "full"}
"""ffmpeg's names of the code points of ITU-T H.273. Code points that are not listed are unstated."""

_HEADER_DECODERS = ("hevc", "libdav1d", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp8")
"""Decoders that read headers without decoding a picture, if they are set to skip all frames (FFmpeg 8.1). libdav1d
reads them when it is opened. Others give no more than libavformat did, or decode the picture."""


def probe(
    path: str, *, root: str, relative_path: str, level: str = "packets", inside: str | None = None
) -> VideoRecord:
    """Examine one file, as far as ``level`` says: "headers", "packets", and "content", which is what these decode to.

    ``path`` is absolute, as ``os.fsdecode`` gives it. ``root`` and ``relative_path`` name the file in the record.
    ``inside`` is a real folder that links must not lead ``path`` out of. By default they may lead anywhere.

    Return the record, with ``error`` set if the file cannot be used. Facts that were found before the error stay in it.
    """
    check_choice(SCAN_LEVELS, level=level)
    record = VideoRecord(root=root, path=relative_path, level=level)
    facts: dict[str, Any] = {}
    try:
        with open_source(path, inside) as source:
            facts["identity"] = source.state.identity
            _add_facts(facts, source.place, level)
    except MediaError as error:
        facts.update(error=error.message, error_cause=error.cause, error_stage=error.stage)
    return record.replace(**facts)


def _add_facts(facts: dict[str, Any], path: str, level: str) -> None:
    with open_media(path) as media:
        facts["audio"] = _audio_facts(media)
        first: list[Any] = []  # packet that shows a picture, if one was read
        try:
            if level != "headers":
                facts["packets"] = _packet_facts(media, first)
        finally:
            facts["header"] = _header_facts(media, path, first)
    if level == "content":
        meter = ContentMeter()
        with open_media(path) as media:
            for frame in decode_frames(media, on_sound=meter.add_sound):
                meter.add_frame(frame)
        facts["content"] = meter.facts()


def _header_facts(media: Media, path: str, first: list[Any]) -> HeaderFacts:
    """Return the claims of the headers. The stream's own size and colors are right, see ``_stream_header``."""
    video = media.require_video()
    codec = video.codec_context
    reader = media.packet_check(is_thorough=False).reader
    stated = _stream_header(codec, reader, first[0] if first else None)
    # PyAV reports it for decoded frames only
    matrix = display_matrices(path).get(video.id) if "mp4" in media.container.format.name else None
    turn = orientation_of_matrix(matrix) if matrix else Orientation()
    width, height = display_size(stated.width, stated.height, video.sample_aspect_ratio)
    if turn.transpose:
        width, height = height, width
    aspect = video.sample_aspect_ratio or Fraction(1)
    pixels = codec.format
    average = video.guessed_rate if video.start_time is None else video.average_rate
    if video.duration is not None and video.time_base:
        duration: float | None = float(video.duration * video.time_base)
    else:
        duration = media.container.duration / av.time_base if media.container.duration else None
    return HeaderFacts(
        container=media.container.format.name,
        codec=codec.codec.canonical_name,
        profile=video.profile or None,
        pixel_format=codec.pix_fmt,
        bit_depth=pixels.components[0].bits if pixels else None,
        color_space=_MATRICES.get(stated.matrix) if pixels else None,
        color_primaries=_PRIMARIES.get(stated.primaries),
        color_transfer=_TRANSFERS.get(stated.transfer),
        color_range=_RANGES.get(stated.color_range),
        coded_width=stated.width,
        coded_height=stated.height,
        display_width=round(width),
        display_height=round(height),
        rotation=turn.rotation,
        mirrored=turn.mirrored,
        sample_aspect_ratio=f"{aspect.numerator}:{aspect.denominator}",
        average_fps=float(average) if average else None,
        nominal_fps=float(video.guessed_rate) if video.guessed_rate else None,
        header_duration_seconds=duration,
        header_num_frames=video.frames or None,
    )


class _StreamHeader(NamedTuple):
    """Size and colors of a stream, as its pictures will have them. Colors are code points of ITU-T H.273."""

    width: int
    height: int
    matrix: int
    primaries: int
    transfer: int
    color_range: int
    """1 if limited, 2 if full, 0 if unstated"""


def _stream_header(codec: Any, reader: PacketReader, packet: Any) -> _StreamHeader:
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
    return _StreamHeader(*(claim if value == none else value for value, claim, none in values))


def _header_of(codec: Any) -> _StreamHeader:
    return _StreamHeader(
        codec.width, codec.height, codec.colorspace, codec.color_primaries, codec.color_trc, codec.color_range
    )


def _h264_display(sps: Sps, bits: Bits) -> _StreamHeader:
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
    return _StreamHeader(width, height, matrix, primaries, transfer, color_range)


def _decoded_header(codec: Any, packet: Any) -> _StreamHeader | None:
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


def _audio_facts(media: Media) -> AudioFacts | None:
    audio = media.audio
    if audio is None:
        return None
    time_base = audio.time_base or Fraction(1)
    return AudioFacts(
        codec=audio.codec_context.codec.canonical_name,
        sample_rate_hz=audio.codec_context.sample_rate,
        num_channels=audio.codec_context.channels,
        duration_seconds=None if audio.duration is None else float(audio.duration * time_base),
        start_seconds=None if audio.start_time is None else float(audio.start_time * time_base),
    )


def _packet_facts(media: Media, first: list[Any]) -> PacketFacts:
    unit = media.require_video().time_base or Fraction(1)
    frame_ticks: Any = media.frame_seconds / unit
    times: list[Any] = []  # in units of the track's time base
    is_key: list[bool] = []
    leading: list[int] = []
    for packet, check in media.shown_packets(is_thorough=False):
        time: Any = (
            packet.pts if media.timestamp_source == "pts" else packet.dts if media.timestamp_source == "dts" else None
        )
        if time is None:
            time = (times[-1] + frame_ticks) if times else 0
        times.append(time)
        is_key.append(packet.is_keyframe)
        leading = check.leading_dts
        if not first:
            first.append(packet)
    duration = packet.duration
    order = sorted(range(len(times)), key=times.__getitem__)  # pictures at one time are shown in decode order
    shown = [times[number] for number in order]
    if media.timestamp_source == "dts" and leading:  # skipped frames come first: the rest are due when the last one is
        shown = sorted([*leading, *times])[len(leading) :]
    is_timed = media.timestamp_source != "rate"
    steps = [later - earlier for earlier, later in pairwise(shown)]
    step = statistics.median(steps) if steps else duration if is_timed and duration else frame_ticks
    last = media.long_seconds(step * unit) / unit or step
    key_numbers = [shown_number for shown_number, number in enumerate(order) if is_key[number]]
    return PacketFacts(
        num_packets=media.num_packets,
        num_frames=len(shown),
        num_frames_skipped=media.num_skipped,
        start_seconds=float(shown[0] * unit),
        duration_seconds=float((shown[-1] - shown[0] + last) * unit),
        # a container that rounds times to its unit makes a constant rate vary by one or two units
        variable_frame_rate=is_timed and bool(steps) and max(steps) - min(steps) > max(2, step / 10),
        timestamp_source=media.timestamp_source,
        keyframe_numbers=tuple(key_numbers),
        keyframe_pts_seconds=tuple(float(shown[number] * unit) for number in key_numbers),
        completeness=media.completeness,
        frame_steps=_frame_steps(shown, round(shown[-1] + last)) if media.timestamp_source == "pts" else b"",
    )


def _frame_steps(times: list[int], end: int) -> bytes:
    """Return the time of the first frame and the duration of each, see ``PacketFacts``. Empty if they are absurd."""
    if max(-times[0], end) >= 1 << 62:
        return b""
    return zlib.compress(np.diff([*times, end], prepend=0).astype("<i8").tobytes())
