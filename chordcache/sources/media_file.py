"""Source of frames decoded from a media file. Every frame is exact, in any container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from chordcache.arguments import names_arguments
from chordcache.config.picture import PictureConfig
from chordcache.errors import AbsentFeatureError, MediaError, UsageError, printable
from chordcache.media.audio import read_sound, sample_rate_of
from chordcache.media.exact_frames import ExactFrames, FrameIndex
from chordcache.media.geometry import Orientation
from chordcache.media.joints import Joints
from chordcache.media.scaling import PictureScaler
from chordcache.media.source_file import open_source
from chordcache.sources.video_source import VideoSource

AS_STORED = PictureConfig(short_side=None)
"""Config of upright frames with square pixels, as ``build`` makes them, in the source's size."""


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the name of the file to errors about it."""
    try:
        yield
    except AbsentFeatureError as error:
        raise AbsentFeatureError(f"'{printable(path)}': {error}") from None
    except MemoryError as error:  # a file may claim to need any amount
        raise MediaError("decode", "oom", f"cannot read '{printable(path)}': {error or 'no memory'}") from None
    except MediaError as error:
        named = f"cannot read '{printable(path)}': "  # the source that took over may have added it
        what = error.message if error.message.startswith(named) else named + error.message
        raise MediaError(error.stage, error.cause, what, error.num_frames_ok) from error


class OpenFile(Protocol):
    """An open media file whose frames are decoded by number: ``ExactFrames``, or a replacement for it."""

    frame_index: FrameIndex
    sequential_reason: str | None
    joints: Joints
    stated_size: tuple[int, int]
    orientation: Orientation | None

    @property
    def aspect(self) -> Fraction | None:
        """See ``ExactFrames``."""

    def close(self) -> None:
        """Close the file."""

    def pictures(self, wanted: list[int]) -> Iterator[Any]:
        """Yield the decoded pictures of ascending frame numbers."""

    def first_picture(self) -> Any:
        """Return the decoded picture of frame 0."""


@names_arguments
class MP4Source(VideoSource):
    """The frames of a media file (MP4 or any other container that ``scan`` supports), decoded on request.

    Frame numbers count all frames that are shown, in the order in which they are shown. A cache's
    ``Video.source_frames`` are such numbers. Opening a file reads all its packets and decodes none. A frame is then
    decoded from the keyframe that it needs, or from the end of the last request. In some files (AVI, raw streams),
    frames cannot be distinguished by their time. Such a file is decoded once as a whole when it is opened, and from its
    start whenever a request goes back. See ``sequential_reason``.

    Parameters
    ----------
    frames : PictureConfig
        Size, HDR and stereo treatment, as for ``build``. By default the source's size. ``fps`` only matters to a
        dataset of the source. It does not change frame numbers, because they are the source's.
    """

    def __init__(self, frames: PictureConfig = AS_STORED) -> None:
        super().__init__()
        if not isinstance(frames, PictureConfig):
            raise UsageError(f"frames: got {frames!r}, expected settings of pictures, or none. Name files to open().")
        if frames.buckets is not None:
            raise UsageError(
                "frames: got buckets, which are chosen for whole items, expected None for a source of single frames. "
                "Build a cache with frames.buckets."
            )
        self._frames = frames
        self.max_fps, self.stereo = frames.fps, frames.stereo
        self._file: OpenFile | None = None
        self._place = ""
        self._scaler: PictureScaler | None = None
        self._opening = ExitStack()

    def _open(self, name: str) -> None:
        if "://" in name:
            raise UsageError(f"path: got '{printable(name)}', expected a file. Use StreamSource for an address.")
        with naming(name):
            self._place = self._opening.enter_context(open_source(name, self.inside)).place
            self._open_place()

    def _open_place(self) -> None:
        self._file = ExactFrames(self._place)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._scaler = None
        self._opening.close()

    @property
    def _opened(self) -> OpenFile:
        self._check_open()
        assert self._file is not None
        return self._file

    @property
    def num_frames(self) -> int:
        """Number of frames of the file."""
        return len(self.frame_index)

    @property
    def fps(self) -> float:
        """Average frames per second. For a single frame, the rate in the headers."""
        return self.frame_index.fps

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the clock of the sound."""
        return self.frame_index.pts_seconds

    @property
    def display_size(self) -> tuple[int, int]:
        """(width, height) of the displayed source, [pixels]. (0, 0) before a frame is read."""
        self._check_open()
        return self._scaler.display_size if self._scaler else (0, 0)

    @property
    def sequential_reason(self) -> str | None:
        """Reason why frames can only be counted from the start, None if the file can be decoded from any keyframe."""
        return self._opened.sequential_reason

    @property
    def frame_index(self) -> FrameIndex:
        """Presentation time of each frame, and the frame at which decoding begins for it."""
        return self._opened.frame_index

    @property
    def sample_rate(self) -> int:
        """Sample rate [Hz] of the audio track."""
        self._check_open()
        with naming(self._name):
            return sample_rate_of(self._place)

    def get_audio_chunk(self, start_seconds: float, duration_seconds: float) -> np.ndarray:
        """Return sound of the file's best track, with all its channels and at its sample rate. See ``VideoSource``."""
        with naming(self._name):
            return read_sound(self._place, start_seconds, duration_seconds, joints=self._opened.joints)

    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        with naming(self._name):
            yield from map(self._converted, self._opened.pictures(wanted))

    def _converted(self, picture: Any) -> np.ndarray:
        """Convert a picture. Frame 0 fixes the size of all frames. It is decoded unless this one is as headers say."""
        if self._scaler is None:
            file = self._opened
            is_stated = (picture.width, picture.height) == file.stated_size
            scaler = PictureScaler(self._frames, file.aspect)
            scaler.settle(picture if is_stated else file.first_picture())
            scaler.orientation = file.orientation or scaler.orientation
            self._scaler = scaler
        return self._shown(self._scaler, picture)

    def _shown(self, scaler: PictureScaler, picture: Any) -> np.ndarray:
        """Return the frame of a decoded picture [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB]."""
        return scaler.rgb(picture)
