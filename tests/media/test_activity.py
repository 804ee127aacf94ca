"""Content facts: the sound against ffmpeg's samples, motion against ffmpeg's gray pictures."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers import ffmpeg_reference
from helpers.ffmpeg import decode_samples, ffprobe

from chordcache.media.activity import ContentMeter
from chordcache.media.decoding import DecodedFrame, decode_frames
from chordcache.media.demux import open_media
from chordcache.records import ContentFacts

DAY_SECONDS = 86_400


def facts_of(path: Path) -> ContentFacts:
    with open_media(str(path)) as media:
        meter = ContentMeter()
        for frame in decode_frames(media, on_sound=meter.add_sound):
            meter.add_frame(frame)
    return meter.facts()


def frame_times(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [frame.time for frame in container.decode(video=0)]


# Sound


def sound_times(path: Path) -> np.ndarray:
    """[seconds] of each sample, by ffprobe's timestamps of decoded frames."""
    facts = ffprobe(path, "frame=pts_time,nb_samples:stream=sample_rate", "-select_streams", "a:0")
    rate = int(facts["streams"][0]["sample_rate"])
    return np.concatenate([float(f["pts_time"]) + np.arange(f["nb_samples"]) / rate for f in facts["frames"]])


def samples_of(path: Path, num_channels: int) -> np.ndarray:
    """All channels, by the command ffmpeg [shape=(n, C), dtype=float64, -1 to 1]."""
    return decode_samples(path, num_channels, "-map", "0:a:0").astype(float)


def check_energies(path: Path, num_channels: int) -> ContentFacts:
    squares = np.square(samples_of(path, num_channels)).mean(axis=1)
    times = sound_times(path) - frame_times(path)[0]
    assert len(times) == len(squares)
    seconds = np.floor(times).astype(int)
    energies = [np.sqrt(squares[seconds == second].mean()) for second in range(seconds.max() + 1)]
    facts = facts_of(path)
    assert len(facts.audio_energy_per_second) in (len(energies), len(energies) + 1)  # the end, to the nearest 10 ms
    assert facts.audio_energy_per_second[: len(energies) - 1] == pytest.approx(energies[:-1], rel=0.02, abs=1e-5)
    assert max(energies) > 0.003
    check_peaks(facts, squares, times)
    return facts


def check_peaks(facts: ContentFacts, squares: np.ndarray, times: np.ndarray) -> None:
    """Each peak is as loud as the loudest 10 ms of its second, wherever those are cut."""
    loudness = np.sqrt(np.convolve(squares, np.ones(99) / 99, "same"))
    threshold = 2 * np.median(facts.audio_energy_per_second)
    for second in range(len(facts.audio_energy_per_second) - 1):
        loudest = loudness[np.floor(times) == second].max(initial=0)
        peaks = [peak for peak in facts.audio_peaks_seconds if second <= peak < second + 1]
        if loudest < 0.8 * threshold:
            assert not peaks
        for peak in peaks:
            assert loudness[np.abs(times - peak - 0.005) < 0.015].max() > 0.75 * threshold


def test_energy_of_surround_sound(clips):
    facts = check_energies(clips / "animation/bigbuckbunny.mp4", 6)
    assert len(facts.audio_energy_per_second) in (5, 6)


@pytest.mark.parametrize(
    "name",
    [
        "real/human-action-recognition/fun_theory.mp4",  # its pictures start at 0.74 s, its sound at 0.02
        "real/video-llama/skateboarding_dog.mp4",  # pictures at 0.033 s, sound at 0, with a gap of 33 ms
        "odd/keyframes/missing-keyframe-labels.ts",  # both at 10.033 s
        "odd/negative_start/360p30_h264_48k_160_aac_ts-0000000028.ts",
        "real/lipnet/brbk7n.mpg",
    ],
)
def test_energy_of_corpus_clips(corpus, name):
    check_energies(corpus / name, 2)


