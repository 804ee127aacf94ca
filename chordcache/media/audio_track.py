"""The time of decoded sound, the audio track as one signal without gaps, and the latest sound of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import av
import numpy as np

from chordcache.media.ffmpeg_log import reason_of

Sound: TypeAlias = av.AudioFrame
"""A part of the audio track, as the decoder returns it"""

SAMPLE_RATES = range(1_000, 1_000_001)
"""[Hz] Rates of sound that is read. At a lower rate, a small file lasts for weeks. At a higher rate, libswresample's
filter takes gigabytes."""

_MIN_JUMP_SECONDS = 0.002
"""[seconds] Smallest error of a timestamp that may mean a gap or an overlap in the signal. Containers round to 1 ms."""

_MIN_UNEVEN_JUMP_SECONDS = 0.012
"""[seconds] The same where parts of the sound differ in length. Vorbis timestamps are 11 ms off there."""

_MAX_JITTER_SECONDS = 0.05
"""[seconds] Largest error of a timestamp that does not mean a gap or an overlap. Some clocks drift."""

_ROUNDING_SECONDS = 0.0015
"""[seconds] Largest difference between timestamps that were rounded to 1 ms and mean the same"""

_MAX_OVERLAP_SECONDS = 10.0
"""[seconds] Longest step back of a timestamp that means an overlap. A longer one means that the clock was set back."""

_MAX_SILENCE_SECONDS = 600.0
"""[seconds] Most silence that fills the gaps of one video. A timestamp that needs more is wrong, perhaps on purpose."""

_MAX_SILENCE_SAMPLES = 1 << 18
"""Most samples of silence, of one channel, that are yielded at once"""


def is_readable(sound: Sound) -> bool:
    """Return whether a part of the sound has samples, and a rate that is read."""
    return bool(sound.samples) and sound.sample_rate in SAMPLE_RATES


def paste(samples: np.ndarray, at: int, piece: np.ndarray) -> None:
    """Copy a piece [shape=(C, m)] into samples [shape=(n, C)], the first to ``at``. Others than these are left out."""
    begin, end = max(at, 0), min(at + piece.shape[1], len(samples))
    if begin < end:
        samples[begin:end] = piece[:, begin - at : end - at].T


class Placed(NamedTuple):
    """A part of the sound with its place in the signal."""

    sound: Sound
    begins_run: bool
    """True if it does not continue the part before it, or has another format"""
    position_seconds: float
    """[seconds] Its begin, from the first sample of the signal on"""


class AudioClock:
    """Clock of decoded sound. It decides where each part begins: after the part before, after a gap, or in an overlap.

    Sound is divided into runs. A run ends where the timestamps jump or the format of the sound changes. Inside a run,
    the samples follow each other, whatever the timestamps say: containers round these, by more than a sample.

    A timestamp jumps if it is off by 2 ms, and by more than all timestamps before it, and the next one agrees. Where
    parts of the sound differ in length, the limit is 12 ms, and nowhere is it above 50 ms. A jump by whole parts of the
    sound, as far as the timestamps are exact, is one by so many samples.

    If a timestamp equals the one before, the track has no usable clock (an AVI with a wrong header). The sound then
    continues without gaps.
    """

    def __init__(self) -> None:
        self._format: tuple[str, str, int] | None = None
        self._due_seconds = 0.0  # time of the next sound, from the first sample on
        self._zero_seconds: float | None = None  # the timestamp where due_seconds is 0
        self._jitter_seconds = 0.0  # largest error of a timestamp that does not mean a jump
        self._held: tuple[Sound, float] | None = None  # sound that waits for the next one, and the jump before it
        self._last_pts: int | None = None
        self._last_samples = 0
        self._has_clock = True
        self.start_seconds = 0.0
        """[seconds] Timestamp of the first sample; 0 if no sound has one"""

    @classmethod
    def continued(cls, start_seconds: float, position_seconds: float, last_samples: int) -> AudioClock:
        """Return a clock in the middle of a track: the next sound is due ``position_seconds`` after the first sample.

        ``last_samples``: number of samples of the part of the sound before it.
        """
        clock = cls()
        clock._zero_seconds = clock.start_seconds = start_seconds
        clock._due_seconds, clock._last_samples = position_seconds, last_samples
        return clock

    def place(self, sound: Sound | None) -> Iterator[Placed]:
        """Take the next sound. Yield the parts whose place is known now. Sound that is not readable is left out.

        None yields the part that is left at the end.
        """
        if sound is not None and not is_readable(sound):
            return
        if sound is not None and sound.pts is not None:
            self._has_clock &= sound.pts != self._last_pts
            self._last_pts = sound.pts
        if self._held is not None:
            (held, jump), self._held = self._held, None
            yield self._placed(held, self._settled(held, jump, sound))
        if sound is None:
            return
        jump = self._error_seconds(sound)
        is_even = sound.samples == self._last_samples
        least = (
            max(_MIN_JUMP_SECONDS, self._jitter_seconds + _ROUNDING_SECONDS) if is_even else _MIN_UNEVEN_JUMP_SECONDS
        )
        if abs(jump) > min(least, _MAX_JITTER_SECONDS):
            self._held = sound, jump
        else:
            self._jitter_seconds = max(self._jitter_seconds, abs(jump))
            yield self._placed(sound, 0.0)

    def _error_seconds(self, sound: Sound) -> float:
        """Return the time from when sound is due to its timestamp; 0 without a usable timestamp."""
        if sound.pts is None or sound.time_base is None or not self._has_clock:
            return 0.0
        seconds = float(sound.pts * sound.time_base)
        if self._zero_seconds is None:
            self._zero_seconds = self.start_seconds = seconds - self._due_seconds
        return seconds - self._zero_seconds - self._due_seconds

    def _settled(self, held: Sound, jump: float, following: Sound | None) -> float:
        """Return the jump before the held sound, which is 0 if the sound after it does not confirm its timestamp."""
        if not self._has_clock or held.time_base is None:
            return 0.0
        is_long = abs(jump) >= held.samples / held.sample_rate / 2  # the next one may jump as well
        if following is None or following.pts is None:
            return jump if is_long else 0.0
        difference = self._error_seconds(following) - held.samples / held.sample_rate - jump
        if abs(difference) <= _ROUNDING_SECONDS:
            unit = held.time_base
            is_tick = unit * held.sample_rate <= 1 and abs(difference) <= 1.5 * unit
            return jump + difference if is_tick else jump  # a packet that comes twice may be stamped one tick later
        if is_long and (difference > 0) == (jump > 0):
            return jump
        self._jitter_seconds = max(self._jitter_seconds, min(abs(jump), _MAX_JITTER_SECONDS))
        return 0.0

    def _placed(self, sound: Sound, jump: float) -> Placed:
        sound_format = (sound.format.name, sound.layout.name, sound.sample_rate)
        begins_run = bool(jump) or sound_format != self._format
        if jump and self._last_samples and sound.time_base is not None:
            part_seconds = self._last_samples / sound.sample_rate
            whole = round(jump / part_seconds) * part_seconds
            unit_seconds = float(sound.time_base)
            if whole and unit_seconds * sound.sample_rate > 1 and abs(jump - whole) <= 1.1 * unit_seconds:
                jump = whole
        self._due_seconds += jump
        position, self._due_seconds = self._due_seconds, self._due_seconds + sound.samples / sound.sample_rate
        self._format, self._last_samples = sound_format, sound.samples
        return Placed(sound, begins_run, position)


class AudioTrack:
    """Decoded sound as one signal, at one rate [Hz] and with one set of channels, in the runs of an ``AudioClock``.

    ``clock`` places the first sound. By default, its first sample is sample 0. A layout or a rate of None is that of
    the first sound. Sound that libswresample refuses is left out.
    """

    def __init__(
        self, layout: av.AudioLayout | str | None, sample_rate: int | None, clock: AudioClock | None = None
    ) -> None:
        self.sample_rate = sample_rate
        """[Hz] of the signal, or None before the first sound"""
        self.num_channels = 0
        self.num_samples = 0
        """Number of samples that ``add`` yielded so far, of one channel"""
        self._layout = layout
        self._clock = clock or AudioClock()
        self._resampler: av.AudioResampler | None = None
        self._next = self._end = 0
        self._num_sounds = self._num_refused = 0
        self._refusal = ""
        self._silence_seconds = 0.0
        self._clock_problem: str | None = None

    @property
    def start_seconds(self) -> float:
        """[seconds] Timestamp of sample 0; 0 if no sound has one."""
        return self._clock.start_seconds

    @property
    def problem(self) -> str | None:
        """Reason why the signal of ``add`` cannot be used, valid at the end. None if it can."""
        if self._clock_problem or self.num_samples:
            return self._clock_problem
        what = "the audio track holds no samples"
        if self._num_refused:
            what += f": {self._num_refused} of {self._num_sounds} parts cannot be resampled: {self._refusal}"
        return what

    def add(self, sound: Sound | None) -> Iterator[np.ndarray]:
        """Take decoded sound; yield the signal's next samples [shape=(C, n), dtype=float32]. None is the end.

        If a run begins later than the signal ends, silence fills the gap. If it begins earlier, its start is cut off.
        Nothing is yielded after the clock turns out to be wrong.
        """
        for number, samples in self.pieces(sound):
            if self._clock_problem:
                return
            while number > self.num_samples:
                # One zero, repeated: a gap of minutes takes no memory while it waits
                num_missing = min(number - self.num_samples, _MAX_SILENCE_SAMPLES)
                self.num_samples += num_missing
                yield np.broadcast_to(np.float32(0), (len(samples), num_missing))
            self.num_samples += samples.shape[1]
            yield samples

    def pieces(self, sound: Sound | None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the next samples [shape=(C, n), dtype=float32], after the number of the first one.

        Samples at a time that has some already are left out. So is sound that is not readable. None yields what is left
        at the end.
        """
        for placed in self._clock.place(sound):
            self._num_sounds += 1
            if placed.begins_run or self._resampler is None:
                yield from self._resampled(None)
                self._begin_run(placed)
            yield from self._resampled(placed.sound)
        if sound is None:
            yield from self._resampled(None)

    def _begin_run(self, placed: Placed) -> None:
        """Make a resampler for a run, determine where it starts, and judge the clock."""
        self._layout = self._layout or placed.sound.layout.name
        self.sample_rate = self.sample_rate or placed.sound.sample_rate
        self._resampler = av.AudioResampler("fltp", self._layout, self.sample_rate)
        self.num_channels = self._resampler.layout.nb_channels
        self._next = round(placed.position_seconds * self.sample_rate)
        missing_seconds = (self._next - self._end) / self.sample_rate
        self._silence_seconds += max(0.0, missing_seconds)
        if self._clock_problem:
            return
        if missing_seconds < -_MAX_OVERLAP_SECONDS:
            self._clock_problem = f"the clock of the audio track is set back by {-missing_seconds:.3f} s"
        elif self._silence_seconds > _MAX_SILENCE_SECONDS:
            self._clock_problem = (
                f"the clock of the audio track leaves gaps of {self._silence_seconds:.3f} s, expected at most "
                f"{_MAX_SILENCE_SECONDS:g} s"
            )

    def _resampled(self, sound: Sound | None) -> Iterator[tuple[int, np.ndarray]]:
        """Resample the sound of a run; None yields the end of the run."""
        if self._resampler is None:
            return
        try:
            frames = self._resampler.resample(sound)
        except MemoryError:
            raise
        except av.error.FFmpegError as error:  # such as channels that libswresample cannot mix; the next run may do
            self._resampler = None
            self._num_refused += 1
            self._refusal = reason_of(error)
            return
        for frame in filter(None, frames):  # PyAV returns None at the end if there was nothing to resample
            piece = frame.to_ndarray()
            first, self._next = self._next, self._next + piece.shape[1]
            covered = piece[:, max(0, self._end - first) :]  # without what the sound before an overlap covers
            self._end = max(self._end, self._next)
            if covered.size:
                yield self._next - covered.shape[1], covered
        if sound is None:
            self._resampler = None


