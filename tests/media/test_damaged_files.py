"""Files with damage at a known place: the frames that a build keeps are those of the intact file."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg

import chordcache as cc
from chordcache.config.config import Config
from chordcache.config.frames import FramesConfig
from chordcache.errors import MediaError, UsageError
from chordcache.media.demux import open_media
from chordcache.pipeline.dry_run import dry_run
from chordcache.pipeline.findings import VerifyReport
from chordcache.pipeline.keep_damaged import frames_after
from chordcache.read.sampling.clip_request import ClipRequest
from chordcache.read.sampling.clip_samplers import (
    DenseClips,
    KeyframeSampler,
    RandomClipSampler,
    RegularClipSampler,
    RegularTimestampClips,
    UniformFrameSampler,
)
from chordcache.read.sampling.content_samplers import AdaptiveSampler, AudioPeakSampler

NUM_FRAMES, GOP = 100, 20
RAW = Config(frames=FramesConfig(codec="raw", short_side=None), features={})
_X264 = ("-c:v", "libx264", "-bf", "2", "-x264-params", f"keyint={GOP}:scenecut=0")
_X265 = ("-c:v", "libx265", "-x265-params", f"log-level=none:keyint={GOP}:bframes=3:scenecut=0")
_MPEG = ("-q:v", "4", "-bf", "2", "-g", str(GOP), "-sc_threshold", "1000000000")
FILMS = {
    "h264.mp4": _X264,
    "h264.mkv": _X264,
    "h264.ts": _X264,
    "open_gop.mp4": (*_X264[:-1], f"{_X264[-1]}:open-gop=1"),
    "hevc.mp4": _X265,
    "hevc.mkv": _X265,
    "mpeg2.ts": ("-c:v", "mpeg2video", *_MPEG),
    "mpeg2.mpg": ("-c:v", "mpeg2video", *_MPEG),
    "mpeg4.avi": ("-c:v", "mpeg4", *_MPEG),
    "theora.ogv": ("-c:v", "libtheora", "-q:v", "6", "-g", str(GOP)),
    "mjpeg.avi": ("-c:v", "mjpeg", "-q:v", "4", "-pix_fmt", "yuvj420p"),
}
LOCATED = [name for name in FILMS if not name.startswith(("hevc", "theora"))]
"""Films in which damage in one packet concerns this packet alone, and is always reported. A page of Ogg holds several
packets. HEVC's decoder may show a wrong picture in silence."""


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """One film in several codecs and containers, as ``NUM_FRAMES`` frames with a keyframe every ``GOP`` frames."""
    folder = tmp_path_factory.mktemp("films")
    noise = f"testsrc2=size=160x120:rate=25:duration={NUM_FRAMES / 25},noise=alls=12:allf=t"
    for name, options in FILMS.items():
        ffmpeg("-f", "lavfi", "-i", noise, "-pix_fmt", "yuv420p", *options, folder / name)
    return folder


