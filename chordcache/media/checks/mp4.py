"""Numbers of MP4 and QuickTime files: sample tables, sequence numbers and times of fragments, indexes of fragments."""

from __future__ import annotations

import re
import struct
from itertools import takewhile
from typing import BinaryIO, NamedTuple

import numpy as np

from chordcache.media.checks.faults import Loss
from chordcache.media.mp4_boxes import (
    BoxHeader,
    body_of,
    boxes_in,
    children,
    file_headers,
    number_behind_times,
    tracks_in,
    u32,
)

_MAX_SAMPLES = 1 << 23
"""Most samples of a track whose tables are compared: 78 hours at 30 frames per second"""

_MAX_NEIGHBORS = 16
"""Number of fragments that are searched for the one before or after it of the same track"""

_MIN_BOX_BYTES = 8
"""Length of a box's header"""

_MAX_TAG_BYTES = 200
"""Length of data without a box that players write behind a file, such as 128 bytes of ID3"""

_NAME = re.compile(rb"[\x20-\x7e\xa9]{4}")
"""Name of a box. Those of QuickTime may begin with a copyright sign."""

_TOLERANCE_SECONDS = 0.5
"""[seconds] Largest difference between a stated duration and the end of the fragments. Writers round."""


def loss_of_mp4(file: BinaryIO, track: int) -> Loss | None:
    """Compare the numbers of an MP4 or QuickTime file with its content. ``track`` is the identifier of the video track.

    A jump of the sequence numbers alone is not a loss, since a track that was taken out leaves one. The track's times
    must jump too.

    Notes
    -----
    Source: ISO/IEC 14496-12, 8.7 (sample tables), 8.8.2 (mehd), 8.8.5 (mfhd), 8.8.10 (tfra), 8.8.12 (tfdt), 8.16.3
    (sidx).
    """
    stop = file.seek(0, 2)
    boxes = list(takewhile(lambda box: _NAME.fullmatch(box.kind), file_headers(file, 0, stop)))
    moov = next((box for box in boxes if box.kind == b"moov" and box.end <= stop), None)
    movie = body_of(file, moov) if moov else memoryview(b"")
    has_fragments = any(box.kind == b"moof" and box.end <= stop for box in boxes)
    if not has_fragments and b"mvex" not in children(movie):
        return _loss_in_tables(movie, track, boxes)
    reader = _Fragments(file, stop, boxes, movie)
    losses = [reader.broken_chain(), reader.jump(), reader.loss_of_index(), reader.loss_at_end()]
    return min((loss for loss in losses if loss), key=lambda loss: stop if loss.at is None else loss.at, default=None)


# Sample tables


def _loss_in_tables(movie: memoryview, track: int, boxes: list[BoxHeader]) -> Loss | None:
    """Return the loss that the sample tables of a track reveal."""
    sample_tables = {number: children(trak, b"mdia", b"minf", b"stbl") for number, trak in tracks_in(movie)}
    own = _tables(sample_tables.get(track, {}))
    if own is None or not len(own[0]):
        return None
    sizes, num_times, chunks, per_chunk = own
    num_sizes, num_in_chunks = len(sizes), int(per_chunk.sum())
    counts = f"its table of sizes (stsz) has {num_sizes} samples, and its table of chunks (stsc) {num_in_chunks}"
    if num_in_chunks < num_sizes:
        return Loss(counts)
    if min(num_in_chunks, num_times) > num_sizes:
        return Loss(f"{counts}, its table of times (stts) {num_times}")
    # a sample may be empty, as a repeated picture is. If bytes are left behind its chunk, its size is wrong
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return None
    try:
        bounds = np.sort(np.concatenate([*map(_chunks, sample_tables.values()), [box.end for box in boxes]]))
    except (struct.error, ValueError):  # another track's table is too short
        return None
    stops = np.cumsum(per_chunk)
    bytes_before = np.append(0, np.cumsum(sizes))[np.append(0, np.minimum(stops, num_sizes))]
    own_chunks = np.searchsorted(stops, empty, "right")
    begins, ends = chunks[own_chunks], (chunks + np.diff(bytes_before))[own_chunks]
    for sample, begin, end in zip(empty, begins.tolist(), ends.tolist(), strict=True):
        behind = bounds[np.searchsorted(bounds, begin, "right") :]
        if len(behind) and behind[0] > end:
            return Loss(f"its table of sizes (stsz) says that sample {sample} is empty, and its data is there", begin)
    return None


