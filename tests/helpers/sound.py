"""Sound made to measure: as decoded pieces, and as the audio track of a video."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import make_planes

from chordcache.features.base import VideoInfo

RATE = 16000
WITH_SOUND = VideoInfo("h264", 64, 48, has_sound=True)


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    """Noise that fades in and out, on a tone [shape=(num_samples,), dtype=float32]."""
    random = np.random.default_rng(seed).standard_normal(num_samples)
    time = np.arange(num_samples) / RATE
    return (0.1 * random * np.sin(5 * time) ** 2 + 0.3 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


Piece = tuple[float, np.ndarray]
"""[seconds] at which it starts, and its samples [shape=(n,) or (n, C)]"""


def sounds(pieces: Sequence[Piece], *, rate: int = RATE, layout: str = "mono") -> Iterator[av.AudioFrame]:
    """Decoded sound of up to 1024 samples, with the given times."""
    for start_seconds, samples in pieces:
        for first in range(0, len(samples), 1024):
            chunk = np.ascontiguousarray(samples[first : first + 1024].reshape(1, -1))
            sound = av.AudioFrame.from_ndarray(chunk, "flt", layout)
            sound.sample_rate, sound.time_base = rate, Fraction(1, rate)
            sound.pts = round(start_seconds * rate) + first
            yield sound


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


FIRST, SECOND, THIRD = noise(RATE, 1), noise(RATE, 2), noise(RATE, 3)
"""One second each."""


CLOCKS = pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([(0, FIRST), (2.5, SECOND)], [FIRST, silence(1.5), SECOND], id="gap"),
        pytest.param([(0, FIRST), (1.021, SECOND)], [FIRST, silence(0.021), SECOND], id="gap of a packet"),
        pytest.param([(0, FIRST), (0.979, SECOND)], [FIRST, SECOND[336:]], id="overlap of a packet"),
        pytest.param(
            [(0, FIRST[:4096]), (0.286, FIRST[4096:5120]), (0.32, FIRST[5120:])], [FIRST], id="one timestamp is late"
        ),
        pytest.param(
            [(0, FIRST[:4096]), (9, FIRST[4096:5120]), (0.32, FIRST[5120:])], [FIRST], id="one timestamp is wild"
        ),
        pytest.param([(0, FIRST), (0.5, SECOND)], [FIRST, SECOND[RATE // 2 :]], id="overlap"),
        pytest.param([(0, FIRST), (0, SECOND), (0.5, THIRD)], [FIRST, THIRD[RATE // 2 :]], id="overlaps all through"),
        pytest.param(
            [(0, FIRST), (1.4, SECOND), (1.9, THIRD)],
            [FIRST, silence(0.4), SECOND, THIRD[RATE // 2 :]],
            id="gap, then overlap",
        ),
    ],
)
"""Pieces of sound with their times, and the parts of the signal that they are"""

WRONG_CLOCKS = pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        (
            [(0, FIRST), (3600, SECOND)],
            "the audio track leaves gaps of 3599.000 s, expected at most 600 s",
        ),
        ([(20, FIRST), (0, SECOND)], "the clock of the audio track is set back by 21.000 s"),
        ([(number * 301.0, FIRST) for number in range(5)], "leaves gaps of 900.000 s"),
    ],
)
"""Pieces of sound whose times cannot be right, and why mel and waveform are absent"""


def write_sound(
    path: Path,
    pieces: Sequence[Piece],
    *,
    rate: int = RATE,
    layout: str = "mono",
    codec: str = "pcm_f32le",
    num_frames: int = 5,
) -> Path:
    """Write a video with sound, see ``sounds``. A muxer lets no timestamp go back."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg2video", rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream(codec, rate=rate, layout=layout)
        sound.time_base = Fraction(1, rate)
        for number in range(num_frames):
            planes = np.concatenate([plane.reshape(-1, 64) for plane in make_planes(number, 64, 48)])
            frame = av.VideoFrame.from_ndarray(planes, "yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        for frame in sounds(pieces, rate=rate, layout=layout):
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    return path


def write_mpegts(path: Path, samples: np.ndarray, start_seconds: float, rate: int, layout: str) -> Path:
    """MPEG-TS with a video frame and MP2 sound [shape=(n, C), dtype=int16] from ``start_seconds`` on."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg2video", rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("mp2", rate=rate, layout=layout)
        picture = av.VideoFrame.from_ndarray(np.full((72, 64), 128, np.uint8), "yuv420p")
        picture.pts, picture.time_base = round(25 * start_seconds), Fraction(1, 25)
        container.mux(video.encode(picture))
        container.mux(video.encode(None))
        for first in range(0, len(samples) - 1151, 1152):
            frame = av.AudioFrame.from_ndarray(samples[first : first + 1152].reshape(1, -1), "s16", layout)
            frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
            frame.pts = round(start_seconds * rate) + first
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    return path


def write_joined(folder: Path) -> Path:
    """Two recordings joined as MPEG-TS may be: 440 Hz, first 44.1 kHz stereo, then 48 kHz mono, 2 s each."""
    parts = []
    for start_seconds, rate, layout in ((0, 44_100, "stereo"), (2, 48_000, "mono")):
        tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate).astype(np.float32)
        samples = (np.stack([tone] * (1 + (layout == "stereo")), axis=1) * 32767).astype(np.int16)
        parts.append(write_mpegts(folder / f"{rate}.ts", samples, start_seconds, rate, layout).read_bytes())
    (folder / "joined.ts").write_bytes(b"".join(parts))
    return folder / "joined.ts"
