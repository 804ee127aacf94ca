"""Exact frames of a media file, in any container, by number: the time of each, and where its decoding begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from typing import Generic, Self, TypeVar

import av
import numpy as np
from numpy.typing import ArrayLike

from chordcache.errors import MediaError
from chordcache.media.decoding import DecodedFrame, decode_frames, decode_from
from chordcache.media.demux import Media, hold_media
from chordcache.media.geometry import Orientation

Picture = TypeVar("Picture")

_SEEK_BACK_SECONDS = (0, 2, 20)
"""[seconds] before the keyframe to seek to, tried one after the other. In containers without an index, and in those
indexed by decoding time, a seek may go past the keyframe."""

_NANOSECOND = Fraction(1, 10**9)


@dataclass(frozen=True)
class FrameIndex:
    """Frames of a video in the order in which they are shown."""

    pts: np.ndarray
    """[shape=(T,), dtype=int64, ticks] Times, ascending"""
    time_base: Fraction
    """[seconds] Length of one tick"""
    seek_frames: np.ndarray
    """[shape=(T,), dtype=int64] Frame at which decoding has to begin, so that this one comes out right; -1 for the
    start of the file, which may be before the first frame that is shown"""
    frame_seconds: Fraction
    """[seconds] Duration of the last frame, see ``Media.last_frame_seconds``"""
    num_frames_skipped: int = 0
    """Number of frames before the first one, if the stream begins in the middle of a group of pictures"""
    decoded_seconds: np.ndarray | None = None
    """Times as a build decodes them [shape=(T,), dtype=float64, seconds], if they are not multiples of a tick"""

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(T,), dtype=float64, seconds]."""
        if self.decoded_seconds is not None:
            return self.decoded_seconds
        return self.pts * self.time_base.numerator / self.time_base.denominator

    @property
    def fps(self) -> float:
        """Frames per second on average; for a single frame, the rate in the headers."""
        span = int(self.pts[-1] - self.pts[0]) * self.time_base if len(self) > 1 else 0
        return float((len(self) - 1) / span if span > 0 else 1 / self.frame_seconds)

    def find(self, pts: int | None) -> int | None:
        """Return the frame that is shown at a time [ticks], None if there is none."""
        if pts is None:
            return None
        frame = int(np.searchsorted(self.pts, pts))
        return frame if frame < len(self) and self.pts[frame] == pts else None


def seek_frames_of(pts: ArrayLike, keys: ArrayLike) -> np.ndarray:
    """Return the frame at which decoding has to begin, for each frame [shape=(T,), dtype=int64].

    ``pts`` are the times of all frames, ascending. ``keys`` are the presentation times of the keyframes at which
    decoding can begin, in decode order. A keyframe counts only for frames that are shown at its time or later. Frames
    that are stored after it and shown before it may need older frames.

    Examples
    --------
    >>> seek_frames_of([0, 1, 2, 3, 4, 5], [1, 4]).tolist()
    [-1, 1, 1, 1, 4, 4]
    """
    times = np.asarray(pts, np.int64)
    starts = np.full(len(times), -1, np.int64)
    frames = np.searchsorted(times, np.asarray(keys, np.int64))
    starts[frames] = frames
    return np.maximum.accumulate(starts)


def read_frame_index(media: Media) -> FrameIndex:
    """Demux a file from its current position to its end, without decoding.

    Raise ``MediaError``, ``clock``, if two frames cannot be distinguished by their time; otherwise as
    ``Media.shown_packets``.
    """
    video = media.require_video()
    shown: list[int] = []
    keys: list[int] = []
    problem = None
    for packet, check in media.shown_packets(is_thorough=True):
        if media.timestamp_source != "pts" or packet.pts is None:
            problem = "its packets carry no presentation times"
            continue
        shown.append(packet.pts)
        if packet.is_keyframe and check.reader.is_entry(memoryview(packet)):
            keys.append(packet.pts)
        if not check.has_clean_start and not check.reader.knows_leading:
            problem = "the stream begins in the middle of a group of pictures"
    pts = sorted(shown)
    if any(later == earlier for earlier, later in pairwise(pts)):
        problem = problem or "two of its frames have the same time"
    if any(later < earlier for earlier, later in pairwise(keys)):
        problem = problem or "its clock is set back on the way"
    if problem is not None:
        raise MediaError("open", "clock", problem)
    return FrameIndex(
        np.array(pts, np.int64),
        video.time_base or Fraction(1),
        seek_frames_of(pts, keys),
        media.last_frame_seconds,
        media.num_skipped,
    )