def _tables(boxes: dict[bytes, memoryview]) -> tuple[np.ndarray, int, np.ndarray, np.ndarray] | None:
    """Return sizes of samples, number of times, positions of chunks, and number of samples of each chunk.

    None if some tables are missing, too short, or too long.
    """
    try:
        size, num_samples = struct.unpack_from(">II", boxes[b"stsz"], 4)
        if num_samples > _MAX_SAMPLES:
            return None
        values = np.frombuffer(boxes[b"stsz"], ">u4", 0 if size else num_samples, 12)
        chunks = _chunks(boxes)
        runs = _rows(boxes[b"stsc"], ">u4", 3)
        times = _rows(boxes[b"stts"], ">u4", 2)
        firsts = np.append(runs[:, 0] - 1, len(chunks))
        per_chunk = np.repeat(runs[:, 1], np.maximum(0, np.diff(np.minimum(firsts, len(chunks)))))
    except (KeyError, struct.error, ValueError):  # libavformat reports them
        return None
    sizes = np.full(num_samples, size, np.int64) if size else values.astype(np.int64)
    return (sizes, int(times[:, 0].sum()), chunks, per_chunk) if len(per_chunk) == len(chunks) else None


def _chunks(boxes: dict[bytes, memoryview]) -> np.ndarray:
    """Return the positions of the chunks of a track [shape=(c,), dtype=int64, bytes]."""
    if b"co64" in boxes:
        return _rows(boxes[b"co64"], ">u8")[:, 0]
    return _rows(boxes[b"stco"], ">u4")[:, 0] if b"stco" in boxes else np.zeros(0, np.int64)


def _rows(box: memoryview, dtype: str, width: int = 1) -> np.ndarray:
    """Return a table that begins with its length [shape=(n, width), dtype=int64]."""
    num_rows = u32(box, 4)
    return np.frombuffer(box, dtype, num_rows * width, 8).astype(np.int64).reshape(num_rows, width)


# Fragments


class _Span(NamedTuple):
    """Times of a track in a fragment, in ticks of the track."""

    start: int
    end: int
    last: int
    """Duration of the last sample"""


