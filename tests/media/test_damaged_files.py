"""Files with damage at a known place: the frames that a build keeps are the first ones of the intact file."""

from __future__ import annotations

import csv
import os
import random
import shutil
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg
from helpers.inline import HERE

import chordcache as cc
from chordcache.building.dry_run import dry_run
from chordcache.config.config import Config
from chordcache.config.picture import FramesConfig
from chordcache.errors import FormatVersionError, MediaError, UsageError
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.first_damage import damage_after
from chordcache.records import RunSummary
from chordcache.storage.cache_header import read_header, write_header

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
LOCATED = [name for name in FILMS if not name.startswith("hevc")]
"""Films in which damage of a packet is always reported. HEVC's decoder may show a wrong picture in silence."""

MORE_FILMS = {
    "fragmented.mp4": (*_X264, "-movflags", "frag_keyframe+empty_moov"),
    "h264.flv": _X264,
    "open_gop.ts": ("-c:v", "libx264", "-bf", "8", "-x264-params", "keyint=50:scenecut=0:open-gop=1"),
    "hevc.ts": _X265,
    "mpeg4.mp4": ("-c:v", "mpeg4", *_MPEG),
    "vp8.webm": ("-c:v", "libvpx", "-b:v", "300k", "-deadline", "realtime", "-g", str(GOP)),
    "vp9.webm": ("-c:v", "libvpx-vp9", "-b:v", "300k", "-deadline", "realtime", "-cpu-used", "8", "-g", str(GOP)),
    "msmpeg4.avi": ("-c:v", "msmpeg4", "-q:v", "4", "-g", str(GOP)),
    "flv1.flv": ("-c:v", "flv1", "-q:v", "4", "-g", str(GOP)),
    "wmv2.asf": ("-c:v", "wmv2", "-q:v", "4", "-g", str(GOP)),
    "prores.mov": ("-c:v", "prores_ks", "-profile:v", "0", "-pix_fmt", "yuv422p10le"),
}
NUM_MUTANTS = 6 * int(os.environ.get("TRIALS", "1"))
"""Damaged copies of each film. TRIALS=14 makes those of docs/development/trials.md"""


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """One film in several codecs and containers, as ``NUM_FRAMES`` frames with a keyframe every ``GOP`` frames."""
    folder = tmp_path_factory.mktemp("films")
    noise = f"testsrc2=size=160x120:rate=25:duration={NUM_FRAMES / 25},noise=alls=12:allf=t"
    for name, options in {**FILMS, **MORE_FILMS}.items():
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
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    options = cc.BuildOptions(on_damage=on_damage)
    return cc.build(folder / "index.json", folder / "cache", config=config, jobs=HERE, options=options, **arguments)


def frames_of(folder: Path, name: str) -> dict[int, tuple[float, np.ndarray]]:
    """Number in the source to time and picture of each cached frame."""
    with cc.open_cache(folder / "cache") as cache:
        video = next(video for video in cache if video.path == name)
        pictures = cache.read(video)
        return {
            int(number): (float(seconds), pictures[place].copy())
            for place, (number, seconds) in enumerate(zip(video.source_frames, video.pts_seconds, strict=True))
        }


@pytest.fixture(scope="module")
def intact(films, tmp_path_factory) -> Path:
    """Cache of the films without damage."""
    folder = tmp_path_factory.mktemp("intact")
    shutil.copytree(films, folder / "videos")
    assert cached(folder).num_failed == 0
    return folder


def check_same(frames: dict[int, Any], truth: dict[int, Any]) -> None:
    """Check that frames with the same number are equal, and at the same time."""
    for number, (seconds, picture) in frames.items():
        assert number in truth, number
        assert seconds == pytest.approx(truth[number][0], abs=0.002), number
        assert np.array_equal(picture, truth[number][1]), number


def damage_of(folder: Path, name: str) -> Any:
    with cc.open_cache(folder / "cache") as cache:
        return next(video for video in cache if video.path == name).damage


@pytest.mark.parametrize("name", LOCATED)
def test_the_frames_before_the_damaged_group_are_kept(films, intact, tmp_path, name):
    """Packet 50 is in the middle of the third group of pictures."""
    truth = frames_of(intact, name)
    damaged(films / name, tmp_path / "work/videos" / name, 50)
    assert cached(tmp_path / "work").num_failed == 1
    summary = cached(tmp_path / "work", "trim")
    assert (summary.num_done, summary.num_failed, summary.num_damaged) == (1, 0, 1)
    kept = frames_of(tmp_path / "work", name)
    check_same(kept, truth)
    assert list(kept) == list(range(len(kept)))
    assert GOP <= len(kept) < 50  # a page of Ogg may begin in the group before
    assert len(kept) <= 2 * GOP or name.startswith("mjpeg")
    damage = damage_of(tmp_path / "work", name)
    assert (damage.num_frames_kept, damage.num_frames) == (len(kept), NUM_FRAMES)
    assert summary.num_frames_missing == NUM_FRAMES - len(kept)
    assert damage.cause == "decode"
    assert damage.message
    assert damage.seconds_kept == pytest.approx(len(kept) / 25, abs=0.002)
    assert cc.verify(tmp_path / "work/cache", source=True, jobs=HERE).damage == []


