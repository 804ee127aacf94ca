"""The feature "waveform": against the samples that were written, PyAV and ffmpeg, and on difficult clocks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers.ffmpeg import decode_samples, ffmpeg, ffprobe
from helpers.sound import (
    CLOCKS,
    FIRST,
    RATE,
    SECOND,
    WITH_SOUND,
    WRONG_CLOCKS,
    Piece,
    noise,
    sounds,
    write_joined,
    write_sound,
)

from chordcache.errors import MediaError
from chordcache.features.base import VideoInfo
from chordcache.features.mel import MelExtractor
from chordcache.features.waveform import BLOCK_SAMPLES, WaveformExtractor
from chordcache.media.demux import open_media

OWN: dict[str, Any] = {"sample_rate": None, "channels": "all"}
"""The track as it is: nothing is resampled or mixed"""

TOLERANCE = 1e-6
"""[full scale] Between two releases of libavcodec and of libswresample; measured: 3.6e-7 for AAC, 0 for MP2 and MP3."""


def signal_of(extractor: WaveformExtractor, blocks: list[np.ndarray]) -> np.ndarray:
    """The rows as one signal [shape=(t,) or (C, t)], and a check of what fills the last row up."""
    rows = np.concatenate(blocks)
    assert rows.shape[-1] == BLOCK_SAMPLES
    num_samples = extractor.facts["num_samples"]
    assert len(rows) == -(-num_samples // BLOCK_SAMPLES)
    signal = np.concatenate(list(rows), axis=-1)
    assert not signal[..., num_samples:].any()
    return signal[..., :num_samples]


def hear_sounds(heard: Iterable[av.AudioFrame], **params: Any) -> tuple[WaveformExtractor, np.ndarray]:
    extractor = WaveformExtractor("waveform", **params)
    assert extractor.begin(WITH_SOUND) is None
    blocks = [rows for sound in heard for rows in extractor.add_sound(sound).values()]
    return extractor, signal_of(extractor, [*blocks, *extractor.finish().values()])


def hear(path: str | Path, **params: Any) -> tuple[WaveformExtractor, np.ndarray]:
    """The extractor after the whole audio track, and the signal."""
    with open_media(str(path)) as media:
        return hear_sounds(media.sounds(), **params)


# The numbers, against samples that were written


@pytest.mark.parametrize("num_samples", [1, 1000, 4095, 4096, 4097, 65_536, 65_537, 200_001])
@pytest.mark.parametrize(("layout", "num_channels"), [("mono", 1), ("stereo", 2), ("5.1", 6)])
def test_floats_are_kept_to_the_last_bit(num_samples: int, layout: str, num_channels: int, tmp_path: Path) -> None:
    samples = np.random.default_rng(num_samples).standard_normal((num_samples, num_channels)).astype(np.float32)
    path = write_sound(tmp_path / "a.mov", [(0, samples)], rate=44_100, layout=layout)
    extractor, waveform = hear(path, **OWN)
    assert waveform.dtype == np.float32
    np.testing.assert_array_equal(waveform, samples.T)
    assert np.abs(waveform).max() > 1 or num_samples == 1
    assert extractor.facts == {
        "start_seconds": 0.0,
        "row_seconds": 4096 / 44_100,
        "silence": 0,
        "sample_rate": 44_100,
        "num_samples": num_samples,
        "num_channels": num_channels,
    }


@pytest.mark.parametrize("codec", ["pcm_s16le", "flac"])
def test_tracks_of_16_bit_are_kept_exactly(codec: str, tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(-32768, 32768, 50_000).astype(np.int16)
    codes[:4] = (-32768, 32767, -1, 1)
    path = write_sound(tmp_path / "a.mkv", [(0, codes / np.float32(32768))], codec=codec)
    extractor, waveform = hear(path, sample_rate=None, dtype="int16")
    assert waveform.dtype == np.int16
    np.testing.assert_array_equal(waveform, codes)
    assert extractor.facts["clipped_share"] == 0
    np.testing.assert_array_equal(hear(path, sample_rate=None)[1], codes / np.float32(32768))


def test_int16_is_rounded_and_clipped(tmp_path: Path) -> None:
    """Halves go to the even number, as in libswresample. +1 is one step above the largest number."""
    given = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, 0.51, 32767.4, 32767.5, -32768.5], np.float32) / 32768
    given = np.concatenate([given, np.array([1, -1, 1.5, -1.5, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)])
    expected = [0, 2, 2, 0, -2, -2, 0, 1, 32767, 32767, -32768]
    expected += [32767, -32768, 32767, -32768, 32767, -32768, 32767, -32768, 0]
    extractor, waveform = hear_sounds(sounds([(0, given)]), dtype="int16")
    assert waveform.tolist() == expected
    assert extractor.facts["clipped_share"] == 8 / 20  # 32767.5 rounded up, +1, and six that are farther outside


def test_int16_is_what_ffmpeg_makes(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.mov", [(0, 3 * noise(100_000))])
    expected = np.frombuffer(ffmpeg("-i", path, "-vn", "-f", "s16le", "-"), np.int16)
    extractor, waveform = hear(path, dtype="int16")
    np.testing.assert_array_equal(waveform, expected)
    assert 0 < extractor.facts["clipped_share"] < 0.1


def test_samples_that_are_not_numbers(tmp_path: Path) -> None:
    samples = noise(4000)
    samples[1000:1005] = (np.nan, np.inf, -np.inf, 1e30, 7.5)
    waveform = hear(write_sound(tmp_path / "a.mov", [(0, samples)]))[1]
    assert waveform[1000:1005].tolist() == [0, 1e9, -1e9, 1e9, 7.5]


def test_channels_are_mixed_as_by_ffmpeg(tmp_path: Path) -> None:
    samples = np.stack([noise(50_000, seed) for seed in range(6)], axis=1)
    path = write_sound(tmp_path / "a.mov", [(0, samples)], layout="5.1")
    expected = decode_samples(path, 1, "-vn", "-ac", "1")[:, 0]
    np.testing.assert_allclose(hear(path)[1], expected, atol=TOLERANCE)


@pytest.mark.parametrize("sample_rate", [8000, 22_050, 44_100, 48_000])
def test_resampled_as_by_ffmpeg(sample_rate: int, tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.mov", [(0, noise(100_000))])
    expected = decode_samples(path, 1, "-vn", "-ar", str(sample_rate))[:, 0]
    extractor, waveform = hear(path, sample_rate=sample_rate)
    assert extractor.facts["row_seconds"] == 4096 / sample_rate
    np.testing.assert_allclose(waveform, expected, atol=TOLERANCE)


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_priming_of_aac(suffix: str, tmp_path: Path) -> None:
    """The first sample that was encoded is at the time of the first picture. In Matroska, ffmpeg 5.1 moves both."""
    samples = noise(5 * RATE)
    source = write_sound(tmp_path / "a.mov", [(0, samples)])
    path = tmp_path / f"b.{suffix}"
    ffmpeg("-i", source, "-c:v", "copy", "-c:a", "aac", "-b:a", "128k", path)
    extractor, waveform = hear(path)
    num_samples = min(len(waveform), len(samples))
    assert num_samples > len(samples) - 2048
    spectrum = np.fft.rfft(waveform[:num_samples]) * np.conj(np.fft.rfft(samples[:num_samples]))
    lag = int(np.fft.irfft(spectrum, num_samples).argmax())
    assert lag == {"mp4": 0, "mkv": 1024}[suffix]
    start = float(ffprobe(path, "stream=start_time", "-select_streams", "v:0")["streams"][0]["start_time"])
    assert extractor.facts["start_seconds"] + lag / RATE == pytest.approx(start, abs=0.001)


# Real sound, against ffmpeg and PyAV

REAL = [
    "real/lipnet/brbk7n.mpg",  # MP2, 44.1 kHz
    "real/learning-area/elf.webm",  # Vorbis
    "real/video_features/v_GGSY1Qvo990.mp4",  # AAC, mono, louder than full scale
    "real/fuzzing-corpus/h264-aac-publicdomain-sample.mp4",
    "real/human-action-recognition/fun_theory.mp4",  # the pictures start late
    "real/media/sample.avi",  # MP3
    "odd/surround/bbb_960x540_60fps_vp8.webm",  # Vorbis, 5.1
    "odd/surround/hevc.ts",  # AAC, 5.1
    "odd/low_rate_audio/bear_mpeg4asp_mp3.avi",  # 8 kHz
    "odd/odd_size/flash.flv",  # 11.025 kHz
    "odd/fragmented/fragmented.mp4",  # 16 kHz
    "odd/fragmented/gizmo-frag.mp4",
    "odd/vfr/segment.ts",  # Opus
    "odd/edit_list/sample_edit_list_no_sync_frame_before_edit.mp4",
    "odd/edit_list/sample_edit_list_only_preroll_sync_sample.mp4",
    "odd/hls_text_offset/video-0000000069.ts",  # starts at 140 s
    "odd/negative_start/360p30_h264_48k_160_aac_ts-0000000028.ts",
    "odd/audio_mismatch/testvid_1022ms.mp4",
    "odd/unsupported_codec/_1601video.mp4",  # EVRC
]


def decoded_by_pyav(path: Path) -> np.ndarray:
    """The samples of the best track [shape=(C, n), dtype=float32], without libswresample."""
    with av.open(str(path)) as container:
        sounds = list(container.decode(container.streams.best("audio")))
    scale = {"s16": 32768, "s32": 2147483648, "flt": 1}[sounds[0].format.packed.name]
    parts = [
        sound.to_ndarray() if sound.format.is_planar else sound.to_ndarray().reshape(-1, sound.layout.nb_channels).T
        for sound in sounds
    ]
    return np.concatenate(parts, axis=1).astype(np.float32) / np.float32(scale)


def check_real(path: Path) -> None:
    """The track as it is equals PyAV's samples; ffmpeg's are within the tolerance, also resampled and mixed."""
    _, own = hear(path, **OWN)
    np.testing.assert_array_equal(own, decoded_by_pyav(path))
    np.testing.assert_allclose(own, decode_samples(path, len(own), "-vn").T, rtol=0, atol=TOLERANCE)
    expected = decode_samples(path, 1, "-vn", "-ac", "1", "-ar", str(RATE))[:, 0]
    _, waveform = hear(path)
    np.testing.assert_allclose(waveform, expected, rtol=0, atol=TOLERANCE)
    _, codes = hear(path, dtype="int16")
    np.testing.assert_array_equal(codes, np.rint(waveform * 32768).clip(-32768, 32767))


def test_real_sound(clips: Path) -> None:
    check_real(clips / "animation" / "bigbuckbunny.mp4")


@pytest.mark.parametrize("name", REAL)
def test_corpus(name: str, corpus: Path) -> None:
    check_real(corpus / name)


@pytest.mark.parametrize(
    ("name", "num_priming"), [("odd/sar/avc-ac3.mkv", 256), ("odd/subtitles/sample_with_chapters.mkv", 1024)]
)
def test_priming_that_ffmpeg_5_keeps(name: str, num_priming: int, corpus: Path) -> None:
    _, own = hear(corpus / name, **OWN)
    np.testing.assert_array_equal(own, decoded_by_pyav(corpus / name))
    expected = decode_samples(corpus / name, len(own), "-vn").T[:, num_priming:]
    np.testing.assert_allclose(own, expected, rtol=0, atol=TOLERANCE)


def test_gap_of_a_real_file(corpus: Path) -> None:
    """ffmpeg's samples, each frame at the place of its time according to ffprobe."""
    path = corpus / "odd" / "vfr" / "fire2.mp4"
    frames = ffprobe(path, "frame=pts_time,nb_samples", "-select_streams", "a:0")["frames"]
    decoded = decode_samples(path, 1, "-vn")[:, 0]
    _, waveform = hear(path, **OWN)
    at = 0
    heard = np.zeros(waveform.shape[1], bool)
    for frame in frames:
        num_samples = frame["nb_samples"]
        first = round(float(frame["pts_time"]) * 48_000)
        shifts = [
            shift for shift in range(-50, 51) if 0 <= first + shift <= len(heard) - num_samples
        ]  # containers round
        errors = [
            np.abs(waveform[0, first + s : first + s + num_samples] - decoded[at : at + num_samples]).max()
            for s in shifts
        ]
        best = int(np.argmin(errors))
        assert errors[best] < TOLERANCE
        heard[first + shifts[best] : first + shifts[best] + num_samples] = True
        at += num_samples
    assert at == len(decoded)
    assert 5000 < np.count_nonzero(~heard) < 10_000  # 155 ms
    assert not waveform[0, ~heard].any()


