"""The latest sound of a stream."""

from __future__ import annotations

from collections import deque

import av
import numpy as np

from chordcache.media.audio_track import SAMPLE_RATES, PlacedSound, Sound, paste


class AudioBuffer:
    """A bounded buffer of decoded sound, at most ``max_seconds``. Older sound is dropped.

    The rate of the track must be in ``SAMPLE_RATES``.
    """

    def __init__(self, track: av.AudioStream, max_seconds: float) -> None:
        context = track.codec_context
        self.sample_rate = context.sample_rate
        """[Hz]"""
        self._num_channels = context.layout.nb_channels
        self._placed = PlacedSound(context.layout, self.sample_rate)
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