def place_of(path: Path, number: int) -> tuple[int, int]:
    """Return position and size of a packet in its file [bytes]."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
    return packets[number].pos, packets[number].size


def damaged(source: Path, target: Path, number: int, num_bytes: int = 200) -> Path:
    """Copy a film, with random bytes in the middle of one of its packets."""
    data = bytearray(source.read_bytes())
    at, size = place_of(source, number)
    start = at + size // 2
    data[start : start + num_bytes] = random.Random(number).randbytes(num_bytes)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return target


def cached(folder: Path, on_damage: str | None = None, *, config: Config | None = RAW, **arguments: Any) -> Any:
    """Build a cache of ``folder/videos``, and return the summary."""
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    options = cc.BuildOptions(on_damage=on_damage)
    return cc.build(folder / "index.json", folder / "cache", config=config, jobs=1, options=options, **arguments)


def frames_of(folder: Path, name: str) -> dict[int, tuple[float, np.ndarray]]:
    """Number in the source to time and picture of each cached frame."""
    with cc.open_cache(folder / "cache") as cache:
        video = next(each for each in cache if each.path == name)
        pictures = cache.read(video)
        return {
            int(number): (float(seconds), pictures[place].copy())
            for place, (number, seconds) in enumerate(zip(video.source_frames, video.pts_seconds, strict=True))
        }


def truth_of(path: Path, folder: Path) -> dict[int, tuple[float, np.ndarray]]:
    """Return the frames of an intact film."""
    (folder / "videos").mkdir(parents=True)
    (folder / "videos" / path.name).write_bytes(path.read_bytes())
    assert cached(folder).num_failed == 0
    return frames_of(folder, path.name)


def check_same(found: dict[int, Any], truth: dict[int, Any]) -> None:
    """Check that frames with the same number are equal, and at the same time."""
    for number, (seconds, picture) in found.items():
        assert number in truth, number
        assert seconds == pytest.approx(truth[number][0], abs=0.002), number
        assert np.array_equal(picture, truth[number][1]), number


def damage_of(folder: Path, name: str) -> Any:
    with cc.open_cache(folder / "cache") as cache:
        return next(each for each in cache if each.path == name).damage


def missing_of(folder: Path, name: str) -> list[int]:
    damage = damage_of(folder, name)
    return [number for each in damage.frames if not each.is_cached for number in range(each.start, each.stop)]


@pytest.mark.parametrize("name", LOCATED)
def test_frames_outside_the_damaged_group_are_kept(films, tmp_path, name):
    """Packet 50 is in the middle of the third group of pictures."""
    truth = truth_of(films / name, tmp_path / "intact")
    damaged(films / name, tmp_path / "work/videos" / name, 50)
    assert cached(tmp_path / "work").num_failed == 1
    summary = cached(tmp_path / "work", "keep")
    assert (summary.num_done, summary.num_failed, summary.num_damaged) == (1, 0, 1)
    found = frames_of(tmp_path / "work", name)
    check_same(found, truth)
    outside = set(range(2 * GOP)) | set(range(3 * GOP, NUM_FRAMES))
    assert outside <= found.keys()
    assert len(found) < NUM_FRAMES
    missing = missing_of(tmp_path / "work", name)
    assert sorted([*missing, *found]) == list(range(NUM_FRAMES))
    assert summary.num_frames_missing == len(missing)
    assert all(each.message and each.cause == "decode" for each in damage_of(tmp_path / "work", name).frames)
    assert cc.verify(tmp_path / "work/cache", source=True).damage == []


@pytest.mark.parametrize("name", ["h264.mp4", "mpeg2.ts", "mpeg4.avi"])
def test_concealed_frames_are_kept_if_asked(films, tmp_path, name):
    truth = truth_of(films / name, tmp_path / "intact")
    damaged(films / name, tmp_path / "work/videos" / name, 50)
    cached(tmp_path / "work", "keep")
    right = frames_of(tmp_path / "work", name)
    cached(tmp_path / "work", "keep-concealed")
    every = frames_of(tmp_path / "work", name)
    assert right.keys() < every.keys()
    wrong = {number for number, (_, picture) in every.items() if not np.array_equal(picture, truth[number][1])}
    assert wrong
    concealed = damage_of(tmp_path / "work", name)
    listed = {number for each in concealed.frames if each.is_cached for number in range(each.start, each.stop)}
    assert wrong <= listed <= set(range(2 * GOP, 3 * GOP))
    assert concealed.num_concealed == len(listed)
    assert only_superseded(cc.verify(tmp_path / "work/cache", source=True))


@pytest.mark.parametrize("name", sorted(FILMS))
def test_random_damage(films, tmp_path, name):
    """Damage of many sizes at random places: a kept frame is never a wrong one, nor at a wrong time."""
    with open_media(str(films / name)) as media:
        truth = {f.number: (f.pts_seconds, f.picture.to_ndarray()) for f in media.frames()}
    data = (films / name).read_bytes()
    num_damaged = num_kept = 0
    for trial in range(6):
        chance = random.Random(f"{name} {trial}")
        broken = bytearray(data)
        at, size = chance.randrange(len(data) // 4, len(data) * 3 // 4), chance.choice([1, 64, 1500, 6000])
        broken[at : at + size] = chance.randbytes(size) if trial % 2 else bytes(size)
        path = tmp_path / f"{trial}{Path(name).suffix}"
        path.write_bytes(broken[: len(data)])
        try:
            with open_media(str(path)) as media:
                assert list(media.frames())
        except MediaError as error:
            kept = frames_after(error, str(path), "keep")
            num_damaged += 1
            with open_media(str(path)) as media:
                media.kept = kept
                found = {f.number: (f.pts_seconds, f.picture.to_ndarray()) for f in media.frames()}
            check_same(found, truth)
            num_kept += len(found)
    assert num_damaged
    assert num_kept > num_damaged * NUM_FRAMES // 4


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "h264.ts", "mpeg2.mpg", "mpeg4.avi"])
def test_truncated_file_keeps_its_leading_frames(films, tmp_path, name):
    source = films / name
    if name.endswith(".mp4"):
        source = tmp_path / name
        ffmpeg("-i", films / name, "-c", "copy", "-movflags", "+faststart", source)
    truth = truth_of(source, tmp_path / "intact")
    (tmp_path / "work/videos").mkdir(parents=True)
    at, size = place_of(source, 70)
    (tmp_path / "work/videos" / name).write_bytes(source.read_bytes()[: at + size // 2])
    summary = cached(tmp_path / "work", "keep")
    assert summary.num_done == summary.num_damaged == 1
    found = frames_of(tmp_path / "work", name)
    check_same(found, truth)
    assert found.keys() >= set(range(62))
    assert max(found) <= 70
    if name.endswith((".mp4", ".avi")):  # their headers state the number of frames
        assert sorted([*missing_of(tmp_path / "work", name), *found]) == list(range(NUM_FRAMES))
        assert damage_of(tmp_path / "work", name).frames[-1].stop_seconds is None


# The choice, and what is built again


@pytest.fixture
def work(films, tmp_path) -> Path:
    """videos/ with a good film, a damaged one, and a file that is not a video."""
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/good.mp4").write_bytes((films / "h264.mp4").read_bytes())
    (tmp_path / "videos/junk.mp4").write_bytes(b"no video" * 100)
    damaged(films / "h264.mp4", tmp_path / "videos/bad.mp4", 50)
    return tmp_path


def only_superseded(report: VerifyReport) -> bool:
    """Return whether nothing is found but artefacts of builds with another choice, for ``gc``."""
    return {each.kind for each in report.damage} == {"orphan"}


def counts(summary: cc.RunSummary) -> tuple[int, int, int]:
    return summary.num_done, summary.num_up_to_date, summary.num_failed


def test_another_choice_concerns_damaged_files_only(work):
    assert counts(cached(work)) == (1, 0, 2)
    assert counts(cached(work, "keep", config=None)) == (1, 1, 1)
    assert counts(cached(work, config=None)) == (0, 2, 1)  # the cache remembers
    assert counts(cached(work, "keep-concealed", config=None)) == (1, 1, 1)
    assert counts(cached(work, "quarantine", config=None)) == (0, 1, 2)
    with cc.open_cache(work / "cache") as cache:
        assert [video.path for video in cache] == ["good.mp4"]
    assert counts(cached(work, "quarantine", config=None)) == (0, 1, 2)
    assert only_superseded(cc.verify(work / "cache"))


def test_option_overrides_config(work):
    keeping = Config(frames=FramesConfig(codec="raw", on_damage="keep"), features={})
    assert counts(cached(work, "quarantine", config=keeping)) == (1, 0, 2)
    assert counts(cached(work, config=keeping)) == (1, 1, 1)
    assert cc.summarize(work / "cache")["damaged"]["videos"] == 1


def test_hand_written_index(work):
    """The scan finds damage before the build. A list of paths does not."""
    (work / "list.csv").write_text("path\nvideos/good.mp4\nvideos/bad.mp4\n")
    folder = work / "other"
    arguments: Any = {"config": RAW, "jobs": 1}
    assert counts(cc.build(work / "list.csv", folder, **arguments)) == (1, 0, 1)
    keep = cc.BuildOptions(on_damage="keep")
    assert dry_run(work / "list.csv", folder, config=RAW, options=keep).num_missing == 1
    assert counts(cc.build(work / "list.csv", folder, **arguments, options=keep)) == (1, 1, 0)
    assert counts(cc.build(work / "list.csv", folder, **arguments, options=keep)) == (0, 2, 0)


def test_feature_added_to_a_kept_video(work):
    config = Config(frames=FramesConfig(codec="raw"))
    cached(work, "keep", config=config, features=["frames"])
    assert counts(cached(work, "keep", config=config, features=["motion"], tiers=["npz"])) == (2, 0, 1)
    with cc.open_cache(work / "cache") as cache:
        video = next(each for each in cache if each.path == "bad.mp4")
        assert len(cache.read(video, "motion")) == video.num_frames < NUM_FRAMES
    assert cc.verify(work / "cache", source=True).damage == []


def test_unknown_choice_is_refused():
    with pytest.raises(UsageError, match="on_damage: got 'drop', expected one of quarantine, keep, keep-concealed"):
        cc.BuildOptions(on_damage="drop")


def test_file_without_a_right_frame_is_quarantined(films, tmp_path):
    """Every packet of the film is damaged."""
    (tmp_path / "videos").mkdir()
    data = bytearray((films / "h264.mp4").read_bytes())
    for number in range(NUM_FRAMES):
        at, size = place_of(films / "h264.mp4", number) if number % GOP == 0 else (0, 0)
        data[at + 5 : at + size] = bytes(max(0, size - 5))
    (tmp_path / "videos/x.mp4").write_bytes(data)
    assert counts(cached(tmp_path, "keep")) == (0, 0, 1)


# Samplers


@pytest.fixture
def gap(work) -> Any:
    """A video of two runs, with the first frame of the second one."""
    cached(work, "keep", features=["frames"])
    with cc.open_cache(work / "cache") as cache:
        video = next(each for each in cache if each.path == "bad.mp4")
        assert len(video.gaps)
        yield video


SAMPLERS = [
    RandomClipSampler(num_frames=6, stride=2),
    RandomClipSampler(num_frames=6, fps=10),
    RegularClipSampler(num_frames=6, stride=2),
    RegularClipSampler(num_frames=6, fps=10),
    KeyframeSampler(num_frames=6, stride=2),
    AudioPeakSampler(num_frames=6, stride=2),
    AdaptiveSampler(num_frames=6, stride=2),
    AdaptiveSampler(num_frames=6, fps=10),
    DenseClips(num_frames=6, stride=2, num_clips=7),
    DenseClips(num_frames=6, fps=10, num_clips=7),
    RegularTimestampClips(num_frames=6, stride=2, seconds_between_clip_starts=0.3),
    RegularTimestampClips(num_frames=6, fps=10, seconds_between_clip_starts=0.3),
]


@pytest.mark.filterwarnings("ignore:.*is not known")
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_no_clip_spans_a_gap(gap, sampler):
    """Each clip lies between two gaps, is not padded, and all long parts are drawn from."""
    parts = set()
    for index in range(200):
        request = ClipRequest(index=index, clip=index % 5, num_clips=5)
        for clip in np.atleast_2d(sampler.frame_numbers(gap, request)):
            part = np.searchsorted(gap.gaps, clip, side="right")
            assert len(set(part)) == 1
            assert len(set(clip.tolist())) == 6
            assert np.ptp(gap.source_frames[clip]) == np.ptp(clip)
            parts.add(int(part[0]))
    assert {0, len(gap.gaps)} <= parts


def test_clips_span_gaps_if_asked(gap):
    sampler = DenseClips(num_frames=6, stride=2, num_clips=50, across_gaps=True)
    clips = sampler.frame_numbers(gap, ClipRequest())
    assert any(len(set(np.searchsorted(gap.gaps, clip, side="right"))) > 1 for clip in clips)


def test_uniform_frames_span_gaps(gap):
    numbers = UniformFrameSampler(8).frame_numbers(gap, ClipRequest())
    assert numbers[0] == 0
    assert numbers[-1] == gap.num_frames - 1


def test_video_whose_parts_are_all_short(gap):
    """The longest part is padded."""
    clip = RandomClipSampler(num_frames=90, stride=1).frame_numbers(gap, ClipRequest())
    assert len(clip) == 90
    assert len(set(np.searchsorted(gap.gaps, clip, side="right"))) == 1


# Files of others


def test_broken_files_of_the_corpus(corpus):
    """Kept frames of files that were made from an intact one are frames of that one."""
    with (corpus / "facts.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["path"].startswith("broken/")]
    num_kept = 0
    for row in rows:
        try:
            with open_media(str(corpus / row["path"])) as media:
                list(media.frames())
        except MediaError as error:
            try:
                kept = frames_after(error, str(corpus / row["path"]), "keep")
            except MediaError:
                continue
            num_kept += 1
            if row["made_from"]:
                with open_media(str(corpus / row["path"])) as media:
                    media.kept = kept
                    found = {f.number: f.picture.to_ndarray() for f in media.frames()}
                with open_media(str(corpus / row["made_from"])) as media:
                    for frame in media.frames():
                        if frame.number in found:
                            assert np.array_equal(found.pop(frame.number), frame.picture.to_ndarray()), row["path"]
                assert not found, row["path"]
    assert num_kept
