"""Builds with buckets: which frames an item takes, what is refused, and what a change of the buckets makes again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes
from helpers.ffmpeg import ffmpeg, ffprobe
from helpers.inline import HERE
from helpers.processes import quarantine

import chordcache as cc
from chordcache.config.config import Config
from chordcache.config.features import FlowConfig, MelConfig, MotionConfig, PluginConfig, WaveformConfig
from chordcache.config.picture import Bucket, FramesConfig, PictureConfig
from chordcache.features.decode_pass import DecodePass
from chordcache.features.feed import decode_item
from chordcache.media.video_decoder import VideoDecoder
from chordcache.records import RunSummary

WIDE, TALL, LONG = Bucket(32, 64, 9), Bucket(64, 32, 9), Bucket(32, 64, 33)

FEATURES = {
    "flow": FlowConfig(method="dis"),
    "motion": MotionConfig(),
    "mel": MelConfig(),
    "waveform": WaveformConfig(sample_rate=None, dtype="float32"),
}

Cli = Callable[..., Any]


def config_of(*buckets: Bucket, features: Any = None, **frames: Any) -> Config:
    return Config(frames=FramesConfig(buckets=buckets or None, **frames), features=features or {})


def build(folder: Path, config: Config, **options: Any) -> RunSummary:
    """Build the videos of a folder, or its list."""
    index = folder / "videos/list.csv"
    if not index.exists():
        cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
        index = folder / "index.json"
    tiers = options.pop("tiers", ("lmdb", "npz") if config.features else ("lmdb",))
    return cc.build(index, folder / "cache", tiers=tiers, config=config, jobs=HERE, **options)


def only(folder: Path) -> cc.Video:
    (video,) = cc.open_cache(folder / "cache")
    return video


# The frames that are taken


def test_frames_after_the_last_one_are_not_decoded(
    tmp_path: Path, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_video(tmp_path / "a.mp4", size=(64, 32), num_frames=500, gop=250, options={"bf": "3"})
    num_packets = 0
    decode = VideoDecoder.decode

    def count(self: VideoDecoder, *args: Any) -> Any:
        nonlocal num_packets
        num_packets += 1
        return decode(self, *args)

    monkeypatch.setattr(VideoDecoder, "decode", count)
    decoded = decode_item(str(source), DecodePass({}, {}, PictureConfig(buckets=(WIDE, LONG)), with_content=True))
    assert decoded.source_frames.tolist() == list(range(33))
    assert num_packets < 45
    assert decoded.content is not None
    assert len(decoded.content.motion_per_second) == 2, "33 frames at 25 per second"


def test_the_rate_comes_first(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(64, 32), num_frames=50, audio=True)
    build(tmp_path, config_of(WIDE, LONG, fps=10, features=FEATURES))  # 20 of 50 frames: too few for the long one
    video = only(tmp_path)
    assert video.source_frames.tolist() == [0, 3, 5, 8, 10, 13, 15, 18, 20]
    assert video.duration_seconds == pytest.approx(0.92)  # up to frame 23, the next that the rate keeps
    waveform = cc.open_cache(tmp_path / "cache").read(video, "waveform")
    assert len(waveform) == round(0.92 * 16000)
    assert np.sqrt(np.mean(np.square(waveform[-800:]))) > 0.2, "the last frame has its sound"


TICKS = [0, 1000, 2000, 25000, 26000, 40000, 40500, 41000, 60000, 61000, 80000]


def test_a_variable_rate(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    for name in ("a.mp4", "b.mkv"):
        make_video(tmp_path / "videos" / name, size=(64, 32), num_frames=len(TICKS), pts_ticks=TICKS)
    build(tmp_path, config_of(WIDE, LONG))
    for video in cc.open_cache(tmp_path / "cache"):
        assert video.bucket == WIDE
        assert video.pts_seconds == pytest.approx(np.array(TICKS[:9]) / 25000, abs=6e-4)


def test_an_edit_list(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    source = make_video(tmp_path / "a.mp4", size=(64, 32), num_frames=60, gop=30, options={"bf": "2"})
    (tmp_path / "videos").mkdir()
    ffmpeg("-ss", "0.5", "-i", source, "-c", "copy", tmp_path / "videos/cut.mp4")
    shown = ffprobe(tmp_path / "videos/cut.mp4", "frame=pts_time", "-select_streams", "v")["frames"]
    build(tmp_path, config_of(WIDE, LONG))
    assert only(tmp_path).bucket == LONG
    assert only(tmp_path).pts_seconds == pytest.approx([float(frame["pts_time"]) for frame in shown[:33]], abs=1e-4)


def test_segments_get_their_own_buckets(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(64, 32), num_frames=100)
    rows = ["path,label,start_frame,end_frame", "a.mp4,whole,,", "a.mp4,long,20,60", "a.mp4,short,90,100"]
    (tmp_path / "videos/list.csv").write_text("\n".join([*rows, "a.mp4,tiny,3,11"]) + "\n")
    summary = build(tmp_path, config_of(WIDE, LONG, codec="raw"))
    assert (summary.num_done, summary.num_failed) == (3, 1)
    cache = cc.open_cache(tmp_path / "cache")
    videos = {video.label: video for video in cache}
    taken = {label: (v.source_frames[0], v.source_frames[-1] + 1) for label, v in videos.items()}
    assert taken == {"whole": (0, 33), "long": (20, 53), "short": (90, 99)}
    overlap = cache.read(videos["whole"], "frames", 20, 33)
    assert np.array_equal(overlap, cache.read(videos["long"], "frames", 0, 13))
    (failure,) = quarantine(tmp_path / "cache").values()
    assert failure["message"] == "got 8 frames, expected at least 9 as in the shortest of frames.buckets"


# Features


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> tuple[cc.Cache, cc.Cache]:
    """One video of 320 x 160 with sound, of which 160 x 160 in the middle are in the bucket; and all of it."""
    folder = tmp_path_factory.mktemp("pair")
    make_video(folder / "videos/a.mp4", size=(320, 160), num_frames=40, audio=True, options={"crf": "10"})
    features = {**FEATURES, "small": PluginConfig("small", "helpers.picture_shapes:Shapes", {})}
    build(folder, config_of(Bucket(64, 64, 20), codec="raw", features=features))
    os.rename(folder / "cache", folder / "bucket")
    build(folder, config_of(codec="raw", short_side=64, features=features))
    return cc.open_cache(folder / "bucket"), cc.open_cache(folder / "cache")


def test_every_picture_of_an_extractor_is_in_the_bucket(pair: tuple[cc.Cache, cc.Cache]) -> None:
    cache, _ = pair
    shapes = cache.read(cache[0], "small")
    assert shapes.shape == (20, 5, 2)
    assert np.unique(shapes, axis=0).tolist() == [[[64, 64], [64, 64], [32, 32], [32, 32], [32, 32]]]


def test_motion_is_that_of_the_part(pair: tuple[cc.Cache, cc.Cache]) -> None:
    cache, whole = pair
    for name in ("motion", "motion.covered"):
        motion = cache.read(cache[0], name)
        assert motion.shape[:3] == (20, 10, 10)
        assert np.array_equal(motion, whole.read(whole[0], name, 0, 20)[:, :, 5:15])
    assert np.any(cache.read(cache[0], "motion"))
    assert np.array_equal(cache.read(cache[0], "motion.types"), whole.read(whole[0], "motion.types", 0, 20))


def test_motion_follows_the_crop_of_a_sample(pair: tuple[cc.Cache, cc.Cache]) -> None:
    """A sample of the size of the part in the source has its vectors, one of half that size half of them."""
    pytest.importorskip("torch")
    cache, _ = pair
    motion = cache.read(cache[0], "motion").transpose(0, 3, 1, 2).astype(np.float32)
    for side in (160, 80):
        sampler = cc.RandomClipSampler(num_frames=20, stride=1)
        dataset = cc.ChordVideoDataset(
            cache, features=("frames", "motion"), crop=cc.crops.Resize((side, side)), clip_sampler=sampler
        )
        expected = motion if side == 160 else motion[:, :, 1::2, 1::2] / 2
        np.testing.assert_allclose(dataset[0]["motion"].numpy(), expected, atol=1e-3)


def test_flow_is_of_the_pictures_in_the_bucket(pair: tuple[cc.Cache, cc.Cache]) -> None:
    cv2 = pytest.importorskip("cv2")
    cache, _ = pair
    flow = cache.read(cache[0], "flow")
    assert flow.shape == (19, 64, 64, 2)
    gray = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in cache.read(cache[0], "frames")]
    again = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST).calc(gray[4], gray[5], None)
    assert np.median(np.abs(again - flow[4])) < 0.05


def test_flow_of_another_size(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(160, 48), num_frames=9)
    build(tmp_path, config_of(WIDE, features={"flow": FlowConfig(method="dis", short_side=16)}))
    assert cc.open_cache(tmp_path / "cache").read(only(tmp_path), "flow").shape == (8, 16, 32, 2)


def test_sound_is_that_of_the_seconds_of_the_frames(pair: tuple[cc.Cache, cc.Cache]) -> None:
    cache, whole = pair
    for start, stop in ((0, 20), (5, 12)):
        waveform = cache.read(cache[0], "waveform", start, stop)
        assert np.array_equal(waveform, whole.read(whole[0], "waveform", start, stop))
    mel, expected = cache.read(cache[0], "mel"), whole.read(whole[0], "mel", 0, 20)
    assert mel.shape == expected.shape
    np.testing.assert_allclose(mel[:, :-2], expected[:, :-2], atol=0.01)  # the last windows reach beyond the frames


# Too short, or damaged


def test_an_item_that_is_too_short(tmp_path: Path, make_video: Callable[..., Path], run_cli: Cli) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(64, 32), num_frames=8)
    make_video(tmp_path / "videos/b.mp4", size=(64, 32), num_frames=12)
    assert build(tmp_path, config_of(WIDE, LONG)).num_failed == 1
    (failure,) = quarantine(tmp_path / "cache").values()
    assert (failure["cause"], failure["stage"]) == ("bucket", "decode")
    assert failure["message"] == "got 8 frames, expected at least 9 as in the shortest of frames.buckets"
    shown = run_cli("info", tmp_path / "cache", "--problems").stdout
    assert "Add a bucket with fewer frames to frames.buckets" in shown
    again = build(tmp_path, config_of(WIDE, LONG))
    assert (again.num_up_to_date, again.num_failed, again.num_done) == (1, 1, 0)
    shorter = build(tmp_path, config_of(WIDE, LONG, Bucket(32, 64, 5)))
    assert (shorter.num_done, shorter.num_failed) == (2, 0), "other buckets: the item is tried again"
    assert quarantine(tmp_path / "cache") == {}
    assert {video.bucket for video in cc.open_cache(tmp_path / "cache")} == {(32, 64, 5), WIDE}


def test_an_item_that_fills_no_bucket_any_more_leaves_the_cache(
    tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(64, 32), num_frames=8)
    make_video(tmp_path / "videos/b.mp4", size=(64, 32), num_frames=12)
    for earlier in (config_of(), config_of(Bucket(32, 64, 5))):
        build(tmp_path, earlier)
        assert build(tmp_path, config_of(WIDE)).num_failed == 1
        assert [video.bucket for video in cc.open_cache(tmp_path / "cache")] == [WIDE]
        cc.collect_garbage(tmp_path / "cache")
        assert cc.verify(tmp_path / "cache", jobs=HERE).damage == []


def noise(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    y, u, v = (rng.integers(16, 235, (height // part, width // part), np.uint8) for part in (1, 2, 2))
    return y, u, v


@pytest.mark.parametrize(("frame", "is_cached"), [(4, False), (30, True)])
def test_damage_counts_where_frames_are_taken(
    tmp_path: Path, make_video: Callable[..., Path], frame: int, is_cached: bool
) -> None:
    source = make_video(tmp_path / "videos/a.mp4", size=(64, 32), num_frames=40, gop=1, planes=noise)
    packets = ffprobe(source, "packet=pos,size", "-select_streams", "v")["packets"]
    place = int(packets[frame]["pos"]) + 60
    with source.open("r+b") as file:
        file.seek(place)
        file.write(b"\x55" * (int(packets[frame]["size"]) - 80))
    assert build(tmp_path, config_of(), tiers=("lmdb",)).num_failed == 1, "the whole file is refused"
    summary = build(tmp_path, config_of(WIDE), options=cc.BuildOptions(retry_quarantined=True))
    assert summary.num_done == is_cached
    assert [failure["cause"] for failure in quarantine(tmp_path / "cache").values()] == (
        [] if is_cached else ["decode"]
    )


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi"])
def test_a_file_that_is_cut_off(tmp_path: Path, make_video: Callable[..., Path], suffix: str) -> None:
    """A missing end is found in the packets, before the first frame."""
    options = {"codec": "mpeg4", "options": {}} if suffix == "avi" else {"container_options": {}}
    source = make_video(tmp_path / f"videos/a.{suffix}", size=(64, 32), num_frames=200, **options)
    os.truncate(source, source.stat().st_size * 2 // 3)
    whole = build(tmp_path, config_of())
    cut = build(tmp_path, config_of(WIDE), options=cc.BuildOptions(retry_quarantined=True))
    assert (cut.num_done, cut.num_failed) == (whole.num_done, whole.num_failed)


def test_frames_before_the_start_are_counted(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    source = make_video(tmp_path / "a.ts", size=(96, 64), num_frames=100, options={"bf": "3", "crf": "1"})
    (tmp_path / "videos").mkdir()
    data = source.read_bytes()
    (tmp_path / "videos/late.ts").write_bytes(data[: 188 * 3] + data[188 * 150 :])
    build(tmp_path, config_of())
    num_skipped = only(tmp_path).sidecar.num_frames_skipped
    assert num_skipped > 0
    build(tmp_path, config_of(WIDE))
    assert only(tmp_path).sidecar.num_frames_skipped == num_skipped


def test_info_names_the_bucket(tmp_path: Path, make_video: Callable[..., Path], run_cli: Cli) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(100, 32), num_frames=9)
    build(tmp_path, config_of(WIDE))
    shown = run_cli("info", tmp_path / "cache", "a").stdout
    assert "[32, 64, 9], cut to 64 x 32" in shown
    facts = json.loads(run_cli("info", tmp_path / "cache", "a", "--json").stdout)
    assert (facts["bucket"], facts["display_crop"]) == ([32, 64, 9], [18.0, 0.0, 64.0, 32.0])


# Changes


def test_a_change_of_the_buckets(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(64, 32), num_frames=60, audio=True)
    for buckets in ([WIDE], [LONG], [], [TALL, WIDE], [WIDE, TALL]):
        summary = build(tmp_path, config_of(*buckets, features=FEATURES))
        is_same = buckets == [WIDE, TALL]
        assert (summary.num_done, summary.num_up_to_date) == ((0, 1) if is_same else (1, 0))
        video = only(tmp_path)
        assert video.bucket == (max(buckets, key=lambda b: (b.width, b.num_frames)) if buckets else None)
        num_frames = 60 if video.bucket is None else video.bucket[2]
        shapes = {info.feature: info.shape for info in video.sidecar.features}
        assert (shapes["frames"][0], shapes["flow"][0], shapes["motion"][0]) == (num_frames, num_frames - 1, num_frames)
        assert shapes["mel"][0] == pytest.approx(num_frames / 25 * 100, abs=4)
        assert len(video.content.motion_per_second) == -(-num_frames // 25)
        damage = cc.verify(tmp_path / "cache", level="deep", source=True, jobs=HERE).damage
        assert {finding.kind for finding in damage} <= {"orphan"}, "files of earlier buckets, which gc removes"


def test_a_feature_that_comes_later(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(64, 32), num_frames=60, audio=True)
    config = config_of(LONG, features=FEATURES)
    build(tmp_path, config, tiers=("lmdb",))
    before = processes.files_of(tmp_path / "cache")
    build(tmp_path, config, tiers=("npz",), features=("flow", "mel"))
    after = processes.files_of(tmp_path / "cache")
    assert all(after[file] == facts for file, facts in before.items() if file.endswith(".lmdb"))
    assert cc.open_cache(tmp_path / "cache").read(only(tmp_path), "flow").shape == (32, 32, 64, 2)
