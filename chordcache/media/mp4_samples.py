"""Sample tables of an MP4 or QuickTime file: position of each picture's data, and time at which it is shown.

Tables that are ambiguous are refused, with the reason. libavformat would guess in many ways. The index entries of PyAV
have the same places in 105 of 105 files, but only decoding times, and 69 of these files show pictures in another order.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chordcache.errors import MediaError
from chordcache.json_records import MAX_PIXELS
from chordcache.media.geometry import Orientation, orientation_of_matrix
from chordcache.media.mp4_boxes import Box, box_headers, matrix_of, number_behind_times, u32

_MAX_BOXES = 10_000
"""Most boxes in one box. A normal box holds a dozen. A file with more is left to other readers."""

_MAX_SAMPLES = 1 << 23
"""Most samples: 78 hours at 30 frames per second. The arrays made of them take 0.5 GiB."""

_IDENTITY = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)

_CODECS = {
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
    b"mp4v": ("mpeg4", b"esds"),
}
"""libavcodec's name of the codec, and the box that configures its decoder, by kind of sample entry"""

_HARMLESS = frozenset((b"colr", b"pasp", b"btrt", b"fiel", b"free", b"skip", b"clap", b"gama", b"uuid"))
"""Boxes beside it that are read here or do not change the picture. Others may, such as stereo, HDR metadata, layers."""

_MPEG4_VISUAL = 0x20
"""Object type of an esds. An esds may also describe MPEG-1, MPEG-2 or JPEG."""


@dataclass(frozen=True)
class Color:
    """Content of a ``colr`` box, in the numbers of ITU-T H.273."""

    primaries: int
    transfer: int
    matrix: int
    is_full: bool | None
    """None if the box does not say"""


@dataclass(frozen=True)
class VideoTrack:
    """Only video track of a file, with its samples in decode order."""

    codec: str
    extradata: bytes
    width: int
    """[pixels] Width as stored"""
    height: int
    """[pixels] Height as stored"""
    aspect: Fraction | None
    """Aspect ratio of a pixel, None if it is not stated"""
    color: Color | None
    orientation: Orientation | None
    """None if the track is shown as it is stored"""
    time_base: Fraction
    """[seconds] Length of one tick"""
    offsets: np.ndarray
    """[shape=(N,), dtype=int64, bytes] Positions from the start of the file"""
    sizes: np.ndarray
    """[shape=(N,), dtype=int64, bytes]"""
    pts: np.ndarray
    """[shape=(N,), dtype=int64, ticks] Times on libavformat's clock, which begins with the edit list"""
    is_shown: np.ndarray
    """[shape=(N,), dtype=bool] True for samples that the edit list includes"""
    is_sync: np.ndarray
    """[shape=(N,), dtype=bool] True for samples that the file calls keyframes"""
    last_ticks: int
    """[ticks] Duration of the last sample"""


def refused(reason: str) -> MediaError:
    """Return the error for a file that these tables cannot serve: ``MediaError``, cause ``tables``."""
    return MediaError("open", "tables", reason)


def read_video_track(data: memoryview) -> VideoTrack:
    """Read the tables of a file with one video track that is not fragmented. ``data`` is its whole content.

    Raises
    ------
    MediaError
        ``tables`` if tables are missing, if they contradict each other or the file's size, or if they contain
        something that is not understood here.

    Notes
    -----
    Source: ISO/IEC 14496-12, 8; 14496-14, 5.6; 14496-15, 5.4 and 8.4; AV1 Codec ISO Media File Format Binding, 2.
    """
    try:
        return _video_track(data)
    except (struct.error, IndexError):
        raise refused("a box is shorter than what it should hold") from None


