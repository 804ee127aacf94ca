"""The time of sound: joined recordings, lost packets, pictures that stand, and sound that features share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg
from helpers.inline import HERE
from helpers.sound import WITH_SOUND

import chordcache as cc
from chordcache.features.mel import MelExtractor
from chordcache.features.waveform import WaveformExtractor
from chordcache.media.demux import open_media
from chordcache.read.segment_of import SegmentOfFile
from chordcache.sources.media_file import MP4Source

RATE = 16000
CONFIG = "features:\n  mel: {}\n  waveform: {sample_rate: 16000}\n"


def recording(path: Path, hertz: int, seconds: float, *options: str, sound_seconds: float | None = None) -> Path:
    sound_seconds = sound_seconds or seconds
    ffmpeg(
        *("-f", "lavfi", "-i", f"testsrc2=s=96x64:r=25:d={seconds}"),
        *("-f", "lavfi", "-i", f"sine=f={hertz}:d={sound_seconds}:r=48000"),
        *(options or ("-c:v", "libx264", "-g", "12", "-bf", "2", "-c:a", "aac")),
        path,
    )
    return path


def write_list(folder: Path, rows: Sequence[str]) -> Path:
    (folder / "list.csv").write_text("\n".join(["path,start_seconds,end_seconds,start_frame,end_frame", *rows]) + "\n")
    return folder / "list.csv"


def build(folder: Path, *rows: str) -> cc.Cache:
    (folder / "sound.yaml").write_text(CONFIG)
    cc.build(
        write_list(folder, rows),
        folder / "cache",
        tiers=("npz",),
        features=("mel", "waveform"),
        config=folder / "sound.yaml",
        jobs=HERE,
    )
    return cc.open_cache(folder / "cache")


def hertz_of(samples: np.ndarray) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples))


TS = ("-c:v", "libx264", "-g", "12", "-bf", "2", "-c:a", "aac", "-f", "mpegts")
VOB = ("-c:v", "mpeg2video", "-g", "12", "-bf", "2", "-c:a", "mp2", "-f", "vob")


@pytest.mark.parametrize(("name", "options"), [("joined.ts", TS), ("joined.vob", VOB)])
@pytest.mark.parametrize("offset_seconds", [0.0, 2000.0], ids=["set back", "hours ahead"])
@pytest.mark.parametrize("sound_seconds", [1.0, 2.6])
def test_each_recording_of_a_joined_file_has_its_own_sound(
    tmp_path: Path, name: str, options: tuple[str, ...], offset_seconds: float, sound_seconds: float
) -> None:
    later = (*options[:-2], "-output_ts_offset", str(offset_seconds), *options[-2:])
    first = recording(tmp_path / "1", 500, 2, *options, sound_seconds=sound_seconds)
    parts = [first, recording(tmp_path / "2", 900, 2, *later), recording(tmp_path / "3", 1300, 1, *options)]
    (tmp_path / name).write_bytes(b"".join(part.read_bytes() for part in parts))
    cache = build(tmp_path, name)
    video = cache[0]
    times = video.pts_seconds
    np.testing.assert_allclose(np.diff(times), 0.04, atol=1e-4)
    assert video.duration_seconds == pytest.approx(5, abs=1e-3)
    for start, hertz in ((0, 500), (50, 900), (75, 900), (100, 1300)):
        samples = cache.read(video, "waveform", start, start + 25)
        assert len(samples) == RATE
        assert hertz_of(samples) == pytest.approx(hertz, abs=2)
    with MP4Source() as source:
        source.open(str(tmp_path / name))
        chunk = source.get_audio_chunk(float(times[52]), 0.5)[:, 0]
    assert np.abs(np.fft.rfft(chunk)).argmax() * 2 == pytest.approx(900, abs=4)
    assert cc.verify(tmp_path / "cache", level="deep", source=True, jobs=HERE).damage == []


def test_joined_recordings_can_be_named_by_times(tmp_path: Path) -> None:
    parts = [recording(tmp_path / "1.ts", 500, 2), recording(tmp_path / "2.ts", 900, 2)]
    (tmp_path / "joined.ts").write_bytes(b"".join(part.read_bytes() for part in parts))
    cache = build(tmp_path, "joined.ts,2,3,,", "joined.ts,,,0,50")
    pitches = {video.num_frames: hertz_of(cache.read(video, "waveform", 0, 25)) for video in cache}
    assert pitches == {25: pytest.approx(900, abs=2), 50: pytest.approx(500, abs=2)}


# Lost and repeated packets


def rewrite(source: Path, target: Path, *, lost: Collection[int] = (), twice: Collection[int] = ()) -> Path:
    """Copy packets. Some of the sound are lost, or come twice, one tick later if the muxer insists."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        streams = [new.add_stream_from_template(stream) for stream in old.streams]
        number = 0
        for packet in old.demux():
            if packet.dts is None:
                continue
            is_sound = packet.stream.type == "audio"
            number += is_sound
            if is_sound and number - 1 in lost:
                continue
            again = av.Packet(bytes(packet))
            again.time_base, again.duration = packet.time_base, packet.duration
            again.pts = again.dts = packet.pts + (target.suffix != ".mkv")
            again.stream = packet.stream = streams[packet.stream.index]
            new.mux(packet)
            if is_sound and number - 1 in twice:
                new.mux(again)
    return target