class _Fragments:
    """The fragments of a file, and what its indexes say of them."""

    def __init__(self, file: BinaryIO, stop: int, boxes: list[BoxHeader], movie: memoryview) -> None:
        self._file = file
        self._stop = stop
        self._boxes = boxes
        self._starts = [0, *(box.end for box in boxes)]
        """[bytes] Begin of each box on the top level, and of what follows"""
        placed = zip(self._starts, boxes, strict=False)
        self.fragments = {start: box for start, box in placed if box.kind == b"moof" and box.end <= stop}
        """Whole fragments by their begin [bytes]"""
        self._movie = movie
        mvex = children(movie).get(b"mvex", memoryview(b""))
        self._mehd = children(mvex).get(b"mehd")
        self._default_ticks = {
            u32(box, 4): u32(box, 12) for kind, box in boxes_in(mvex) if kind == b"trex" and len(box) >= 16
        }

    def broken_chain(self) -> Loss | None:
        """Return the first place where a box should be and is not, if more of the file lies behind it."""
        for start, box in zip(self._starts, self._boxes, strict=False):
            self._file.seek(box.body + 4)
            if box.kind != b"moof" and self._file.read(4) == b"mfhd":
                return Loss(f"a fragment of the file has the unknown name {ascii(box.kind)[1:]}", start)
        at = self._starts[-1]
        is_lost = at < self._stop and self._has_content_behind(at)
        return Loss(f"got other data at byte {at}, expected a box; more content is behind it", at) if is_lost else None

    def _has_content_behind(self, at: int) -> bool:
        """Return whether other data than zeros and a short tag is behind a position."""
        self._file.seek(at)
        chunks = iter(lambda: self._file.read(1 << 20), b"")
        return self._stop - at > _MAX_TAG_BYTES and any(any(chunk) for chunk in chunks)

    def jump(self) -> Loss | None:
        """Return the first place where both the sequence numbers and the times of the fragments jump forward."""
        last: int | None = None
        for number, (start, box) in enumerate(self.fragments.items()):
            self._file.seek(box.body)
            head = self._file.read(16)
            if head[4:8] != b"mfhd" or len(head) < 16:
                return None
            sequence = u32(head, 12)
            if last is not None and sequence > last + 1 and not self._continues(number):
                what = f"fragment {sequence} follows fragment {last}"
                return Loss(f"fragments are missing in the file: {what}", start)
            last = sequence
        return None

    def _continues(self, number: int) -> bool:
        """Return whether the times of all tracks continue at a fragment."""
        fragments = [*self.fragments.values()]
        ends: dict[int, _Span] = {}
        for box in fragments[max(0, number - _MAX_NEIGHBORS) : number]:
            ends.update(self._spans(box))
        starts: dict[int, _Span] = {}
        for box in reversed(fragments[number : number + _MAX_NEIGHBORS]):
            starts.update(self._spans(box))
        common = ends.keys() & starts.keys()
        return bool(common) and all(
            starts[track].start - ends[track].end < max(1, ends[track].last) for track in common
        )

    def _spans(self, fragment: BoxHeader) -> dict[int, _Span]:
        """Return the times of each track in a fragment that states its time."""
        spans = {}
        for kind, traf in boxes_in(body_of(self._file, fragment)):
            boxes = children(traf)
            if kind == b"traf" and b"tfhd" in boxes and b"tfdt" in boxes:
                try:
                    track, ticks = self._track_of(boxes[b"tfhd"])
                    tfdt = boxes[b"tfdt"]
                    (start,) = struct.unpack_from(">Q" if tfdt[0] else ">I", tfdt, 4)
                    durations = [
                        duration for name, box in boxes_in(traf) if name == b"trun" for duration in _runs(box, ticks)
                    ]
                except (struct.error, IndexError, ValueError):
                    continue
                spans[track] = _Span(start, start + sum(durations), durations[-1] if durations else 0)
        return spans

    def _track_of(self, tfhd: memoryview) -> tuple[int, int]:
        """Return a track's identifier, and the duration of its samples that state none."""
        flags, track = struct.unpack_from(">II", tfhd)
        if not flags & 0x08:
            return track, self._default_ticks.get(track, 0)
        at = 8 + 8 * bool(flags & 0x01) + 4 * bool(flags & 0x02)
        return track, u32(tfhd, at)

    def loss_of_index(self) -> Loss | None:
        """Return the first place where an index (sidx, tfra) and the fragments disagree."""
        for number, box in enumerate(self._boxes):
            if box.end > self._stop or box.kind not in (b"sidx", b"mfra"):
                continue
            try:
                body = body_of(self._file, box)
                places = (
                    _places_of_sidx(body, self._starts[number + 1]) if box.kind == b"sidx" else _places_of_mfra(body)
                )
            except (struct.error, ValueError):
                continue
            known = self._starts_behind(number + 1) if box.kind == b"sidx" else self.fragments.keys()
            wrong = [at for at in places if at not in known]
            if wrong and (box.kind == b"sidx" or len(wrong) < len(places)):
                return self._between(
                    box.kind.decode(), [at for at in places if at in known and at < wrong[0]], wrong[0]
                )
        return None

    def _starts_behind(self, number: int) -> set[int]:
        """Return where boxes begin from a box on, also without the boxes of events, which tools add later."""
        starts, num_added = set(), 0
        for start, box in zip(self._starts[number:], [*self._boxes[number:], None], strict=False):
            starts |= {start, start - num_added}
            num_added += box.end - start if box and box.kind == b"emsg" else 0
        return starts

    def _between(self, index: str, right: list[int], wrong: int) -> Loss:
        """Return the loss behind the last place that an index states rightly."""
        if wrong > self._stop:
            return Loss(f"its index ({index}) goes on to byte {wrong} of {self._stop}", cause="truncated")
        last = max(right, default=0)
        place = min((at for at in self._starts if at > last), default=self._stop)
        behind = min((at for at in self.fragments if at > last), default=place)
        return Loss(f"its index ({index}) states a fragment at byte {wrong}, where none begins", behind)

    def loss_at_end(self) -> Loss | None:
        """Return whether the file ends inside of a fragment, or before the stated duration.

        Segments, which begin with a styp, are files of their own. Their common header describes the presentation that
        they were taken from.
        """
        num_left = self._stop - self._starts[-1]
        is_without_data = not num_left and self._boxes[-1].kind == b"moof"
        if self.fragments and (num_left < 0 or 0 < num_left < _MIN_BOX_BYTES or is_without_data):
            return Loss("the file ends in the middle of a fragment", cause="truncated")
        if self._mehd is None or any(box.kind == b"styp" for box in self._boxes):
            return None
        try:
            (promised,) = struct.unpack_from(">Q" if self._mehd[0] else ">I", self._mehd, 4)
            seconds = promised / (number_behind_times(children(self._movie)[b"mvhd"]) or 1)
            timescales = {
                number: number_behind_times(children(trak, b"mdia")[b"mdhd"]) or 1
                for number, trak in tracks_in(self._movie)
            }
        except (struct.error, KeyError, IndexError):
            return None
        spans = [span for box in [*self.fragments.values()][-_MAX_NEIGHBORS:] for span in self._spans(box).items()]
        end = max((span.end / timescales.get(track, 1) for track, span in spans), default=seconds)
        if end >= seconds - _TOLERANCE_SECONDS:
            return None
        return Loss(f"its header promises {seconds:.3f} s, and its fragments end at {end:.3f} s", cause="truncated")


