"""Chunks of sound are the same samples wherever a seek lands: the whole track, decoded once by PyAV, and cut."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg

from chordcache.media.audio import read_sound

NOISE = "anoisesrc=d=20:r={rate}:c=pink:a=0.3:seed=5"
BURSTS = "aevalsrc='0.6*sin(2*PI*(300+200*sin(t*7))*t)*(0.02+gt(sin(2*PI*3.3*t),0.97))':d=20:s={rate}"
"""Attacks, for which Vorbis changes the length of its blocks"""

FILES = {
    "opus.webm": (NOISE, 48000, "libopus"),
    "vorbis.webm": (NOISE, 48000, "libvorbis"),
    "bursts.webm": (BURSTS, 48000, "libvorbis"),
    "aac.mkv": (NOISE, 44100, "aac"),
    "flac.mkv": (NOISE, 44100, "flac"),
    "mp3.flv": (NOISE, 44100, "libmp3lame"),
}
MAX_SHIFT = 64
"""[samples] Largest shift that is searched"""

STARTS_SECONDS = [1.234, 3.5, 6.0217, 9.999, 12.3456, 15.05, 18.3]


def whole(path: Path) -> tuple[float, np.ndarray]:
    """Return the time of the first sample, and all samples of the first channel."""
    with av.open(str(path)) as container:
        frames = list(container.decode(audio=0))
    resampler = av.AudioResampler("fltp")
    samples = [piece.to_ndarray()[0] for frame in frames for piece in resampler.resample(frame)]
    assert frames[0].time is not None
    return frames[0].time, np.concatenate(samples)


def shift_of(chunk: np.ndarray, track: np.ndarray, at: int) -> int:
    """Return how many samples a chunk lies after its place in the track, by least squares."""
    shifts = range(-MAX_SHIFT, MAX_SHIFT + 1)
    errors = [np.mean((chunk - track[at + shift : at + shift + len(chunk)]) ** 2) for shift in shifts]
    return shifts[int(np.argmin(errors))]


@pytest.mark.parametrize("name", FILES)
def test_a_chunk_does_not_depend_on_the_seek(tmp_path: Path, name: str) -> None:
    source, rate, codec = FILES[name]
    path = tmp_path / name
    ffmpeg("-f", "lavfi", "-i", source.format(rate=rate), "-ac", "1", "-c:a", codec, path)
    first_seconds, track = whole(path)
    for start_seconds in STARTS_SECONDS:
        chunk = read_sound(str(path), start_seconds, 0.5)[:, 0]
        at = round((start_seconds - first_seconds) * rate)
        assert shift_of(chunk, track, at) == 0, start_seconds


@pytest.mark.parametrize("gap_ms", [-20, 37, 600])
def test_a_chunk_after_a_gap_is_that_of_the_whole_track(tmp_path: Path, gap_ms: int) -> None:
    """The places where packets begin are others after it."""
    base, path = tmp_path / "base.mkv", tmp_path / "a.mkv"
    ffmpeg("-f", "lavfi", "-i", NOISE.format(rate=44100), "-ac", "1", "-c:a", "flac", base)
    ffmpeg("-i", base, "-c", "copy", "-bsf:a", f"setts=ts=TS+gte(N\\,100)*{gap_ms}", path)
    track = read_sound(str(path), 0.0, 21.0)[:, 0]
    for start_seconds in STARTS_SECONDS:
        at = round(start_seconds * 44100)
        chunk = read_sound(str(path), at / 44100, 0.5)[:, 0]
        assert np.array_equal(chunk, track[at : at + len(chunk)]), start_seconds