def waveform(path: Path) -> np.ndarray:
    extractor = WaveformExtractor("waveform", sample_rate=None)
    assert extractor.begin(WITH_SOUND) is None
    with open_media(str(path)) as media:
        blocks = [rows for sound in media.sounds() for rows in extractor.add_sound(sound).values()]
    blocks += extractor.finish().values()
    return np.concatenate(blocks).reshape(-1)[: extractor.facts["num_samples"]]


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("a.mp4", "aac", 96_000),
        ("a.mp4", "aac", 44_100),
        ("a.ts", "aac", 44_100),
        ("a.ts", "ac3", 48_000),
        ("a.mkv", "aac", 44_100),
        ("a.mkv", "libopus", 48_000),
        ("a.mkv", "libvorbis", 44_100),
    ],
)
@pytest.mark.parametrize(
    "fault", [{"lost": {40}}, {"lost": {40, 41}}, {"lost": {40, 42, 60}}, {"twice": {40}}], ids=str
)
def test_a_fault_of_one_packet_does_not_move_the_sound(
    tmp_path: Path, name: str, codec: str, rate: int, fault: dict[str, set[int]]
) -> None:
    tone = f"aevalsrc=0.3*sin(2*PI*(200+150*t)*t):s={rate}:d=4"
    whole = tmp_path / f"whole{Path(name).suffix}"
    ffmpeg("-f", "lavfi", "-i", "color=s=64x48:r=5:d=4", "-f", "lavfi", "-i", tone, "-bf", "0", "-c:a", codec, whole)
    expected, rewritten = waveform(whole), waveform(rewrite(whole, tmp_path / name, **fault))
    assert len(rewritten) == len(expected)
    np.testing.assert_allclose(rewritten[2 * rate : 3 * rate], expected[2 * rate : 3 * rate], atol=2e-3)
    np.testing.assert_array_equal(rewritten[: rate // 4], expected[: rate // 4])
    with MP4Source() as source:
        source.open(str(tmp_path / name))
        chunk = source.get_audio_chunk(float(start_of(tmp_path / name)), len(rewritten) / rate)[:, 0]
    np.testing.assert_allclose(chunk[rate // 2 : 3 * rate], rewritten[rate // 2 : 3 * rate], atol=1e-4)


def start_of(path: Path) -> Fraction:
    """Time of the first sound."""
    with open_media(str(path)) as media:
        sound = next(iter(media.sounds()))
        return sound.pts * sound.time_base


# Pictures that stand


def screen(path: Path) -> Path:
    """The picture stands from 5 s to 20 s."""
    shown = "select='lt(t,5)+between(t,20,25)'"
    pictures, tone = "testsrc2=s=64x48:r=30:d=30", "sine=f=500:d=30:r=16000"
    inputs = ("-f", "lavfi", "-i", pictures, "-f", "lavfi", "-i", tone)
    ffmpeg(*inputs, "-vf", shown, "-fps_mode", "vfr", "-c:v", "libx264", "-g", "30", "-c:a", "aac", path)
    return path


@pytest.mark.parametrize("is_whole", [False, True])
def test_sound_ends_with_the_segment_where_the_picture_stands(tmp_path: Path, is_whole: bool) -> None:
    screen(tmp_path / "a.mp4")
    rows = ["a.mp4,0,15,,", "a.mp4,3,18,,", "a.mp4,,,0,150", "a.mp4,0,2,,"]
    cache = build(tmp_path, *(["a.mp4,,,,"] if is_whole else rows))
    videos = list(cache)
    if is_whole:
        records = cc.read_index(write_list(tmp_path, rows))
        videos = [SegmentOfFile(cache[0], record) for record in records]
    durations = sorted(video.duration_seconds for video in videos)
    assert durations == pytest.approx([2, 15, 15, 20], abs=1e-3)
    for video in videos:
        samples = cache.read(video, "waveform", 0, video.num_frames)
        assert len(samples) == pytest.approx(video.duration_seconds * RATE, abs=1)
        assert np.abs(samples[-1600:]).max() > 0.05


def test_the_last_picture_stands_as_long_as_the_file_says(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.mp4", 500, 2)
    with av.open(str(path)) as old, av.open(str(tmp_path / "b.mp4"), "w") as new:
        streams = [new.add_stream_from_template(stream) for stream in old.streams]
        for packet in [packet for packet in old.demux() if packet.dts is not None]:
            step = packet.duration
            if packet.stream.type == "video" and packet.pts == 49 * step:
                packet.duration = 100 * step
            packet.stream = streams[packet.stream.index]
            new.mux(packet)
    cache = build(tmp_path, "b.mp4")
    assert cache[0].duration_seconds == pytest.approx(1.96 + 4, abs=0.1)


# Sound that features share


@pytest.mark.parametrize(("name", "codec"), [("a.wmv", "wmav2"), ("a.wmv", "wmav1"), ("a.mkv", "pcm_s16le")])
@pytest.mark.parametrize("channels", [1, 2])
def test_features_do_not_change_the_sound_of_each_other(tmp_path: Path, name: str, codec: str, channels: int) -> None:
    tone = ("-f", "lavfi", "-i", "sine=d=1:r=44100", "-ac", str(channels))
    ffmpeg("-f", "lavfi", "-i", "color=s=64x48:r=5:d=1", *tone, "-c:v", "mpeg4", "-c:a", codec, tmp_path / name)

    def rows(*kinds: str) -> dict[str, np.ndarray]:
        extractors = {
            "own": WaveformExtractor("own", sample_rate=None),
            "all": WaveformExtractor("all", sample_rate=None, channels="all"),
            "mel": MelExtractor("mel"),
        }
        blocks: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
        assert [extractor.begin(WITH_SOUND) for extractor in extractors.values()] == [None] * 3
        with open_media(str(tmp_path / name)) as media:
            for sound in media.sounds():
                for kind in kinds:
                    blocks[kind] += extractors[kind].add_sound(sound).values()
        for kind in kinds:
            blocks[kind] += extractors[kind].finish().values()
            assert extractors[kind].absent is None
        return {kind: np.concatenate(blocks[kind]) for kind in kinds}

    together = rows("own", "all", "mel")
    for kind, values in together.items():
        np.testing.assert_array_equal(values, rows(kind)[kind])
