"""The feature "mel": against librosa on samples that our own decoder never saw, and on difficult clocks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import av
import librosa
import numpy as np
import pytest
from helpers.ffmpeg import decode_samples, ffprobe_column
from helpers.sound import (
    FIRST,
    RATE,
    SECOND,
    WITH_SOUND,
    noise,
    silence,
    sounds,
    write_sound,
)

from chordcache.features import mel
from chordcache.features.mel import MelExtractor
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media

ROUNDING_DB = 1e-3
"""Between two programs that are given the same samples; measured: 0."""

DECODING_DB = 0.01
"""Between two releases of libavcodec, in bands near silence; measured: 0.0014."""

SILENCE_DB = -100


# The extractor


def hear(path: str | Path, **params: Any) -> tuple[MelExtractor, list[np.ndarray]]:
    """The extractor after the whole audio track, and the blocks of rows that it returned."""
    extractor = MelExtractor("mel", **params)
    assert extractor.begin(WITH_SOUND) is None
    blocks: list[np.ndarray] = []
    with open_media(str(path)) as media:
        for _ in decode_frames(media, on_sound=lambda sound: blocks.extend(extractor.add_sound(sound).values())):
            pass
    blocks.extend(extractor.finish().values())
    return extractor, blocks


def hear_sounds(sounds: Iterable[av.AudioFrame], **params: Any) -> np.ndarray:
    """The rows of sound that no file holds."""
    extractor = MelExtractor("mel", **params)
    assert extractor.begin(WITH_SOUND) is None
    blocks = [rows for sound in sounds for rows in extractor.add_sound(sound).values()]
    return np.concatenate([*blocks, *extractor.finish().values()])


def rows_of(path: str | Path, **params: Any) -> np.ndarray:
    return np.concatenate(hear(path, **params)[1])


# The truth


def librosa_rows(
    samples: np.ndarray, *, sample_rate: int = RATE, n_fft: int = 400, hop_length: int = 160, **bands: Any
) -> np.ndarray:
    """librosa's word on a whole signal [shape=(n, n_mels)]."""
    padded = np.pad(samples, n_fft // 2)  # as center=True does, which warns of a signal shorter than the window
    power = librosa.feature.melspectrogram(
        y=padded, sr=sample_rate, n_fft=n_fft, hop_length=hop_length, center=False, **{"n_mels": 80, **bands}
    )
    return librosa.power_to_db(power, ref=1.0, top_db=None).T


def ffmpeg_samples(path: str | Path, *options: str, num_channels: int = 1) -> np.ndarray:
    """Samples that the command ffmpeg decodes [shape=(n, C), dtype=float32]."""
    return decode_samples(path, num_channels, "-vn", *options)


def test_truth_is_librosas_own_padding() -> None:
    samples = noise(5000)
    power = librosa.feature.melspectrogram(y=samples, sr=RATE, n_fft=400, hop_length=160, n_mels=80)
    np.testing.assert_array_equal(librosa_rows(samples), librosa.power_to_db(power, ref=1.0, top_db=None).T)


# The numbers


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_fft": 1024, "hop_length": 256, "n_mels": 64, "fmin": 50.0, "fmax": 7600.0},
        {"n_fft": 512, "hop_length": 512, "n_mels": 40},
        {"n_fft": 401, "hop_length": 7, "n_mels": 20, "fmin": 300.0},
    ],
)
def test_rows_are_librosas(params: dict[str, Any], tmp_path: Path) -> None:
    samples = noise(40_000)
    samples[20_000:25_000] = 0
    rows = rows_of(write_sound(tmp_path / "a.mov", [(0, samples)]), **params)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, librosa_rows(samples, **params), atol=ROUNDING_DB)


@pytest.mark.parametrize("num_samples", [1, 100, 159, 160, 199, 200, 201, 399, 400, 401, 561])
def test_sound_as_short_as_a_window(num_samples: int, tmp_path: Path) -> None:
    samples = noise(num_samples, seed=1)
    rows = rows_of(write_sound(tmp_path / "a.mov", [(0, samples)]))
    np.testing.assert_allclose(rows, librosa_rows(samples), atol=ROUNDING_DB)