def _runs(trun: memoryview, default_ticks: int) -> list[int]:
    """Return the duration of each sample of a run."""
    flags, num_samples = struct.unpack_from(">II", trun)
    if not flags & 0x100:
        return [default_ticks] * min(num_samples, _MAX_SAMPLES)
    at = 8 + 4 * bool(flags & 0x01) + 4 * bool(flags & 0x04)
    width = sum(bool(flags & bit) for bit in (0x100, 0x200, 0x400, 0x800))
    durations: list[int] = np.frombuffer(trun, ">u4", num_samples * width, at)[::width].tolist()
    return durations


def _places_of_sidx(sidx: memoryview, end: int) -> list[int]:
    """Return where a sidx, which ends at a position, says that subsegments begin, and where the last one ends."""
    at, first_offset = (28, struct.unpack_from(">Q", sidx, 20)[0]) if sidx[0] else (20, u32(sidx, 16))
    num_references = int(struct.unpack_from(">H", sidx, at + 2)[0])
    sizes = np.frombuffer(sidx, ">u4", 3 * num_references, at + 4)[::3].astype(np.int64) & 0x7FFFFFFF
    places: list[int] = (end + first_offset + np.append(0, np.cumsum(sizes))).tolist()
    return places


def _places_of_mfra(mfra: memoryview) -> list[int]:
    """Return where an mfra says that fragments begin, ascending."""
    places: set[int] = set()
    for kind, tfra in boxes_in(mfra):
        if kind == b"tfra":
            lengths, num_entries = struct.unpack_from(">II", tfra, 8)
            wide = 8 if tfra[0] else 4
            width = 2 * wide + sum((lengths >> shift & 3) + 1 for shift in (0, 2, 4))
            rows = np.frombuffer(tfra, np.uint8, num_entries * width, 16).reshape(num_entries, width)
            places.update(np.ascontiguousarray(rows[:, wide : 2 * wide]).view(f">u{wide}")[:, 0].tolist())
    return sorted(places)
