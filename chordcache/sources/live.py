"""Sources of frames from streams and cameras. Frames arrive at the sender's pace, in one direction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import AbsentFeatureError, ChordcacheError, MediaError, UsageError
from chordcache.media.addresses import open_device, open_stream, without_password
from chordcache.media.audio_track import AudioBuffer
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import Media
from chordcache.media.frame_numbers import check_frame_numbers
from chordcache.media.scaling import PictureScaler
from chordcache.sources.media_file import AS_STORED, naming
from chordcache.sources.video_source import VideoSource

_MAX_SECONDS = 3600.0
"""[seconds] Longest sound that a source keeps"""


class _Received(NamedTuple):
    number: int
    pts_seconds: float
    picture: np.ndarray


class _Buffer:
    """A bounded buffer of frames between the thread that receives them and the thread that reads them."""

    def __init__(self, num_frames: int, *, newest_wins: bool) -> None:
        self._frames: deque[_Received] = deque(maxlen=num_frames)
        self._newest_wins = newest_wins
        self._changed = threading.Condition()
        self._asked = 0
        """Frames below this number may be dropped"""
        self._error: ChordcacheError | None = None
        self._is_over = False
        self.frame_seconds: Fraction | None = None
        """Duration of a frame according to the headers, None until the stream is open"""
        self.num_frames = 0
        self.sound: AudioBuffer | None = None
        """Sound of the stream, None if it is not kept"""
        self._is_waiting = False
        """True while the receiver waits for room"""

    def opened(self, frame_seconds: Fraction, sound: AudioBuffer | None) -> None:
        with self._changed:
            self.frame_seconds, self.sound = frame_seconds, sound
            self._changed.notify_all()

    def put(self, frame: _Received) -> bool:
        """Add a frame when there is room for it. Return False if the buffer has ended."""
        with self._changed:
            self._is_waiting = not self._has_room()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over or self._has_room())
            self._is_waiting = False
            if self._is_over:
                return False
            self._frames.append(frame)
            self.num_frames = frame.number + 1
            self._changed.notify_all()
            return True

    def _has_room(self) -> bool:
        is_full = len(self._frames) == self._frames.maxlen
        return self._newest_wins or not is_full or self._frames[0].number < self._asked

    def end(self, error: ChordcacheError | None = None) -> None:
        with self._changed:
            self._is_over, self._error = True, error
            self._changed.notify_all()

    def wait_open(self, timeout_seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.frame_seconds or self._is_over, timeout_seconds):
                raise MediaError("open", "timeout", f"no answer for {timeout_seconds:g} s")
            # After it was opened, frames may have come before the error
            if self._error is not None and self.frame_seconds is None:
                raise self._error

    def _wait(self, is_due: Callable[[], bool], what: str, timeout_seconds: float) -> None:
        """Wait until something is there, or the stream has ended. Raise ``MediaError`` if this takes too long."""
        self._changed.notify_all()
        if not self._changed.wait_for(lambda: is_due() or self._is_over, timeout_seconds):
            raise MediaError("decode", "timeout", f"{what} has not come for {timeout_seconds:g} s", self.num_frames)

    def get(self, number: int, timeout_seconds: float) -> np.ndarray:
        """Return the frame with a number. If the newest wins, return the newest frame of at least that number."""
        with self._changed:
            self._asked = max(self._asked, number)
            self._wait(lambda: self.num_frames > number, f"frame {number}", timeout_seconds)
            if self.num_frames <= number:
                if self._error is not None:
                    raise self._error
                check_frame_numbers("indices", [number], self.num_frames, "the stream, which has ended")
            if self._newest_wins:
                return self._frames[-1].picture
            oldest = self._frames[0].number
            if number < oldest:
                kept = self._frames.maxlen
                raise IndexError(f"frame {number} has left the buffer, which holds {kept}: the oldest one is {oldest}")
            return self._frames[number - oldest].picture

    def put_sound(self, sound: Any) -> None:
        """Add decoded sound."""
        with self._changed:
            assert self.sound is not None
            self.sound.add(sound)
            self._changed.notify_all()

    def get_sound(self, start_seconds: float, duration_seconds: float, timeout_seconds: float) -> np.ndarray:
        """Return sound from a time on. Wait until it has arrived, or the stream has ended."""
        stop = start_seconds + duration_seconds
        with self._changed:
            sound = self.sound
            assert sound is not None
            self._wait(
                lambda: sound.end_seconds >= stop or (self._is_waiting and not self._has_room()),
                f"the sound until {stop:g} s",
                timeout_seconds,
            )
            if sound.end_seconds < stop:
                if self._error is not None:
                    raise self._error
                if not self._is_over:
                    raise UsageError(
                        f"audio chunk: got {start_seconds:g} to {stop:g} s, expected at most to {sound.end_seconds:g} "
                        "s, because the buffer is full of frames. Read later frames first, or raise buffer_frames."
                    )
            if start_seconds < sound.start_seconds:
                raise IndexError(
                    f"sound at {start_seconds:g} s has left the buffer, which begins at {sound.start_seconds:g} s"
                )
            return sound.samples(start_seconds, duration_seconds)

    def times(self) -> np.ndarray:
        with self._changed:
            return np.array([frame.pts_seconds for frame in self._frames], np.float64)


class _LiveSource(VideoSource):
    """Base class of streams and cameras. A thread receives and converts the frames."""

    is_live: ClassVar[bool] = True
    _sound_seconds = 0.0
    """[seconds] of sound to keep"""
    _opening: Callable[[str], AbstractContextManager[Media]]
    """Function that opens the stream or the device"""

    def __init__(self, frames: PictureConfig, timeout_seconds: float, num_buffered: int, *, newest_wins: bool) -> None:
        super().__init__()
        if not 0 < timeout_seconds < threading.TIMEOUT_MAX:
            raise UsageError(f"timeout_seconds: got {timeout_seconds!r}, expected a number above 0")
        if num_buffered < 1:
            raise UsageError(f"buffer_frames: got {num_buffered!r}, expected at least 1")
        self._frames_config = frames
        self._timeout_seconds = timeout_seconds
        self._num_buffered = num_buffered
        self._newest_wins = newest_wins
        self._buffer: _Buffer | None = None
        self._thread: threading.Thread | None = None

    def _open(self, name: str) -> None:
        self._buffer = _Buffer(self._num_buffered, newest_wins=self._newest_wins)
        self._thread = threading.Thread(target=self._receive, args=(name, self._buffer), daemon=True)
        self._thread.start()
        self._buffer.wait_open(2 * self._timeout_seconds)

    def _receive(self, name: str, buffer: _Buffer) -> None:
        try:
            with naming(without_password(name)), self._opening(name) as media:
                scaler = PictureScaler(self._frames_config, media.require_video().sample_aspect_ratio)
                track = media.audio if self._sound_seconds and AudioBuffer.accepts(media.audio) else None
                buffer.opened(media.frame_seconds, AudioBuffer(track, self._sound_seconds) if track else None)
                frames = decode_frames(media, on_sound=buffer.put_sound if track else None)
                received = (_Received(frame.number, frame.pts_seconds, scaler.rgb(frame.picture)) for frame in frames)
                all(map(buffer.put, received))  # until the buffer has ended
            buffer.end()
        except ChordcacheError as error:
            buffer.end(error)

    def _close(self) -> None:
        if self._buffer is not None:
            self._buffer.end()
        if self._thread is not None:
            self._thread.join(2 * self._timeout_seconds)
        self._buffer = self._thread = None

    @property
    def _opened(self) -> _Buffer:
        self._check_open()
        assert self._buffer is not None
        return self._buffer

    @property
    def num_frames(self) -> int:
        """Number of frames received so far."""
        return self._opened.num_frames

    @property
    def fps(self) -> float:
        """Frames per second that the headers state."""
        return float(1 / (self._opened.frame_seconds or Fraction(1)))

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times of the frames in the buffer [shape=(n,), dtype=float64, seconds], oldest first."""
        return self._opened.times()

    @property
    def sample_rate(self) -> int:
        """Sample rate [Hz] of the sound. Raises ``NotFoundError`` if the source does not keep sound."""
        return self._check_sound(self._opened).sample_rate

    def get_audio_chunk(self, start_seconds: float, duration_seconds: float) -> np.ndarray:
        """Return sound, with all its channels and at its sample rate. Wait until it has arrived. See ``VideoSource``.

        Raises
        ------
        NotFoundError
            If the stream does not have a sound track, or the source does not keep sound.
        IndexError
            If the begin of the sound has left the buffer.
        MediaError
            If the stream broke off, or the sound does not arrive in time.
        UsageError
            If the chunk is longer than the sound that is kept, or if the sound comes after more frames than the buffer
            holds.
        """
        buffer = self._opened
        self._check_sound(buffer)
        if not (abs(start_seconds) < 1e9 and 0 <= duration_seconds <= self._sound_seconds):
            raise UsageError(
                f"audio chunk: got start {start_seconds!r} and duration {duration_seconds!r}, expected seconds, of "
                f"duration 0 to {self._sound_seconds:g}. For more, raise sound_seconds."
            )
        return buffer.get_sound(start_seconds, duration_seconds, self._timeout_seconds)

    def _check_sound(self, buffer: _Buffer) -> AudioBuffer:
        """Return the sound of a buffer, or raise ``NotFoundError``."""
        if buffer.sound is not None:
            return buffer.sound
        if self._sound_seconds:
            raise AbsentFeatureError("the stream does not have a sound track that can be read")
        raise AbsentFeatureError(f"this {type(self).__name__} does not keep sound. Open a recording with MP4Source.")

    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        for number in wanted:
            yield self._opened.get(number, self._timeout_seconds)