def tone(
    seconds: float, start: float, *, sample_format: str = "fltp", layout: str = "mono", rate: int = 8000
) -> av.AudioFrame:
    """A 100 Hz tone at half of full scale, in all channels."""
    num_channels = av.AudioLayout(layout).nb_channels
    scale, offset, dtype = {
        "u8": (127, 128, np.uint8),
        "s16": (32767, 0, np.int16),
        "s32": (2**31 - 1, 0, np.int32),
        "flt": (1, 0, np.float32),
        "dbl": (1, 0, np.float64),
    }[sample_format.rstrip("p")]
    wave = 0.5 * np.sin(2 * np.pi * 100 * np.arange(round(seconds * rate)) / rate)
    samples = np.repeat((wave * scale + offset).astype(dtype)[None], num_channels, axis=0)
    if not sample_format.endswith("p"):
        samples = samples.T.reshape(1, -1)
    return with_time(av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), sample_format, layout), start, rate)


def with_time(frame: av.AudioFrame, start: float, rate: int) -> av.AudioFrame:
    frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), round(start * rate)
    return frame


def gray(number: int, seconds: float) -> DecodedFrame:
    return DecodedFrame(
        number, seconds, av.VideoFrame.from_ndarray(np.full((64, 64), 7 * number % 200, np.uint8), "gray")
    )


def meter_with(*sounds: av.AudioFrame, first_frame: float | None = 0.0) -> ContentFacts:
    meter = ContentMeter()
    for sound in sounds:
        meter.add_sound(sound)
    if first_frame is not None:
        meter.add_frame(gray(0, first_frame))
    return meter.facts()


LOUD = pytest.approx(0.5 / np.sqrt(2), rel=0.01)


@pytest.mark.parametrize("sample_format", ["u8", "u8p", "s16", "s16p", "s32", "s32p", "flt", "fltp", "dbl", "dblp"])
@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1"])
def test_sample_formats(sample_format, layout):
    facts = meter_with(*(tone(0.5, 0.5 * i, sample_format=sample_format, layout=layout) for i in range(4)))
    assert facts.audio_energy_per_second == (LOUD, LOUD)


def test_channels_that_cancel_out_are_heard():
    wave = tone(1, 0).to_ndarray()
    sound = with_time(av.AudioFrame.from_ndarray(np.concatenate([wave, -wave]), "fltp", "stereo"), 0, 8000)
    assert meter_with(sound).audio_energy_per_second == (LOUD,)


def test_sound_before_the_first_frame_is_cut_by_the_clock_of_the_video():
    sounds = [tone(0.1, 10 + 0.1 * i) for i in range(20)]  # from 10 to 12
    half = pytest.approx(0.5 / np.sqrt(2), rel=0.01)
    assert meter_with(*sounds, first_frame=10.5).audio_energy_per_second == (half, half)
    assert meter_with(*sounds, first_frame=9.5).audio_energy_per_second == (LOUD, LOUD, LOUD)
    assert meter_with(*sounds, first_frame=8).audio_energy_per_second == (0, 0, LOUD, LOUD)
    assert meter_with(*sounds, first_frame=12).audio_energy_per_second == ()
    assert meter_with(*sounds, first_frame=None).audio_energy_per_second == ()


def test_sound_that_comes_late_with_a_gap():
    facts = meter_with(tone(1, 2), tone(0.5, 5.25))
    assert facts.audio_energy_per_second == (0, 0, LOUD, 0, 0, LOUD)
    assert len(facts.audio_peaks_seconds) == 2


def test_the_loudest_10_ms():
    quiet = [
        with_time(av.AudioFrame.from_ndarray(tone(1, 0).to_ndarray() / 100, "fltp", "mono"), i, 8000) for i in range(5)
    ]
    click = with_time(av.AudioFrame.from_ndarray(np.ones((1, 80), np.float32), "fltp", "mono"), 7.42, 8000)
    assert meter_with(*quiet, click).audio_peaks_seconds == (7.42,)


def pcm(samples: np.ndarray, start: float) -> av.AudioFrame:
    """Samples of 16 bits, mono, at 8 kHz."""
    return with_time(av.AudioFrame.from_ndarray(samples.astype(np.int16)[None], "s16p", "mono"), start, 8000)


def one_bit(probability: float) -> np.ndarray:
    """A second of zeros, with ones at random places."""
    return np.random.default_rng(0).random(8000) < probability