@pytest.mark.parametrize("name", sorted({**FILMS, **MORE_FILMS}))
def test_random_damage(films, tmp_path, name):
    """Damage of many sizes at random places: a kept frame is never a wrong one, nor at a wrong time."""
    with open_media(str(films / name)) as media:
        truth = {f.number: (f.pts_seconds, f.picture.to_ndarray()) for f in decode_frames(media)}
    data = (films / name).read_bytes()
    num_trimmed = 0
    for trial in range(NUM_MUTANTS):
        path = tmp_path / f"{trial}{Path(name).suffix}"
        path.write_bytes(mutant(data, random.Random(f"{name} {trial}")))
        try:
            with open_media(str(path)) as media:
                assert list(decode_frames(media))
        except MediaError as error:
            try:
                damage = damage_after(error, str(path))
            except MediaError:
                continue
            with open_media(str(path)) as media:
                media.damage = damage
                kept = {f.number: (f.pts_seconds, f.picture.to_ndarray()) for f in decode_frames(media)}
            assert len(kept) == damage.num_frames_kept > 0
            check_same(kept, truth)
            num_trimmed += 1
    assert num_trimmed


def mutant(data: bytes, chance: random.Random) -> bytes:
    """Return a film with one fault: other bytes, zeros, flipped bits, bytes removed or inserted, the end cut off."""
    broken = bytearray(data)
    at, size = chance.randrange(len(data) // 4, len(data)), chance.choice([1, 64, 188, 1500, 6000])
    match chance.choice(["random", "zeros", "bits", "removed", "inserted", "cut"]):
        case "random":
            broken[at : at + size] = chance.randbytes(min(size, len(data) - at))
        case "zeros":
            broken[at : at + size] = bytes(min(size, len(data) - at))
        case "bits":
            for _ in range(chance.choice([1, 4, 16])):
                broken[chance.randrange(at, min(len(data), at + 4000))] ^= 1 << chance.randrange(8)
        case "removed":
            del broken[at : at + size]
        case "inserted":
            broken[at:at] = chance.randbytes(size)
        case "cut":
            del broken[at:]
    return bytes(broken)


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "h264.ts", "mpeg2.mpg", "mpeg4.avi"])
def test_truncated_file_keeps_its_leading_frames(films, intact, tmp_path, name):
    source = films / name
    if name.endswith(".mp4"):
        source = tmp_path / name
        ffmpeg("-i", films / name, "-c", "copy", "-movflags", "+faststart", source)
    truth = frames_of(intact, name)
    (tmp_path / "work/videos").mkdir(parents=True)
    at, size = place_of(source, 70)
    (tmp_path / "work/videos" / name).write_bytes(source.read_bytes()[: at + size // 2])
    summary = cached(tmp_path / "work", "trim")
    assert summary.num_done == summary.num_damaged == 1
    kept = frames_of(tmp_path / "work", name)
    check_same(kept, truth)
    assert list(kept) == list(range(len(kept)))
    assert 62 <= len(kept) <= 70
    if name.endswith((".mp4", ".avi")):  # their headers state the number of frames
        assert damage_of(tmp_path / "work", name).num_frames == NUM_FRAMES


def test_the_sound_of_a_trimmed_file_ends_with_its_frames(tmp_path):
    """Packets of sound come behind those of pictures in the file. Those of the last kept frames are read too."""
    tone = ("-f", "lavfi", "-i", "sine=frequency=440:sample_rate=16000:duration=8")
    film = ("-f", "lavfi", "-i", "testsrc2=size=160x120:rate=25:duration=8", *tone)
    codecs = ("-pix_fmt", "yuv420p", *_X264, "-c:a", "aac", "-shortest", "-max_interleave_delta", "0")
    (tmp_path / "videos").mkdir()
    ffmpeg(*film, *codecs, tmp_path / "whole.mkv")
    damaged(tmp_path / "whole.mkv", tmp_path / "videos/a.mkv", 150)
    config = Config(frames=FramesConfig(codec="raw", short_side=None))
    cached(tmp_path, "trim", config=config, tiers=["lmdb", "npz"])
    with cc.open_cache(tmp_path / "cache") as cache:
        (video,) = cache
        assert 130 <= video.num_frames < 150
        mel = cache.read(video, "mel", 0, video.num_frames)
        assert mel.shape[-1] == pytest.approx(video.duration_seconds * 100, abs=3)
        assert (mel.max(axis=0) > -40).all()


# The choice, and what is built again


@pytest.fixture
def work(films, tmp_path) -> Path:
    """videos/ with a good film, a damaged one, and a file that is not a video."""
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/good.mp4").write_bytes((films / "h264.mp4").read_bytes())
    (tmp_path / "videos/junk.mp4").write_bytes(b"no video" * 100)
    damaged(films / "h264.mp4", tmp_path / "videos/bad.mp4", 50)
    return tmp_path


def counts(summary: RunSummary) -> tuple[int, int, int]:
    return summary.num_done, summary.num_up_to_date, summary.num_failed


def test_another_choice_concerns_damaged_files_only(work):
    assert counts(cached(work)) == (1, 0, 2)
    assert counts(cached(work, "trim", config=None)) == (1, 1, 1)
    assert counts(cached(work, config=None)) == (0, 2, 1)  # the cache remembers
    assert counts(cached(work, "quarantine", config=None)) == (0, 1, 2)
    with cc.open_cache(work / "cache") as cache:
        assert [video.path for video in cache] == ["good.mp4"]
    assert counts(cached(work, "quarantine", config=None)) == (0, 1, 2)
    assert cc.verify(work / "cache", jobs=HERE).damage == []


def test_a_cache_of_an_earlier_choice_says_what_to_do(work):
    """Earlier versions could keep frames behind the damage too."""
    cached(work)
    write_header(work / "cache", read_header(work / "cache").replace(on_damage="keep"))
    with pytest.raises(FormatVersionError, match="got on_damage 'keep' of an earlier version.* with --on-damage trim"):
        cc.open_cache(work / "cache")


def test_option_overrides_config(work):
    keeping = Config(frames=FramesConfig(codec="raw", on_damage="trim"), features={})
    assert counts(cached(work, "quarantine", config=keeping)) == (1, 0, 2)
    assert counts(cached(work, config=keeping)) == (1, 1, 1)
    assert cc.summarize(work / "cache")["damaged"]["num_videos"] == 1


def test_hand_written_index(work):
    """The scan finds damage before the build. A list of paths does not."""
    (work / "list.csv").write_text("path\nvideos/good.mp4\nvideos/bad.mp4\n")
    folder = work / "other"
    arguments: Any = {"config": RAW, "jobs": 1}
    assert counts(cc.build(work / "list.csv", folder, **arguments)) == (1, 0, 1)
    trim = cc.BuildOptions(on_damage="trim")
    assert dry_run(work / "list.csv", folder, config=RAW, options=trim).num_missing == 1
    assert counts(cc.build(work / "list.csv", folder, **arguments, options=trim)) == (1, 1, 0)
    assert counts(cc.build(work / "list.csv", folder, **arguments, options=trim)) == (0, 2, 0)


def test_feature_added_to_a_trimmed_video(work):
    config = Config(frames=FramesConfig(codec="raw"))
    cached(work, "trim", config=config, features=["frames"])
    assert counts(cached(work, "trim", config=config, features=["motion"], tiers=["npz"])) == (2, 0, 1)
    with cc.open_cache(work / "cache") as cache:
        video = next(video for video in cache if video.path == "bad.mp4")
        assert len(cache.read(video, "motion")) == video.num_frames < NUM_FRAMES
    assert cc.verify(work / "cache", source=True, jobs=HERE).damage == []


def test_unknown_choice_is_refused():
    with pytest.raises(UsageError, match="on_damage: got 'drop', expected one of quarantine, trim"):
        cc.BuildOptions(on_damage="drop")


def test_file_without_a_right_frame_is_quarantined(films, tmp_path):
    """Every packet of the film is damaged."""
    (tmp_path / "videos").mkdir()
    data = bytearray((films / "h264.mp4").read_bytes())
    for number in range(NUM_FRAMES):
        at, size = place_of(films / "h264.mp4", number) if number % GOP == 0 else (0, 0)
        data[at + 5 : at + size] = bytes(max(0, size - 5))
    (tmp_path / "videos/x.mp4").write_bytes(data)
    assert counts(cached(tmp_path, "trim")) == (0, 0, 1)


# Files of others


def test_broken_files_of_the_corpus(corpus):
    """Kept frames of files that were made from an intact one are the first frames of that one."""
    with (corpus / "facts.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["path"].startswith("broken/")]
    num_trimmed = 0
    for row in rows:
        path = str(corpus / row["path"])
        try:
            with open_media(path) as media:
                list(decode_frames(media))
            continue
        except MediaError as error:
            try:
                damage = damage_after(error, path)
            except MediaError:
                continue
        num_trimmed += 1
        if row["made_from"]:
            with open_media(path) as media, open_media(str(corpus / row["made_from"])) as intact:
                media.damage = damage
                for kept, frame in zip(decode_frames(media), decode_frames(intact), strict=False):
                    assert np.array_equal(kept.picture.to_ndarray(), frame.picture.to_ndarray()), row["path"]
    assert num_trimmed
