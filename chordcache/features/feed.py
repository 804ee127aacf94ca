"""The decode of a file that feeds its receivers: one for the whole file, or several for segments, which may overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from chordcache.config.picture import Bucket, PictureConfig
from chordcache.errors import MediaError
from chordcache.features.frames import FpsFilter
from chordcache.media.audio_track import Sound
from chordcache.media.decoding import DecodedFrame, decode_frames
from chordcache.media.demux import Media, open_media
from chordcache.media.geometry import nearest_bucket
from chordcache.media.scaling import PictureScaler
from chordcache.media.segments import SegmentReader
from chordcache.records import Segment

Result_co = TypeVar("Result_co", covariant=True)


class Receiver(Protocol[Result_co]):
    """A receiver of frames and sound, such as a ``DecodePass``."""

    @property
    def picture(self) -> PictureConfig:
        """Settings of the pictures."""

    @property
    def needs_sound(self) -> bool:
        """True after ``begin`` if it takes sound."""

    @property
    def needs_motion_vectors(self) -> bool:
        """True if it takes the decoder's motion vectors."""

    def begin(self, media: Media, bucket: Bucket | None = None) -> None:
        """Prepare for the first frame of an item, in its bucket if there are buckets."""

    def add_frame(self, decoded: DecodedFrame) -> None:
        """Take the next frame."""

    def add_sound(self, sound: Sound) -> None:
        """Take the next part of the sound."""

    def finish(self, media: Media, sounds: Iterable[Sound] = (), end_seconds: float | None = None) -> Result_co:
        """Take the sound that ``add_sound`` did not get, after the last frame.

        ``end_seconds`` is the end of the last frame [seconds]. By default the file states its duration.
        """


class ItemReceiver(Receiver[object], Protocol):
    """A receiver of the frames and the sound of one item."""

    @property
    def segment(self) -> Segment | None:
        """The segment, or None for the whole file."""

    def fail(self, error: MediaError) -> None:
        """Take the error that ended the item, unless it is complete."""


def decode_item(path: str, receiver: Receiver[Result_co], segment: Segment | None = None) -> Result_co:
    """Decode a file from the first frame to the last, or a segment of it, or its frames that are in its bucket.

    Return and raise as ``decode_whole``. Raise ``MediaError`` also as ``SegmentReader``, and ``bucket`` if the item
    fills none.
    """
    return _decode_segment(path, receiver, segment) if _is_part(receiver, segment) else decode_whole(path, receiver)


def decode_whole(path: str, receiver: Receiver[Result_co]) -> Result_co:
    """Decode a file from the first frame to the last. Return the result of the receiver's ``finish``.

    Raise ``MediaError`` as ``decode_frames``, and what the receiver raises.
    """
    with open_media(path) as media:
        receiver.begin(media)
        on_sound = receiver.add_sound if receiver.needs_sound else None
        for frame in decode_frames(media, motion_vectors=receiver.needs_motion_vectors, on_sound=on_sound):
            receiver.add_frame(frame)
        return receiver.finish(media)


def _decode_segment(path: str, receiver: Receiver[Result_co], segment: Segment | None) -> Result_co:
    with SegmentReader(path) as reader:
        span = reader.span_of(segment or _WHOLE)
        first = reader.frame(span.start, motion_vectors=receiver.needs_motion_vectors)
        span = _begin(reader, span, first, receiver)
        receiver.add_frame(first)
        for number in span[1:]:
            receiver.add_frame(reader.frame(number, motion_vectors=receiver.needs_motion_vectors))
        return _finish(reader, span, segment, receiver)


def decode_items(path: str, items: Sequence[ItemReceiver]) -> None:
    """Decode a file for some items: the whole file, segments of it, or the frames that are in their buckets.

    An error ends the items that need the frame. The others continue.
    """
    parts = [item for item in items if _is_part(item, item.segment)]
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


def _is_part(receiver: Receiver[object], segment: Segment | None) -> bool:
    """Return whether only the item's own frames are decoded: those of a segment, or in a bucket."""
    return segment is not None or receiver.picture.buckets is not None


def _decode_parts(path: str, items: Sequence[ItemReceiver]) -> None:
    """Decode the frames that some segments of a file need, each once, and pass them to these segments.

    With buckets, items may also be the whole file. Frames after those in an item's bucket are not decoded.

    An item is prepared when its first frame comes, and is complete with its last one, so that only items that overlap
    are open at the same time. An error ends the items that need the frame. The others continue. Raise ``MediaError`` if
    the file cannot be opened, or its packets are damaged.
    """
    with SegmentReader(path) as reader:
        motion_vectors = any(item.needs_motion_vectors for item in items)
        waiting: list[tuple[range, ItemReceiver]] = []
        for item in items:
            try:
                span = reader.span_of(item.segment or _WHOLE)
                reader.media.expect(len(span))
                waiting.append((span, item))
            except MediaError as error:
                item.fail(error)
        waiting.sort(key=lambda pair: (pair[0].start, pair[0].stop), reverse=True)
        open_items: list[tuple[range, ItemReceiver]] = []
        number = 0
        while waiting or open_items:
            number = number if open_items else waiting[-1][0].start
            while waiting and waiting[-1][0].start == number:
                open_items.append(waiting.pop())
            open_items = _pass_frame(reader, number, open_items, motion_vectors)
            number += 1


def _pass_frame(
    reader: SegmentReader, number: int, items: list[tuple[range, ItemReceiver]], motion_vectors: bool
) -> list[tuple[range, ItemReceiver]]:
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
                _finish(reader, span, item.segment, item)
        except MediaError as error:
            item.fail(error)
    return left


_WHOLE = Segment(start_frame=0)


def _finish(reader: SegmentReader, span: range, segment: Segment | None, receiver: Receiver[Result_co]) -> Result_co:
    end_seconds = reader.end_of(segment, span)
    return receiver.finish(reader.media, reader.sounds(span, end_seconds) if receiver.needs_sound else (), end_seconds)


def _begin(reader: SegmentReader, span: range, first: DecodedFrame, receiver: Receiver[object]) -> range:
    """Prepare a receiver. Return the frames that it takes: all of the item, or those in its bucket.

    Raise ``MediaError``, ``bucket``, if the item has fewer frames than each bucket.
    """
    picture = receiver.picture
    if picture.buckets is None:
        receiver.begin(reader.media)
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
    receiver.begin(reader.media, bucket)
    return range(span.start, kept[bucket.num_frames] if bucket.num_frames < len(kept) else span.stop)