def _video_track(data: memoryview) -> VideoTrack:
    top = _boxes(data)  # if the file is cut off, this raises, since its last box does not fit
    moov = _boxes(_only(top, b"moov"))
    if b"moof" in top or b"mvex" in moov:
        raise refused("the file is fragmented")
    tracks = [_boxes(trak) for trak in moov.get(b"trak", [])]
    videos = [track for track in tracks if bytes(_only(_boxes(_only(track, b"mdia")), b"hdlr")[8:12]) == b"vide"]
    if len(videos) != 1:
        raise refused(f"the file has {len(videos)} video tracks")
    movie = _only(moov, b"mvhd")
    if struct.unpack_from(">9i", movie, 48 if movie[0] == 1 else 36) != _IDENTITY:
        raise refused("the whole movie is turned")
    return _track(videos[0], number_behind_times(movie), len(data))


def _track(track: Mapping[bytes, list[Box]], movie_timescale: int, num_bytes: int) -> VideoTrack:
    mdia = _boxes(_only(track, b"mdia"))
    timescale = number_behind_times(_only(mdia, b"mdhd"))
    if not 0 < timescale < 1 << 31 or not movie_timescale:  # FFmpeg's clock is a signed int
        raise refused("its clock has no unit")
    tables = _boxes(_only(_boxes(_only(mdia, b"minf")), b"stbl"))
    sizes = _sample_sizes(tables, num_bytes)
    offsets = _sample_offsets(tables, sizes)
    if ((offsets < 0) | (offsets > num_bytes - sizes)).any():  # their sum may be too large for int64
        raise refused("samples lie beyond the end of the file")
    durations = _repeated(tables, b"stts", len(sizes))
    composed = np.cumsum(durations) - durations
    if b"ctts" in tables:  # presentation minus decoding times; as in libavformat, signed in either version of the box
        composed += _repeated(tables, b"ctts", len(sizes), is_signed=True)
    shift, start, stop = _edit(track, timescale, movie_timescale)
    if (composed < start).any():  # libavformat's clock then begins at another time than in the edit list
        raise refused("its edit list cuts off the beginning")
    matrix = matrix_of(_only(track, b"tkhd"))
    return VideoTrack(
        *_description(_only(tables, b"stsd")),
        orientation=None if matrix == _IDENTITY else orientation_of_matrix(matrix),
        time_base=Fraction(1, timescale),
        offsets=offsets,
        sizes=sizes,
        pts=composed + shift,
        is_shown=composed < stop,
        is_sync=_sync_samples(tables, len(sizes)),
        last_ticks=int(durations[-1]),
    )


# Boxes


def _boxes(data: memoryview, start: int = 0) -> dict[bytes, list[Box]]:
    """Return the boxes directly in a box, by kind."""
    boxes: dict[bytes, list[Box]] = {}
    end = start
    for kind, body, end in box_headers(lambda at: data[at : at + 16], start, len(data), max_boxes=_MAX_BOXES):
        if end > len(data):
            raise refused(f"box {_printed(kind)} does not fit into its parent")
        boxes.setdefault(kind, []).append(data[body:end])
    if end + 8 <= len(data):  # QuickTime ends some lists with four zeros
        raise refused(f"a box has an impossible size, or is one of more than {_MAX_BOXES}")
    return boxes


def _only(boxes: Mapping[bytes, list[Box]], kind: bytes) -> Box:
    of_kind = boxes.get(kind, [])
    if len(of_kind) != 1 or not len(of_kind[0]):
        count = "an empty one" if len(of_kind) == 1 else str(len(of_kind) or "none")
        raise refused(f"box {_printed(kind)}: got {count}, expected one")
    return of_kind[0]


def _printed(kind: bytes) -> str:
    return ascii(kind.decode("latin-1"))