@pytest.mark.parametrize(
    "seconds",
    [
        [np.zeros(8000)] * 5,
        [np.zeros(8000)] * 4 + [one_bit(1 / 8000)],  # the median second is 0, and everything is louder
        [np.zeros(8000)] * 3 + [one_bit(0.5)] * 2,
        [one_bit(0.001)] * 5,  # its loudest 10 ms are ten times as loud as the median second
        [np.random.default_rng(second).normal(0, 10, 8000) for second in range(5)],  # -70 dB
    ],
    ids=["digital silence", "one bit once", "dither in some seconds", "sparse dither", "noise floor"],
)
def test_silence_has_no_peaks(seconds):
    sounds = [pcm(samples, start) for start, samples in enumerate(seconds)]
    assert meter_with(*sounds).audio_peaks_seconds == ()


def test_a_quiet_sound_in_silence_is_a_peak():
    quiet = np.where(np.arange(8000) // 80 == 42, 330, 0)  # 10 ms at -40 dB
    facts = meter_with(*[pcm(np.zeros(8000), start) for start in range(4)], pcm(quiet, 4))
    assert facts.audio_peaks_seconds == (4.42,)


def test_sound_without_times_goes_on_from_the_last():
    sounds = [tone(0.5, 3)]
    for _ in range(3):
        sounds.append(tone(0.5, 0))
        sounds[-1].pts = None
    assert meter_with(*sounds, first_frame=3).audio_energy_per_second == (LOUD, LOUD)


def test_formats_that_change_on_the_way():
    facts = meter_with(
        tone(1, 0),
        tone(1, 1, sample_format="s16", layout="stereo", rate=44100),
        tone(1, 2, layout="5.1", rate=11025),
    )
    assert facts.audio_energy_per_second == (LOUD, LOUD, LOUD)


@pytest.mark.parametrize("jump", [1e6, -1e6, 1e9, -1e9, 1e13, -1e13], ids=str)
def test_sound_a_jump_away_is_not_counted(jump):
    facts = meter_with(tone(1, 0), tone(1, jump), tone(1, 1))
    assert facts.audio_energy_per_second == (LOUD, LOUD)


def test_sound_that_is_a_jump_away_from_the_pictures():
    assert meter_with(tone(1, 1e9)).audio_energy_per_second == ()
    assert meter_with(tone(1, -1e9)).audio_energy_per_second == ()


def test_sound_within_a_day_is_counted():
    facts = meter_with(tone(1, 0), tone(1, DAY_SECONDS - 2))
    assert len(facts.audio_energy_per_second) == DAY_SECONDS - 1
    assert facts.audio_energy_per_second[-1] == LOUD


def test_samples_that_are_not_numbers_are_silence():
    samples = tone(1, 0).to_ndarray()
    samples[0, :4000] = np.nan
    samples[0, 100:200] = np.inf
    samples[0, 200:300] = 3e38
    sound = with_time(av.AudioFrame.from_ndarray(samples, "fltp", "mono"), 0, 8000)
    assert meter_with(sound).audio_energy_per_second == (pytest.approx(0.25, rel=0.01),)


@pytest.mark.parametrize("rate", [1, 999, 2_000_000])
def test_rates_that_no_sound_has(rate):
    assert meter_with(tone(2, 0, rate=8000), with_time(tone(1, 5), 5, rate)).audio_energy_per_second == (LOUD, LOUD)


# Motion


def ffmpeg_differences(path: Path) -> list[float | None]:
    """Mean absolute difference of full-size luma to the frame before, by the command ffmpeg."""
    stream = ffmpeg_reference.probe(path).video
    width, height = (stream["width"], stream["height"]) if stream else (0, 0)
    differences: list[float | None] = []
    last = None
    for planes in ffmpeg_reference.Decoded(path, "v:0", (width, height), "yuvj420p"):
        luma = planes[: width * height].astype(np.int16)
        differences.append(None if last is None else float(np.abs(luma - last).mean()))
        last = luma
    return differences


def check_motion(path: Path) -> None:
    facts = facts_of(path)
    motions, times = ffmpeg_differences(path), frame_times(path)
    by_second: dict[int, list[float]] = {}
    for motion, time in zip(motions, times, strict=True):
        if motion is not None:
            by_second.setdefault(int(time - times[0] + 1e-6), []).append(motion)
    expected = [np.mean(by_second.get(second, [0.0])) for second in range(max(by_second) + 1)]
    assert facts.motion_per_second == pytest.approx(expected, rel=0.1, abs=0.01)
    assert max(expected) > 0.05
    assert sum(facts.motion_histogram) == sum(motion is not None for motion in motions)
    edges = [0, 0.5, *(2.0**i for i in range(14)), np.inf]
    histogram = np.histogram([motion for motion in motions if motion is not None], edges)[0]
    assert np.abs(np.cumsum(histogram - np.array(facts.motion_histogram))).sum() <= 0.1 * sum(histogram)


@pytest.mark.parametrize("clip", ["animation/bigbuckbunny.mp4", "people/carphone_pristine.mp4", "street/bikes.mp4"])
def test_motion(clips, clip):
    check_motion(clips / clip)


@pytest.mark.parametrize(
    "name",
    [
        "real/lipnet/brbk7n.mpg",
        "real/c3d/v_BaseballPitch_g01_c01.avi",
        "odd/start_offset",
        "real/learning-area/rabbit320.webm",
        "real/learning-area/frog.webm",
        "real/media/sample_av1.mp4",
    ],
)
def test_motion_of_corpus_clips(corpus, name):
    path = corpus / name
    check_motion(next(path.iterdir()) if path.is_dir() else path)


def one_color(pixel_format: str, value: int, size: tuple[int, int] = (64, 48)) -> av.VideoFrame:
    """Pixels of one luma, or of one gray, as the bytes of a gray picture of limited or full range."""
    width, height = size
    gray = av.VideoFrame.from_ndarray(np.full((height, width), value, np.uint8), "gray")
    return gray.reformat(format=pixel_format)


@pytest.mark.parametrize(
    "pixel_format",
    [
        "yuv420p",
        "yuvj420p",
        "yuv444p",
        "nv12",
        "gray",
        "yuv420p10le",
        "yuyv422",
        "rgb24",
        "gbrp",
        "yuva420p",
        "gray10le",
    ],
)
def test_motion_in_any_pixel_format_is_that_of_full_range(pixel_format):
    meter = ContentMeter()
    for number, value in enumerate([50, 150, 110]):
        meter.add_frame(DecodedFrame(number, number / 10, one_color(pixel_format, value)))
    assert meter.facts().motion_per_second == (pytest.approx(70, abs=1),)


@pytest.mark.parametrize("pixel_format", ["gray", "gray10le", "ya8"])
def test_motion_of_gray_in_limited_range_is_that_of_full_range(pixel_format):
    meter = ContentMeter()
    for number, value in enumerate([50, 150, 110]):
        picture = one_color(pixel_format, value)
        picture.color_range = 1
        meter.add_frame(DecodedFrame(number, number / 10, picture))
    assert meter.facts().motion_per_second == (pytest.approx(70 * 255 / 219, abs=1),)


def test_pictures_that_change_their_size_are_not_compared():
    meter = ContentMeter()
    for number, size in enumerate([(64, 48), (64, 48), (320, 90), (320, 90)]):
        meter.add_frame(DecodedFrame(number, number / 10, one_color("yuv420p", 60 * number, size)))
    assert sum(meter.facts().motion_histogram) == 2


@pytest.mark.parametrize("jump", [1e6, -1e6, 1e15, -0.5], ids=str)
def test_frames_out_of_time_are_not_counted(jump):
    meter = ContentMeter()
    for number, seconds in enumerate([5.0, 5.1, 5 + jump, 5.2]):
        meter.add_frame(gray(number, seconds))
    facts = meter.facts()
    assert facts.motion_per_second == (pytest.approx(7, abs=0.1),)
    assert sum(facts.motion_histogram) == facts.motion_histogram[4] == 2


def test_seconds_without_frames_are_still():
    meter = ContentMeter()
    for number, seconds in enumerate([0.0, 0.5, 3.25]):
        meter.add_frame(gray(number, seconds))
    assert meter.facts().motion_per_second == pytest.approx((7, 0, 0, 7), abs=0.1)


def test_videos_without_motion_or_sound():
    assert ContentMeter().facts() == ContentFacts((), (0,) * 16, (), ())