class AudioBuffer:
    """A bounded buffer of decoded sound, at most ``max_seconds``. Older sound is dropped.

    The rate of the track must be in ``SAMPLE_RATES``.
    """

    def __init__(self, track: av.AudioStream, max_seconds: float) -> None:
        context = track.codec_context
        self.sample_rate = context.sample_rate
        """[Hz]"""
        self._num_channels = context.layout.nb_channels
        self._placed = AudioTrack(context.layout, self.sample_rate)
        self._max_samples = round(max_seconds * self.sample_rate)
        self._pieces: deque[tuple[int, np.ndarray]] = deque()
        """Samples, after the number of the first one"""
        self._num_kept = 0
        self._has_dropped = False

    @staticmethod
    def accepts(track: av.AudioStream | None) -> bool:
        """Return whether there is a track, and its rate is one that is read."""
        return track is not None and track.codec_context.sample_rate in SAMPLE_RATES

    def add(self, sound: Sound) -> None:
        """Add the next sound of the track. Sound that cannot be converted is skipped, as in players."""
        for number, piece in self._placed.pieces(sound):
            self._pieces.append((number, piece))
            self._num_kept += piece.shape[1]
        while self._num_kept > self._max_samples and len(self._pieces) > 1:
            self._num_kept -= self._pieces.popleft()[1].shape[1]
            self._has_dropped = True

    @property
    def end_seconds(self) -> float:
        """[seconds] End of the sound received so far, on the clock of the frames."""
        if not self._pieces:
            return float("-inf")
        number, piece = self._pieces[-1]
        end: int = number + piece.shape[1]
        return self._placed.start_seconds + end / self.sample_rate

    @property
    def start_seconds(self) -> float:
        """[seconds] Time before which sound was dropped; minus infinity if none was."""
        if not self._has_dropped:
            return float("-inf")
        return self._placed.start_seconds + self._pieces[0][0] / self.sample_rate

    def samples(self, start_seconds: float, duration_seconds: float) -> np.ndarray:
        """Return the sound that begins at a time [shape=(num_samples, channels), dtype=float32, -1 to 1].

        There is silence where the buffer has none.
        """
        out = np.zeros((round(duration_seconds * self.sample_rate), self._num_channels), np.float32)
        first = round((self._placed.start_seconds - start_seconds) * self.sample_rate)
        for number, piece in self._pieces:
            paste(out, first + number, piece)
        return out