def _table(tables: Mapping[bytes, list[Box]], kind: bytes, dtype: str, width: int = 1) -> np.ndarray:
    """Return a table of integers [shape=(n, width), dtype=int64] that begins with their number."""
    box = _only(tables, kind)
    at = 8 if kind == b"stsz" else 4
    num_entries = u32(box, at)
    item = np.dtype(dtype)
    if num_entries > min(_MAX_SAMPLES, (len(box) - at - 4) // (item.itemsize * width)):
        raise refused(f"box {_printed(kind)} claims {num_entries} entries")
    values = np.frombuffer(box, item, num_entries * width, at + 4)
    return values.astype(np.int64).reshape(num_entries, width)


def _repeated(
    tables: Mapping[bytes, list[Box]], kind: bytes, num_samples: int, *, is_signed: bool = False
) -> np.ndarray:
    """Return a table of (count, value) expanded to all samples [shape=(num_samples,), dtype=int64]."""
    table = _table(tables, kind, ">i4", 2)
    if table[:, 0].sum() != num_samples or table[:, : 1 if is_signed else 2].min(initial=0) < 0:
        raise refused(f"box '{kind.decode()}' does not describe {num_samples} samples")
    return np.repeat(table[:, 1], table[:, 0])


# Samples


def _sample_sizes(tables: Mapping[bytes, list[Box]], num_bytes: int) -> np.ndarray:
    box = _only(tables, b"stsz")
    size, num_samples = u32(box, 4), u32(box, 8)
    if not 0 < num_samples <= min(_MAX_SAMPLES, num_bytes):
        raise refused(f"the file claims {num_samples} samples in {num_bytes} bytes")
    sizes = np.full(num_samples, size, np.int64) if size else _table(tables, b"stsz", ">u4")[:, 0]
    if not sizes.all():
        raise refused("a sample is empty")
    return sizes


def _sample_offsets(tables: Mapping[bytes, list[Box]], sizes: np.ndarray) -> np.ndarray:
    """Return where each sample begins [bytes]. The samples of a chunk follow each other without a gap."""
    chunks = (_table(tables, b"co64", ">i8") if b"co64" in tables else _table(tables, b"stco", ">u4"))[:, 0]
    chunk_table = _table(tables, b"stsc", ">u4", 3)
    first = chunk_table[:, 0] - 1
    if (
        not len(chunk_table)
        or first[0]
        or (np.diff(first) <= 0).any()
        or first[-1] >= len(chunks)
        or (chunk_table[:, 2] != 1).any()
        or (chunks < 0).any()
    ):
        raise refused("its table of samples per chunk is not understood")
    per_chunk = np.repeat(chunk_table[:, 1], np.diff(np.append(first, len(chunks))))
    if per_chunk.sum() != len(sizes):
        raise refused(f"its chunks hold {per_chunk.sum()} samples of {len(sizes)}")
    starts = np.cumsum(sizes) - sizes  # positions if all samples were in one piece
    firsts = np.cumsum(per_chunk) - per_chunk
    shifts = chunks - starts[np.minimum(firsts, len(sizes) - 1)]
    offsets: np.ndarray = starts + np.repeat(shifts, per_chunk)
    return offsets


def _sync_samples(tables: Mapping[bytes, list[Box]], num_samples: int) -> np.ndarray:
    is_sync = np.zeros(num_samples, bool)
    if b"stss" not in tables:
        return ~is_sync
    numbers = _table(tables, b"stss", ">u4")[:, 0]
    if ((numbers < 1) | (numbers > num_samples)).any():
        raise refused("box 'stss' names samples that are not there")
    is_sync[numbers - 1] = True
    return is_sync


def _edit(track: Mapping[bytes, list[Box]], timescale: int, movie_timescale: int) -> tuple[int, int, int]:
    """Return the shift that is added to media times, and the range [start, stop) of them that is shown, in ticks."""
    everything = 0, -(1 << 62), 1 << 62
    if b"edts" not in track:
        return everything
    lists = _boxes(_only(track, b"edts"))
    if b"elst" not in lists:
        return everything
    box = _only(lists, b"elst")
    layout = struct.Struct(">QqI" if box[0] == 1 else ">IiI")
    num_edits = u32(box, 4)
    if num_edits not in (1, 2):
        raise refused(f"its edit list has {num_edits} entries")
    edits = [layout.unpack_from(box, 8 + i * layout.size) for i in range(num_edits)]
    *pauses, (duration, media_time, rate) = edits
    if rate != 1 << 16 or media_time < 0 or not duration or any(time != -1 for _, time, _ in pauses):
        raise refused("its edit list does more than to shift and to cut")
    pause = sum(_rescaled(length, timescale, movie_timescale) for length, _, _ in pauses)
    stop = media_time + _rescaled(duration, timescale, movie_timescale)
    if max(media_time, stop, pause) >> 62:
        raise refused("its edit list holds times that are too large")
    return pause - media_time, media_time, stop


def _rescaled(ticks: int, timescale: int, movie_timescale: int) -> int:
    """Convert from the movie's clock to the track's, rounded half up."""
    return (2 * ticks * timescale + movie_timescale) // (2 * movie_timescale)


# The sample description


def _description(box: Box) -> tuple[str, bytes, int, int, Fraction | None, Color | None]:
    """Return codec, configuration, width, height, pixel aspect ratio and colors."""
    entries = _boxes(box, 8)
    kinds = [kind for kind, boxes in entries.items() for _ in boxes]
    if len(kinds) != 1:
        raise refused(f"the track has {len(kinds)} sample descriptions")
    (kind,) = kinds
    if kind not in _CODECS:
        raise refused(f"its codec is {_printed(kind)}")
    codec, configured_by = _CODECS[kind]
    entry = entries[kind][0]
    width, height = struct.unpack_from(">HH", entry, 24)
    if not width or not height or width * height > MAX_PIXELS:
        raise refused(f"its picture is {width}x{height} pixels")
    parts = _boxes(entry, 78)
    unknown = sorted(parts.keys() - _HARMLESS - {configured_by})
    if unknown:
        raise refused(f"its sample description holds a box {_printed(unknown[0])}")
    configuration = _only(parts, configured_by)
    extradata = _decoder_specific(configuration) if configured_by == b"esds" else bytes(configuration)
    return codec, extradata, width, height, _aspect(parts), _color(parts)


def _aspect(parts: Mapping[bytes, list[Box]]) -> Fraction | None:
    if b"pasp" not in parts:
        return None
    horizontal, vertical = struct.unpack_from(">II", _only(parts, b"pasp"))
    return Fraction(horizontal, vertical) if horizontal and vertical else None


def _color(parts: Mapping[bytes, list[Box]]) -> Color | None:
    if b"colr" not in parts:
        return None
    box = _only(parts, b"colr")
    kind = bytes(box[:4])
    if kind not in (b"nclx", b"nclc"):
        return None
    primaries, transfer, matrix = struct.unpack_from(">HHH", box, 4)
    return Color(primaries, transfer, matrix, bool(box[10] >> 7) if kind == b"nclx" else None)


def _decoder_specific(box: Box) -> bytes:
    """Return the decoder's part of an MPEG-4 elementary stream descriptor (ISO/IEC 14496-1, 7.2.6)."""
    stream = _descriptor(box[4:], 3)
    flags = stream[2]
    if flags & 0xE0:
        raise refused("its elementary stream depends on another one")
    config = _descriptor(stream[3:], 4)
    if config[0] != _MPEG4_VISUAL:
        raise refused(f"its elementary stream is of type {config[0]}")
    return bytes(_descriptor(config[13:], 5))


def _descriptor(data: memoryview, tag: int) -> memoryview:
    """Return the body of the first descriptor, which must have this tag."""
    if data[0] != tag:
        raise refused("its elementary stream descriptor is not understood")
    size, at = 0, 1
    for at in range(1, 5):
        size = size << 7 | data[at] & 0x7F
        if not data[at] >> 7:
            break
    if at + 1 + size > len(data):
        raise refused("its elementary stream descriptor is cut off")
    return data[at + 1 : at + 1 + size]
