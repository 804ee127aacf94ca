"""Source of frames decoded from a memory-mapped MP4. It does not open a container or probe the file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import MediaError
from chordcache.media.checks.bitstream import packet_reader
from chordcache.media.exact_frames import ExactFrames, FrameIndex, FrameReader, seek_frames_of
from chordcache.media.joints import Joints
from chordcache.media.mp4_decoder import SampleDecoder
from chordcache.media.mp4_samples import VideoTrack, read_video_track, refused
from chordcache.media.source_bytes import opened
from chordcache.sources.media_file import AS_STORED, MP4Source, naming

_HIGH_444 = 244
"""Profile of H.264. Streams of it from old versions of x264 have to be decoded from the start."""


class _MappedFile:
    """A mapped file, its frame index, and its running decoder."""

    def __init__(self, place: str) -> None:
        self.joints: Joints = {}
        self.sequential_reason: str | None = None
        self._frame_reader: FrameReader[Any] | None = None
        """Reader that continues after the last request"""
        self._last = -1
        """Number of the last frame that was read"""
        try:
            with opened(place) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise refused("the file is empty") from None
        self._data = memoryview(self._map)
        try:
            self._track = read_video_track(self._data)
            self.frame_index, self._samples = _frame_index_of(self._track)
            self._decoder = SampleDecoder(self._track, self._data)
            self._reader = packet_reader(self._track.codec, self._track.extradata)
            self.stated_size, self.orientation = (self._track.width, self._track.height), self._track.orientation
            self._check_start()
        except BaseException:  # cleanup boundary
            self.close()
            raise

    def close(self) -> None:
        """Unmap the file now. A reader that continues holds this object, and would keep the map until a collection."""
        self._frame_reader = None
        with suppress(BufferError):  # the traceback of an error still holds a part: the map closes together with it
            self._data.release()
            self._map.close()

    @property
    def aspect(self) -> Fraction | None:
        """Aspect ratio of a pixel, see ``SampleDecoder``."""
        return self._decoder.aspect

    def pictures(self, wanted: list[int]) -> Iterator[Any]:
        """Yield the decoded pictures of ascending frame numbers."""
        if self._map.size() < len(self._data):  # reading a map beyond the end of its file kills the process
            raise MediaError("decode", "changed", "the file became shorter while it was open")
        rest = wanted
        while rest:
            seek_frame = self.frame_index.seek_frames[rest[0]]
            reader, self._frame_reader = self._frame_reader, None  # not continued after an error
            if reader is None and rest[0] == self._last + 1:  # the caller reads one frame after the other
                reader = self._read_from(int(seek_frame))
            if reader is not None and seek_frame <= reader.next <= rest[0]:
                group = rest[:1]
                yield reader.advance(rest[0])
                self._frame_reader = reader
            else:
                num_near = np.searchsorted(self.frame_index.seek_frames[rest], seek_frame, side="right")
                group = rest[:num_near]
                yield from self._only(self._decoder, int(seek_frame), group)
            self._last = group[-1]
            rest = rest[len(group) :]

    def _check_start(self) -> None:
        """Refuse a file that does not show exactly one frame for each sample. ``MP4Source`` then reads it."""
        first, pts = self._sample(0), self._track.pts
        is_key = bool(self._track.is_sync[0])
        is_sound = self._reader.is_start(first, is_keyframe=is_key) and (
            self._reader.is_clean_start(first) or (self._reader.knows_leading and pts[0] == pts.min())
        )
        if not is_sound:
            raise refused("the file may begin in the middle of a group of pictures")
        if self._reader.may_share_frames(int(self._track.sizes.min())):
            raise refused("some samples may not show a frame")

    def _sample(self, number: int) -> memoryview:
        start, size = int(self._track.offsets[number]), int(self._track.sizes[number])
        return self._data[start : start + size]

    def _read_from(self, seek_frame: int) -> FrameReader[Any]:
        pictures = self._decoder.pictures(self._first_sample(seek_frame), len(self._track.sizes))
        numbered = ((self.frame_index.find(picture.pts), picture) for picture in pictures)
        # Samples that the edit list cuts off are decoded all the same
        return FrameReader(
            ((number, picture) for number, picture in numbered if number is not None), max(seek_frame, 0)
        )

    def _only(self, decoder: SampleDecoder, seek_frame: int, group: list[int]) -> Iterator[Any]:
        """Yield the pictures of some frames after a keyframe. Samples after these frames are not decoded."""
        stop = int(self._samples[group].max()) + 1
        rest = iter(group)
        number = next(rest, None)
        for picture in decoder.pictures(self._first_sample(seek_frame), stop):
            if number is not None and self.frame_index.find(picture.pts) == number:
                yield picture
                number = next(rest, None)
        if number is not None:
            raise MediaError("decode", "short", f"frame {number} cannot be decoded")

    def _first_sample(self, seek_frame: int) -> int:
        if seek_frame < 0:
            return 0
        sample = int(self._samples[seek_frame])
        if not self._reader.is_entry(self._sample(sample)):
            raise refused(f"sample {sample + 1} is marked as a keyframe, but later samples also need earlier ones")
        return sample

    def first_picture(self) -> Any:
        """Decode frame 0 with another decoder, because this one is in use."""
        return next(self._only(SampleDecoder(self._track, self._data), -1, [0]))


def _frame_index_of(track: VideoTrack) -> tuple[FrameIndex, np.ndarray]:
    """Return the frame index, and the sample of each frame [shape=(T,), dtype=int64]."""
    if track.codec == "h264" and track.extradata[1:2] == bytes([_HIGH_444]):
        raise refused("the pictures are H.264 in 4:4:4")
    shown = np.flatnonzero(track.is_shown)
    samples = shown[np.argsort(track.pts[shown], kind="stable")]
    pts = track.pts[samples]
    keys = track.pts[track.is_shown & track.is_sync]
    if not len(pts):
        raise refused("the edit list leaves no frame")
    if (np.diff(pts) <= 0).any():
        raise refused("two frames are shown at the same time")
    if (np.diff(keys) <= 0).any():
        raise refused("keyframes are not stored in the order in which they are shown")
    seek_frames = seek_frames_of(pts, keys)
    return FrameIndex(pts, track.time_base, seek_frames, track.last_ticks * track.time_base), samples


class MappedMP4Source(MP4Source):
    """The frames of an MP4 or QuickTime file, located in its mapped bytes by its own tables.

    The frames are the same as those of ``MP4Source``, and come sooner. Opening only reads the tables, and only the
    samples that are needed are decoded. ``MP4Source`` reads the files that cannot be read exactly in this way:
    fragmented files, other codecs than H.264, HEVC, AV1 and MPEG-4, wrongly marked keyframes, and tables that
    contradict the file. ``fallback_reason`` gives the reason.

    A mapped file must not become shorter while it is read.

    Parameters
    ----------
    frames : PictureConfig
        See ``MP4Source``.
    """

    def __init__(self, frames: PictureConfig = AS_STORED) -> None:
        super().__init__(frames)
        self.fallback_reason: str | None = None
        """Reason why ``MP4Source`` reads the file, None if it does not. It may only be found when a frame is read"""

    def _open_place(self) -> None:
        try:
            self._file = _MappedFile(self._place)
        except MediaError as error:
            self._fall_back(error)

    def _fall_back(self, error: MediaError) -> None:
        if error.cause != "tables":
            raise error
        if self._file is not None:
            self._file.close()
        self._file, self._scaler = ExactFrames(self._place), None
        self.fallback_reason = error.message

    def _close(self) -> None:
        self.fallback_reason = None
        super()._close()

    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        num_read = 0
        with naming(self._name):
            try:
                for picture in self._opened.pictures(wanted):
                    yield self._converted(picture)
                    num_read += 1
            except MediaError as error:
                self._fall_back(error)
                yield from super()._read(wanted[num_read:])