class StreamSource(_LiveSource):
    """The frames and the sound of a stream.

    ``open`` takes an address with http, https (a file or an HLS playlist), rtsp or rtsps. Frames are numbered from the
    first that arrives. They can be read in ascending order, as far back as the buffer reaches. A full buffer makes the
    sender wait.

    The latest ``sound_seconds`` of sound are kept too. Sound arrives together with the frames of the same time. It can
    therefore be read as far ahead as ``buffer_frames`` reach.

    Parameters
    ----------
    frames : PictureConfig
        See ``MP4Source``.
    timeout_seconds : float
        Time [seconds] to wait for an answer, and for a frame.
    buffer_frames : int
        Number of frames that are kept: frames received ahead, and frames returned before.
    sound_seconds : float
        Length [seconds] of the latest sound that is kept, at most 3600. 0 does not decode sound.
    """

    def __init__(
        self,
        frames: PictureConfig = AS_STORED,
        *,
        timeout_seconds: float = 10.0,
        buffer_frames: int = 32,
        sound_seconds: float = 30.0,
    ) -> None:
        super().__init__(frames, timeout_seconds, buffer_frames, newest_wins=False)
        if not 0 <= sound_seconds <= _MAX_SECONDS:
            raise UsageError(f"sound_seconds: got {sound_seconds!r}, expected a number from 0 to {_MAX_SECONDS:g}")
        self._sound_seconds = sound_seconds
        self._opening = partial(open_stream, timeout_seconds=timeout_seconds)


class CameraSource(_LiveSource):
    """The newest frame of a camera. ``open`` takes the name of a device, such as "/dev/video0".

    Sound is not kept.

    ``get_frame(n)`` waits until frame n has arrived, and returns the newest frame. ``get_frame(source.num_frames)``
    waits for a frame that has not arrived yet.

    Parameters
    ----------
    device_format : str
        FFmpeg's name of the device type: v4l2, avfoundation, dshow, x11grab, lavfi.
    frames : PictureConfig
        See ``MP4Source``.
    options : mapping of str to str
        Options of the device, such as ``{"video_size": "1280x720"}``.
    timeout_seconds : float
        Time [seconds] to wait for a frame.
    """

    def __init__(
        self,
        device_format: str = "v4l2",
        frames: PictureConfig = AS_STORED,
        *,
        options: Mapping[str, str] | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        super().__init__(frames, timeout_seconds, 1, newest_wins=True)
        self._opening = partial(
            open_device, device_format=device_format, options=dict(options or {}), timeout_seconds=timeout_seconds
        )
