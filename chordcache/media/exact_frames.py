"""Exact frames of a media file, in any container, by number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Generic, Self, TypeVar

import numpy as np

from chordcache.errors import MediaError
from chordcache.media.decoding import DecodedFrame, decode_frames, decode_from
from chordcache.media.demux import hold_media
from chordcache.media.frame_index import FrameIndex, read_frame_index

Picture = TypeVar("Picture")

_SEEK_BACK_SECONDS = (0, 2, 20)
"""[seconds] before the keyframe to seek to, tried one after the other. In containers without an index, and in those
indexed by decoding time, a seek may go past the keyframe."""

_NANOSECOND = Fraction(1, 10**9)


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

    Raises
    ------
    MediaError
        If the file cannot be opened, or its packets are damaged.

    Attributes
    ----------
    media : Media
        The open file. Another object replaces it when the file is opened again.
    frame_index : FrameIndex
        The time of each frame, and the frame at which decoding begins for it.
    sequential_reason : str | None
        Reason why frames can only be counted from the start.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.media = hold_media(path)
        self.sequential_reason: str | None = None
        self._frame_reader: FrameReader[DecodedFrame] | None = None
        """Reader that continues after the last request"""
        try:
            self.frame_index = self._read_frame_index()
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
        return replace(frame, number=number)

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
            times = [round(frame.pts_seconds / _NANOSECOND) for frame in decode_frames(self.media)]
        seek_frames = np.full(len(times), -1, np.int64)
        return FrameIndex(
            np.array(times, np.int64), _NANOSECOND, seek_frames, self.media.last_frame_seconds, self.media.num_skipped
        )

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
