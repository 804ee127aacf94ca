"""Episodes whose frames are pictures in the rows of a Parquet file, as LeRobot has them for cameras of dtype "image".

A row has a frame of each camera, as a structure with the bytes of a PNG or JPEG file, and the numbers of ``_NUMBERS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import numpy as np

from chordcache import progress
from chordcache.errors import MediaError, UsageError, printable
from chordcache.media.picture_folders import PICTURES_PER_SECOND, write_video

_NAME = re.compile(r"(?P<camera>.+)/episode_(?P<episode>\d{1,18})", re.DOTALL)
_NUMBERS = ("episode_index", "frame_index", "timestamp")
_ROWS_PER_BATCH = 16
"""Number of rows whose pictures are in memory, beside the page that they are in"""

_BUFFER_BYTES = 1 << 20
_MAX_TICKS = 6 * 3600 * 90_000
"""Largest duration of a frame, which has to be a number of 32 bits"""

_TICKS_PER_SECOND = 90_000
"""A multiple of the usual frame rates. The 32 bit times of LeRobot are rounded to it without an error below 128 s"""


def write_episode(fd: int, name: str, max_bytes: int, file: BinaryIO) -> None:
    """Write the pictures of an episode of an open Parquet file, named "CAMERA/episode_NUMBER", as a video.

    Raises
    ------
    MediaError
        ``io`` if the file has no such episode or camera; ``short`` if a frame of the episode is missing; ``decode`` if
        the file is damaged or times do not increase; ``refused-size`` if there are more than ``max_bytes`` of pictures;
        and as ``write_video``.
    UsageError
        If pyarrow is not installed.
    OSError
        If the disk of the file fails.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ModuleNotFoundError:
        raise UsageError(
            f"'{printable(name)}': pictures in a Parquet file need pyarrow: pip install 'chordcache[build]'"
        ) from None

    match = _NAME.fullmatch(name)
    if match is None:
        what = f"got '{printable(name)}' in a Parquet file, expected a camera and an episode: CAMERA/episode_NUMBER"
        raise MediaError("open", "io", what)
    try:
        place = f"/proc/self/fd/{fd}"
        with pq.ParquetFile(place, buffer_size=_BUFFER_BYTES, page_checksum_verification=True) as table:
            first, ticks = _frames(table, match["camera"], int(match["episode"]))
            pictures = _pictures(table, match["camera"], first, len(ticks), max_bytes)
            write_video(zip(pictures, ticks, strict=True), _TICKS_PER_SECOND, file)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None):
            raise
        raise MediaError("decode", "decode", f"the Parquet file is damaged: {printable(str(error))}") from None


def _frames(table: Any, camera: str, episode: int) -> tuple[int, list[int]]:
    """Return the row of the first frame of an episode, and the duration of each frame [ticks]."""
    columns = {table.schema.column(number).path for number in range(len(table.schema))}
    for path in (f"{camera}.bytes", *_NUMBERS):
        if path not in columns:
            raise MediaError("open", "io", f"the Parquet file has no column '{printable(path)}'")
    num_rows = 0
    parts = [np.empty((3, 0))]
    for batch in table.iter_batches(columns=list(_NUMBERS), use_threads=False):
        episodes, *numbers = (batch[name].to_numpy(zero_copy_only=False) for name in _NUMBERS)
        rows = np.flatnonzero(episodes == episode)
        parts.append(np.array([rows + num_rows, *(values[rows] for values in numbers)], np.float64))
        num_rows += batch.num_rows
        progress.beat()
    rows, frames, seconds = np.concatenate(parts, 1)
    if not rows.size:
        raise MediaError("open", "io", f"the Parquet file has no episode {episode}")
    places = np.arange(rows.size)
    if not np.array_equal(frames, places) or not np.array_equal(rows, places + rows[0]):
        what = f"got {rows.size} rows of episode {episode}, expected its frames from 0, one after another"
        raise MediaError("open", "short", what)
    ticks = np.diff(np.rint((seconds - seconds[0]) * _TICKS_PER_SECOND))
    if not ((ticks > 0) & (ticks <= _MAX_TICKS)).all():
        what = f"got times of episode {episode} that do not increase, or jump by more than 6 hours"
        raise MediaError("decode", "decode", what)
    usual = ticks[-1:] if ticks.size else [_TICKS_PER_SECOND / PICTURES_PER_SECOND]
    return int(rows[0]), [int(duration) for duration in (*ticks, *usual)]


def _pictures(table: Any, camera: str, first: int, num_frames: int, max_bytes: int) -> Iterator[bytes]:
    """Yield the pictures of a range of rows, b"" if there is none. Row groups outside of the range are not read."""
    groups = range(table.num_row_groups)
    starts = np.cumsum([0, *(table.metadata.row_group(group).num_rows for group in groups)])
    used = [group for group in groups if starts[group] < first + num_frames and first < starts[group + 1]]
    batches = table.iter_batches(_ROWS_PER_BATCH, row_groups=used, columns=[f"{camera}.bytes"], use_threads=False)
    skipped = first - starts[used[0]]
    num_bytes = 0
    for row in islice((row for batch in batches for row in batch[camera].to_pylist()), skipped, skipped + num_frames):
        picture = (row and row["bytes"]) or b""
        num_bytes += len(picture)
        if num_bytes > max_bytes:
            what = f"more than {max_bytes} bytes of pictures, expected fewer in an episode; make it a video"
            raise MediaError("open", "refused-size", what)
        yield picture
