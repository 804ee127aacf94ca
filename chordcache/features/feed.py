"""The decode of a file that feeds its items: one for the whole file, or one for all segments, which may overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chordcache.errors import MediaError
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.frames import FpsFilter
from chordcache.media.audio import parts_of_sound
from chordcache.media.decoding import DecodedFrame, decode_frames
from chordcache.media.demux import open_media
from chordcache.media.exact_frames import ExactFrames
from chordcache.media.geometry import nearest_bucket
from chordcache.media.scaling import PictureScaler
from chordcache.media.segments import end_of, span_of
from chordcache.records import Segment

_WHOLE = Segment(start_frame=0)


def decode_item(path: str, item: DecodePass) -> DecodeResult:
    """Decode a file for one item, as ``decode_items`` does. Return its result, or raise the error that ended it."""
    decode_items(path, [item])
    if item.error is not None:
        raise item.error
    assert item.result is not None, "an item ends with its last frame"
    return item.result


def decode_items(path: str, items: Sequence[DecodePass]) -> None:
    """Decode a file for some items: the whole file, segments of it, or the frames that are in their buckets.

    An error ends the items that need the frame. The others continue.
    """
    parts = [item for item in items if item.segment is not None or item.picture.buckets is not None]
    try:
        if parts:
            _decode_parts(path, parts)
    except MediaError as error:
        for item in parts:
            item.fail(error)
    for item in items:
        if item not in parts:
            try:
                decode_whole(path, item)
            except MediaError as error:
                item.fail(error)


def decode_whole(path: str, item: DecodePass) -> DecodeResult:
    """Decode a file from the first frame to the last. Raise ``MediaError`` as ``decode_frames`` and the item do."""
    with open_media(path) as media:
        item.begin(media)
        on_sound = item.add_sound if item.needs_sound else None
        for frame in decode_frames(media, motion_vectors=item.needs_motion_vectors, on_sound=on_sound):
            item.add_frame(frame)
        return item.finish(media)


def _decode_parts(path: str, items: Sequence[DecodePass]) -> None:
    """Decode the frames that some segments of a file need, each once, and pass them to these segments.

    With buckets, items may also be the whole file. Frames after those in an item's bucket are not decoded.

    An item is prepared when its first frame comes, and is complete with its last one, so that only items that overlap
    are open at the same time. An error ends the items that need the frame. The others continue. Raise ``MediaError`` if
    the file cannot be opened, or its packets are damaged.
    """
    with ExactFrames(path) as reader:
        motion_vectors = any(item.needs_motion_vectors for item in items)
        waiting: list[tuple[range, DecodePass]] = []
        for item in items:
            try:
                span = span_of(item.segment or _WHOLE, *_clock_of(reader))
                reader.media.expect(len(span))
                waiting.append((span, item))
            except MediaError as error:
                item.fail(error)
        waiting.sort(key=lambda pair: (pair[0].start, pair[0].stop), reverse=True)
        open_items: list[tuple[range, DecodePass]] = []
        number = 0
        while waiting or open_items:
            number = number if open_items else waiting[-1][0].start
            while waiting and waiting[-1][0].start == number:
                open_items.append(waiting.pop())
            open_items = _pass_frame(reader, number, open_items, motion_vectors)
            number += 1


def _pass_frame(
    reader: ExactFrames, number: int, items: list[tuple[range, DecodePass]], motion_vectors: bool
) -> list[tuple[range, DecodePass]]:
    """Pass one frame to the items that need it. Return the items that need the next one too."""
    try:
        frame = reader.frame(number, motion_vectors=motion_vectors)
    except MediaError as error:
        for _, item in items:
            item.fail(error)
        return []
    left = []
    for span, item in items:
        try:
            if number == span.start:
                span = _begin(reader, span, frame, item)
            item.add_frame(frame)
            if number + 1 < span.stop:
                left.append((span, item))
            else:
                _finish(reader, span, item)
        except MediaError as error:
            item.fail(error)
    return left


def _begin(reader: ExactFrames, span: range, first: DecodedFrame, item: DecodePass) -> range:
    """Prepare an item. Return the frames that it takes: all of them, or those in its bucket.

    Raise ``MediaError``, ``bucket``, if the item has fewer frames than each bucket.
    """
    picture = item.picture
    if picture.buckets is None:
        item.begin(reader.media)
        return span
    keeps, pts_seconds = FpsFilter(picture.fps).keeps, reader.frame_index.pts_seconds
    kept = [number for number in span if keeps(float(pts_seconds[number]))]
    scaler = PictureScaler(picture, reader.media.require_video().sample_aspect_ratio)
    scaler.settle(first.picture)
    bucket = nearest_bucket(picture.buckets, *scaler.display_size, len(kept))
    if bucket is None:
        least = min(bucket.num_frames for bucket in picture.buckets)
        what = f"got {len(kept)} frames, expected at least {least} as in the shortest of frames.buckets"
        raise MediaError("decode", "bucket", what)
    item.begin(reader.media, bucket)
    return range(span.start, kept[bucket.num_frames] if bucket.num_frames < len(kept) else span.stop)


def _finish(reader: ExactFrames, span: range, item: DecodePass) -> None:
    pts_seconds, frame_seconds = _clock_of(reader)
    end_seconds = end_of(item.segment, span, pts_seconds, frame_seconds)
    sounds = parts_of_sound(reader.media, float(pts_seconds[span.start]), end_seconds) if item.needs_sound else ()
    item.finish(reader.media, sounds, end_seconds)


def _clock_of(reader: ExactFrames) -> tuple[np.ndarray, float]:
    """Return the times of all frames of a file, and the duration of the last one [seconds]."""
    return reader.frame_index.pts_seconds, float(reader.frame_index.frame_seconds)