# The clock


@CLOCKS
def test_clock_follows_timestamps(pieces: list[Piece], expected: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(hear_sounds(sounds(pieces))[1], np.concatenate(expected))


def test_late_start(tmp_path: Path) -> None:
    extractor, waveform = hear(write_sound(tmp_path / "a.mkv", [(0.7, FIRST)]))
    assert extractor.facts["start_seconds"] == 0.7
    np.testing.assert_array_equal(waveform, FIRST)


def test_gap_in_a_file(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.mkv", [(0, FIRST), (1.5, SECOND)])
    np.testing.assert_array_equal(hear(path)[1], np.concatenate([FIRST, np.zeros(8000, np.float32), SECOND]))


@pytest.mark.parametrize("start_seconds", [0.0, 0.7])
def test_clock_is_that_of_mel(start_seconds: float, tmp_path: Path) -> None:
    """A click is in the middle of the row of mel that is centered on its time."""
    samples = np.zeros(RATE, np.float32)
    samples[8000] = 1
    path = write_sound(tmp_path / "a.mkv", [(start_seconds, samples)])
    mel = MelExtractor("mel")
    mel.begin(WITH_SOUND)
    with open_media(str(path)) as media:
        rows = [rows for sound in media.sounds() for rows in mel.add_sound(sound).values()]
    loudest = int(np.concatenate([*rows, *mel.finish().values()]).max(axis=1).argmax())
    extractor, waveform = hear(path)
    click = extractor.facts["start_seconds"] + int(waveform.argmax()) / RATE
    assert click == mel.facts["start_seconds"] + loudest * mel.facts["row_seconds"] == start_seconds + 0.5


@WRONG_CLOCKS
def test_a_wrong_clock_is_the_reason_of_absence(pieces: list[Piece], reason: str) -> None:
    extractor = WaveformExtractor("waveform")
    assert extractor.begin(WITH_SOUND) is None
    for sound in sounds(pieces):
        extractor.add_sound(sound)
    extractor.finish()
    assert extractor.absent is not None
    assert reason in extractor.absent


def test_rate_and_channels_change_midway(tmp_path: Path) -> None:
    extractor, waveform = hear(write_joined(tmp_path), **OWN)
    rate = extractor.facts["sample_rate"]
    assert rate in (44_100, 48_000)  # libavcodec gives the first part the rate that libavformat found later
    assert extractor.facts["num_channels"] == 2
    assert waveform.shape[1] == pytest.approx(4 * rate, abs=5000)
    for second in (1, 3):  # stereo at 44.1 kHz, then mono at 48 kHz
        heard = waveform[:, second * rate :][:, : rate // 2]
        np.testing.assert_allclose(heard[0], heard[1], atol=0.001)  # MP2 is lossy
        assert np.abs(np.fft.rfft(heard[0])).argmax() == 220  # of 0.5 s: 440 Hz


# The rest


def test_memory_is_bounded() -> None:
    """Rows leave on the way, some seconds of them at a time. Those of a long gap leave with the sound after it."""
    extractor = WaveformExtractor("waveform")
    extractor.begin(WITH_SOUND)
    pieces = [(0, noise(120 * RATE)), (700, noise(20 * RATE))]
    sizes = [len(block) for sound in sounds(pieces) for block in extractor.add_sound(sound).values()]
    (last,) = extractor.finish().values()
    assert sizes.count(16) > 25
    assert max(sizes) <= 256
    assert len(last) < 32
    assert sum(sizes) + len(last) == -(-720 * RATE // BLOCK_SAMPLES)


@pytest.mark.parametrize("gap_seconds", [599.0, 12.3])
def test_a_long_gap_before_the_last_sound(gap_seconds: float) -> None:
    """The rows that wait at the end are all there."""
    _, waveform = hear_sounds(sounds([(0, FIRST), (1 + gap_seconds, SECOND[:100])]), dtype="int16")
    codes = [np.rint(samples * 32768) for samples in (FIRST, np.zeros(round(gap_seconds * RATE)), SECOND[:100])]
    np.testing.assert_array_equal(waveform, np.concatenate(codes))


def test_no_audio_track() -> None:
    silent = VideoInfo("h264", 64, 48, has_sound=False)
    assert WaveformExtractor("waveform").begin(silent) == "no audio track"


@pytest.mark.parametrize(
    ("pieces", "options"),
    [
        pytest.param([], {}, id="no packets"),
        pytest.param([(0, FIRST)], {"rate": 100}, id="a rate of 100 Hz"),
        pytest.param([(0, np.stack([FIRST, SECOND], axis=1))], {"layout": "FL+BC"}, id="channels that cannot be mixed"),
    ],
)
def test_track_without_samples(pieces: list[Piece], options: dict[str, Any], tmp_path: Path) -> None:
    extractor = WaveformExtractor("waveform")
    extractor.begin(WITH_SOUND)
    with open_media(str(write_sound(tmp_path / "a.mov", pieces, **options))) as media:
        assert not any(extractor.add_sound(sound) for sound in media.sounds())
    assert not extractor.finish()
    assert extractor.absent is not None
    assert extractor.absent.startswith("the audio track holds no samples")
    assert not extractor.facts


def test_channels_that_cannot_be_mixed_can_be_kept(tmp_path: Path) -> None:
    samples = np.stack([FIRST, SECOND], axis=1)
    path = write_sound(tmp_path / "a.mov", [(0, samples)], layout="FL+BC")
    np.testing.assert_array_equal(hear(path, **OWN)[1], samples.T)


@pytest.mark.slow
def test_every_sound_of_the_corpus_has_finite_samples(corpus: Path) -> None:
    """The sound alone is decoded. A fault of the pictures does not hide it."""
    num_heard = 0
    for path in sorted(path for path in corpus.rglob("*") if path.is_file()):
        extractor = WaveformExtractor("waveform", **OWN)
        extractor.begin(WITH_SOUND)
        try:
            with open_media(str(path)) as media:
                blocks = [rows for sound in media.sounds() for rows in extractor.add_sound(sound).values()]
        except MediaError:
            continue
        blocks.extend(extractor.finish().values())
        assert bool(blocks) == (extractor.absent is None), path
        if blocks:
            assert np.isfinite(signal_of(extractor, blocks)).all(), path
        num_heard += bool(blocks)
    assert num_heard > 100