@pytest.mark.parametrize("block_samples", [1, 401, 2000])
def test_borders_of_blocks_change_nothing(block_samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = noise(6000)
    path = write_sound(tmp_path / "a.mov", [(0, samples)])
    monkeypatch.setattr(mel, "BLOCK_SAMPLES", block_samples)
    _, blocks = hear(path)
    assert len(blocks) > 5
    np.testing.assert_allclose(np.concatenate(blocks), librosa_rows(samples), atol=ROUNDING_DB)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Rows leave on the way, at most some seconds of them at a time."""
    path = write_sound(tmp_path / "a.mov", [(0, noise(120 * RATE))])
    _, blocks = hear(path)
    assert sum(map(len, blocks)) == 12_001
    assert max(map(len, blocks)) < 1000


def test_channels_of_their_own(tmp_path: Path) -> None:
    samples = np.stack([noise(5000, seed=seed) for seed in range(6)], axis=1)
    path = write_sound(tmp_path / "a.mov", [(0, samples)], layout="5.1")
    extractor, blocks = hear(path, mono=False)
    expected = np.stack([librosa_rows(channel) for channel in samples.T], axis=1)
    np.testing.assert_allclose(np.concatenate(blocks), expected, atol=ROUNDING_DB)
    assert extractor.facts["num_channels"] == 6


def test_real_sound_at_its_own_rate(clips: Path) -> None:
    """Nothing is resampled or mixed: what is left is the decoder and the spectrogram."""
    path = clips / "animation" / "bigbuckbunny.mp4"
    params = {"sample_rate": 48_000, "n_fft": 1024, "hop_length": 480, "n_mels": 64}
    extractor, blocks = hear(path, mono=False, **params)
    samples = ffmpeg_samples(path, num_channels=6)
    expected = np.stack([librosa_rows(channel, **params) for channel in samples.T], axis=1)
    np.testing.assert_allclose(np.concatenate(blocks), expected, atol=DECODING_DB)
    assert extractor.facts == {"start_seconds": 0.0, "row_seconds": 0.01, "silence": -100.0, "num_channels": 6}


def test_samples_that_are_not_numbers(tmp_path: Path) -> None:
    samples = noise(4000)
    cut = samples.copy()
    samples[1000:1004], cut[1000:1004] = (np.nan, np.inf, -np.inf, 1e30), (0, 1e9, -1e9, 1e9)
    rows = rows_of(write_sound(tmp_path / "a.mov", [(0, samples)]))
    np.testing.assert_allclose(rows, librosa_rows(cut), atol=ROUNDING_DB)


# The clock


def test_sound_without_timestamps() -> None:
    def unstamped() -> Iterator[av.AudioFrame]:
        for sound in sounds([(5, FIRST), (0, SECOND)]):
            sound.pts = None
            yield sound

    expected = librosa_rows(np.concatenate([FIRST, SECOND]))
    np.testing.assert_allclose(hear_sounds(unstamped()), expected, atol=ROUNDING_DB)


def test_a_clock_that_drifts_is_corrected() -> None:
    """Each 64 ms start 1 ms late: after 51 ms, there is a gap of as much."""
    signal = noise(60 * 1024)
    pieces = [(number * 0.065, signal[number * 1024 :][:1024]) for number in range(60)]
    rows = hear_sounds(sounds(pieces))
    expected = [signal[: 51 * 1024], silence(0.051), signal[51 * 1024 :]]
    np.testing.assert_allclose(rows, librosa_rows(np.concatenate(expected)), atol=ROUNDING_DB)


def test_late_start(tmp_path: Path) -> None:
    extractor, blocks = hear(write_sound(tmp_path / "a.mkv", [(0.7, FIRST)]), hop_length=80)
    assert extractor.facts == {"start_seconds": 0.7, "row_seconds": 0.005, "silence": SILENCE_DB}
    np.testing.assert_allclose(np.concatenate(blocks), librosa_rows(FIRST, hop_length=80), atol=ROUNDING_DB)


@pytest.mark.parametrize(
    "name",
    [
        "odd/mpegts/seg-4-v1-a1.ts",
        "odd/negative_start/360p30_h264_48k_160_aac_ts-0000000028.ts",
        "odd/colour/sample_srgb.mp4",
        "odd/legacy_codec/bug482461.ogv",
        "real/human-action-recognition/fun_theory.mp4",
    ],
)
def test_start_is_that_of_the_file(name: str, corpus: Path) -> None:
    times = ffprobe_column(corpus / name, "frame=pts_time", "-select_streams", "a:0")
    extractor, _ = hear(corpus / name)
    assert extractor.facts["start_seconds"] == pytest.approx(float(times[0]), abs=2e-6)


def test_timestamps_that_do_not_advance(corpus: Path) -> None:
    """An AVI whose header lies: eight packets share each timestamp, and the sound is longer than they say."""
    rows = rows_of(corpus / "odd/low_rate_audio/bear_mpeg4asp_mp3.avi")
    assert len(rows) == 1 + 19 * 576 * 2 // 160


# The process


def test_a_worker_does_not_load_librosa() -> None:
    code = """
import sys
from chordcache.features.mel import MelExtractor, VideoInfo
assert MelExtractor("mel").begin(VideoInfo("h264", 64, 48, has_sound=True)) is None
print({"librosa", "numba", "scipy"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert not done.stderr