class FrameReader(Generic[Picture]):
    """Reader of the pictures from a running decoder, in the order in which they are shown.

    ``pictures`` come with their frame numbers, None for a time at which no frame should be shown. ``first`` is the
    number of the first frame that can be decoded completely.
    """

    def __init__(self, pictures: Iterator[tuple[int | None, Picture]], first: int) -> None:
        self._pictures = pictures
        self.next = first
        """Number of the next frame"""

    def advance(self, number: int) -> Picture:
        """Return the picture of a later frame. Raise ``MediaError`` if it does not come, or another one does."""
        for shown, picture in self._pictures:
            if shown is not None and shown < self.next:
                continue  # shown before the keyframe that decoding began at, and needs older frames
            if shown != self.next:
                what = f"frame {self.next} does not come out of the decoder when its packet says so"
                raise MediaError("decode", "decode", what, self.next)
            self.next += 1
            if shown == number:
                return picture
        raise MediaError("decode", "short", f"frame {number} cannot be decoded", self.next)


class ExactFrames:
    """An open media file, its frame index, and its running decoder.

    Opening reads all packets and decodes none. Frames are then decoded from the keyframe that they need, or from the
    end of the last request. A file whose frames cannot be distinguished by their time is decoded once when it is
    opened, and from its start whenever a request goes back.

    Raise ``MediaError`` if the file cannot be opened, or its packets are damaged.
    """

    orientation: Orientation | None = None
    """Orientation of the container, if pictures do not have it"""

    def __init__(self, path: str) -> None:
        self._path = path
        self.media = hold_media(path)
        """The open file. Another object replaces it when the file is opened again"""
        self.sequential_reason: str | None = None
        """Reason why frames can only be counted from the start, None if they need not"""
        self._frame_reader: FrameReader[DecodedFrame] | None = None
        """Reader that continues after the last request"""
        try:
            self.frame_index = self._read_frame_index()
            video = self.media.require_video()
            self.stated_size = video.codec_context.width, video.codec_context.height
            """(width, height) of a picture according to the headers, [pixels]"""
            self.aspect, self.joints = video.sample_aspect_ratio, self.media.joints
        except BaseException:  # cleanup boundary
            self.media.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.media.close()

    def pictures(self, wanted: list[int]) -> Iterator[av.VideoFrame]:
        """Yield the decoded pictures of ascending frame numbers."""
        for number in wanted:
            yield self.frame(number).picture

    def first_picture(self) -> av.VideoFrame:
        """Return the decoded picture of frame 0."""
        return self.frame(0).picture

    def frame(self, number: int, *, motion_vectors: bool = False) -> DecodedFrame:
        """Decode the frame of this number in presentation order. Ascending numbers take one decode.

        The first request decides whether the decoder is asked for motion vectors. Raise ``MediaError`` if the frame
        cannot be decoded, or another one comes in its place.
        """
        seek_frame = int(self.frame_index.seek_frames[number])
        reader, self._frame_reader = self._frame_reader, None  # not continued after an error
        if reader is None or not seek_frame <= reader.next <= number:
            reader = self._read_from(seek_frame, motion_vectors)
        frame = reader.advance(number)
        self._frame_reader = reader
        return frame._replace(number=number)

    def _read_frame_index(self) -> FrameIndex:
        """Return the frame index, of a file that has to be decoded to find it too."""
        try:
            with self.media.capture():
                return read_frame_index(self.media)
        except MediaError as error:
            if error.cause != "clock":
                raise
            self.sequential_reason = error.message
        self._reopen()
        with self.media.capture():
            seconds = np.array([frame.pts_seconds for frame in decode_frames(self.media)], np.float64)
        pts = np.array([round(time / _NANOSECOND) for time in seconds.tolist()], np.int64)
        seek_frames = np.full(len(pts), -1, np.int64)
        last_seconds, num_skipped = self.media.last_frame_seconds, self.media.num_skipped
        return FrameIndex(pts, _NANOSECOND, seek_frames, last_seconds, num_skipped, seconds)

    def _reopen(self) -> None:
        num_skipped, joints = self.media.num_skipped, self.media.joints
        self.media.close()
        self.media = hold_media(self._path, joints)
        self.media.num_skipped = num_skipped

    def _read_from(self, seek_frame: int, motion_vectors: bool) -> FrameReader[DecodedFrame]:
        """Start to decode at a keyframe, or at the first packet of the file."""
        pts = int(self.frame_index.pts[seek_frame])
        for back_seconds in _SEEK_BACK_SECONDS if seek_frame >= 0 else ():
            if not self.media.seek(pts - int(back_seconds / self.frame_index.time_base), self.media.video):
                break
            frames = self._numbered(decode_from(self.media, pts, motion_vectors=motion_vectors))
            first = next(frames, None)
            if first is not None:
                return FrameReader(chain([first], frames), seek_frame)
        self._reopen()
        return FrameReader(self._numbered(decode_from(self.media, None, motion_vectors=motion_vectors)), 0)

    def _numbered(self, frames: Iterator[DecodedFrame]) -> Iterator[tuple[int | None, DecodedFrame]]:
        while True:
            with self.media.capture():
                decoded = next(frames, None)
            if decoded is None:
                return
            yield decoded.number if self.sequential_reason else self.frame_index.find(decoded.picture.pts), decoded
