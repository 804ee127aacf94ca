"""Segments of files that are cached whole: against ffmpeg, and against caches of the segments alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import yaml
from helpers.ffmpeg import decode_samples, ffmpeg
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.config import Config, config_from_json
from chordcache.errors import MediaError, NotFoundError
from chordcache.read.segment_of import SegmentOfFile

RATE = 16000
FEATURES: dict[str, Any] = {"flow": {"method": "dis", "dtype": "float32"}, "motion": {}, "mel": {}, "waveform": {}}
SPANS = {"late": (50, 75), "overlap": (63, 88), "frames": (31, 47), "rest": (90, 100), "first": (0, 5)}
"""Frames at 25 per second of each segment in ``ROWS``"""
ROWS = (
    "a.mov,late,2,3,,",
    "a.mov,overlap,2.5,3.5,,",
    "a.mov,frames,,,31,47",
    "a.mov,rest,3.6,,,",
    "a.mov,first,,,,5",
)
HEADER = "path,label,start_seconds,end_seconds,start_frame,end_frame"


def config_of(**frames: Any) -> Config:
    return config_from_json({"frames": {"codec": "raw", "short_side": None, **frames}, "features": FEATURES})


def write_list(folder: Path, rows: Sequence[str], name: str = "list.csv", header: str = HEADER) -> Path:
    path = folder / "videos" / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def build(folder: Path, index: Path, name: str, config: Config | None = None, **options: Any) -> Path:
    tiers = ("lmdb", "npz")
    cc.build(
        index, folder / name, tiers=tiers, config=config or config_of(), jobs=HERE, options=cc.BuildOptions(**options)
    )
    return folder / name


def whole_clip(folder: Path, name: str = "a.mov", *options: str) -> Path:
    """Encode moving test bars with B-frames, and a tone that rises, whose samples are exact."""
    (folder / "videos").mkdir(exist_ok=True)
    pictures = "testsrc2=size=96x64:rate=25:duration=4"
    sound = f"aevalsrc='0.4*sin(2*PI*(200+150*t)*t)':sample_rate={RATE}:duration=4"
    codec = options or ("-c:v", "libx264", "-g", "12", "-bf", "3", "-c:a", "pcm_s16le")
    inputs = ("-f", "lavfi", "-i", pictures, "-f", "lavfi", "-i", sound)
    ffmpeg(*inputs, *codec, "-pix_fmt", "yuv420p", folder / "videos" / name)
    return folder / "videos" / name


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, a list of segments of it, a cache of the file ("whole"), and one of the segments ("only")."""
    folder = tmp_path_factory.mktemp("segments")
    whole_clip(folder)
    write_list(folder, ROWS)
    build(folder, cc.scan([folder / "videos"], output=folder / "files.json", jobs=HERE).path, "whole")
    build(folder, folder / "videos" / "list.csv", "only")
    return folder


def segments(folder: Path, cache: str = "whole", rows: str = "list.csv") -> dict[str | None, cc.Video]:
    """Return the segments of a list over a file that is cached whole, by label."""
    with cc.open_cache(folder / cache) as opened:
        records = cc.read_index(folder / "videos" / rows)
        files = {video.path: video for video in opened if video.segment is None}
        return {record.label: SegmentOfFile(files[record.path], record) for record in records}


@pytest.mark.parametrize("label", SPANS)
def test_frames_and_sound_are_those_that_ffmpeg_decodes(work: Path, label: str) -> None:
    source, video, span = work / "videos" / "a.mov", segments(work)[label], range(*SPANS[label])
    with cc.open_cache(work / "whole") as cache:
        raw = ffmpeg("-i", source, "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
        shown = np.frombuffer(raw, np.uint8).reshape(-1, 64, 96, 3).astype(int)
        frames = cache.read(video).astype(int)
        assert len(frames) == video.num_frames == len(span)
        errors = [np.abs(frame - shown).mean((1, 2, 3)) for frame in frames]
        assert np.argmin(errors, axis=1).tolist() == list(span)
        assert np.array_equal(video.source_frames, np.arange(span.start, span.stop))
        assert np.allclose(video.pts_seconds, np.arange(span.start, span.stop) / 25, atol=1e-6)
        assert video.duration_seconds == pytest.approx(len(span) / 25, abs=1e-6)
        samples = decode_samples(source, 1)[:, 0]
        start, stop = span.start * RATE // 25, span.stop * RATE // 25
        np.testing.assert_array_equal(cache.read(video, "waveform"), samples[start:stop])
        power = librosa.feature.melspectrogram(y=samples, sr=RATE, n_fft=400, hop_length=160, n_mels=80)
        expected = librosa.power_to_db(power, ref=1.0, amin=1e-10, top_db=None)[:, start // 160 : stop // 160]
        mel = cache.read(video, "mel")
        assert mel.shape == expected.shape
        assert np.abs(mel - expected)[:, 3:-3].max(initial=0) < 0.1


def test_everything_is_that_of_a_cache_of_the_segments(work: Path) -> None:
    with cc.open_cache(work / "whole") as whole, cc.open_cache(work / "only") as only:
        ranged = segments(work)
        assert {video.key for video in ranged.values()} == set(only.keys())
        for video in only:
            part = ranged[video.label]
            assert (part.segment, part.num_frames) == (video.segment, video.num_frames)
            assert part.start_seconds == pytest.approx(video.start_seconds, abs=1e-9)
            assert part.duration_seconds == pytest.approx(video.duration_seconds, abs=1e-9)
            for name in ("pts_seconds", "source_frames", "keyframes"):
                assert np.array_equal(getattr(part, name), getattr(video, name)), (video.label, name)
            for name in ("frames", "flow", "waveform", "motion.types"):
                assert np.array_equal(whole.read(part, name), only.read(video, name)), (video.label, name)
            covered = only.read(video, "motion.covered")
            assert np.array_equal(whole.read(part, "motion.covered"), covered)
            chosen = [3, 1, 1]
            assert np.array_equal(whole.read(part, indices=chosen), only.read(video, indices=chosen))
            assert np.array_equal(next(whole.iter_frames(part, [2])), next(only.iter_frames(video, [2])))
            assert len(whole.read(part, "flow")) == video.num_frames - 1
            with pytest.raises(IndexError, match=f"in .0, {video.num_frames - 1}"):
                whole.read(part, "flow", indices=[video.num_frames - 1])
            with pytest.raises(IndexError):
                whole.read(part, indices=[video.num_frames])


@pytest.mark.parametrize("on_miss", ["error", "skip", "source", "build"])
def test_a_dataset_reads_segments_without_their_files(work: Path, tmp_path: Path, on_miss: str) -> None:
    """The samples are those of a cache of the segments, without a source, and with the labels of the list."""
    sampler = cc.RegularClipSampler(num_frames=5, stride=1)
    index = cc.read_index(work / "videos" / "list.csv")
    options: dict[str, Any] = {"clip_sampler": sampler, "features": ("frames", "flow", "motion")}
    moved = work / "videos" / "moved"
    os.rename(work / "videos" / "a.mov", moved)
    try:
        dataset = cc.ChordVideoDataset(cc.videos.indexed(index, work / "whole", on_miss=on_miss), **options)
        expected = cc.ChordVideoDataset(cc.videos.indexed(index, work / "only"), **options)
        assert len(dataset) == len(expected) == 5
        assert dataset.classes == expected.classes == sorted(SPANS)
        assert np.array_equal(dataset.label_ids, expected.label_ids)
        for sample, other in zip(dataset, expected, strict=True):
            assert sample["video"] == other["video"]
            for name in ("frames", "flows", "motion", "pts_seconds", "label"):
                assert np.array_equal(sample[name], other[name]), name
    finally:
        os.rename(moved, work / "videos" / "a.mov")
    assert not list((work / "whole").glob(".on_demand/*.json")), "no build was requested"


SAMPLERS = [
    cc.RandomClipSampler(num_frames=5, stride=1),
    cc.RandomClipSampler(num_frames=5, stride=7),
    cc.RegularClipSampler(num_frames=40, stride=3),
    cc.samplers.uniform(num_frames=8),
    cc.samplers.keyframe(num_frames=5, stride=1),
]


@pytest.mark.filterwarnings("ignore:.*keyframes")
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_no_clip_leaves_its_segment(work: Path, sampler: Any) -> None:
    videos = cc.videos.indexed(work / "videos" / "list.csv", work / "whole")
    dataset = cc.ChordVideoDataset(videos, clip_sampler=sampler, features=("frames", "mel"), size=None)
    reached = set()
    with cc.open_cache(work / "whole") as cache:
        frames = cache.read(0)
    for epoch in range(40):
        for position in range(len(dataset)):
            sample = dataset[epoch, position]
            numbers = np.round(np.asarray(sample["pts_seconds"]) * 25).astype(int)
            label = dataset.classes[sample["label"]]
            first, stop = SPANS[label]
            assert first <= numbers.min() <= numbers.max() < stop
            assert np.array_equal(np.moveaxis(np.asarray(sample["frames"]), -3, -1), frames[numbers])
            reached |= {(label, int(number)) for number in numbers.flat}
    if isinstance(sampler, cc.RandomClipSampler) and sampler.stride == 1:
        ends = {(label, number) for label, (first, stop) in SPANS.items() for number in (first, stop - 1)}
        assert ends <= reached, "the frames at both borders are drawn"


def test_whole_files_and_both_kinds_of_segments_in_one_dataset(work: Path, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for name in ("a.mov", "b.mov"):
        os.link(work / "videos" / "a.mov", tmp_path / "videos" / name)
    cached = write_list(tmp_path, ["a.mov,whole,,,,", "b.mov,own,1,2,,", "a.mov,both,0,1,,"], "cached.csv")
    cache = build(tmp_path, cached, "cache")
    rows = ["a.mov,whole,,,,", "a.mov,ranged,2,3,,", "b.mov,own,1,2,,", "a.mov,both,0,1,,"]
    index = write_list(tmp_path, rows)
    sampler = cc.RegularClipSampler(num_frames=25, stride=1)
    dataset = cc.ChordVideoDataset(cc.videos.indexed(index, cache), clip_sampler=sampler, size=None)
    firsts = {dataset.classes[sample["label"]]: float(sample["pts_seconds"][0]) for sample in dataset}
    assert firsts == pytest.approx({"whole": 1.48, "ranged": 2.0, "own": 1.0, "both": 0.0})
    missing = write_list(tmp_path, [*rows, "b.mov,missing,2,3,,"], "missing.csv")
    with pytest.raises(NotFoundError, match="1 of 5 videos not in"):
        cc.ChordVideoDataset(cc.videos.indexed(missing, cache))


IMPOSSIBLE = [
    ("a.mov,x,9,12,,", "segment .9.0, 12.0. s is past the end of the file of 4.000 s. Correct the list"),
    ("a.mov,x,3,2,,", "segment .3.0, 2.0. s has no frame"),
    ("a.mov,x,1,1,,", "segment .1.0, 1.0. s has no frame"),
    ("a.mov,x,,,90,200", "segment frames .90, 200. is past the end of the file of 100 frames"),
    ("a.mov,x,,,1000000000,", "segment frames .1000000000, end. is past the end"),
    ("a.mov,x,1e300,,,", "segment .1e.300, end. s is past the end of the file"),
]


@pytest.mark.parametrize("on_miss", ["error", "source"])
@pytest.mark.parametrize(("row", "message"), IMPOSSIBLE)
def test_segments_that_the_file_does_not_have(work: Path, tmp_path: Path, row: str, message: str, on_miss: str) -> None:
    index = write_list(work, [ROWS[0], row], f"{tmp_path.name}.csv")
    dataset = cc.ChordVideoDataset(cc.videos.indexed(index, work / "whole", on_miss=on_miss))
    assert dataset[0]["frames"].shape[0] == 16
    with pytest.raises(MediaError, match=f"video 'a-[0-9a-f]+': {message}") as error:
        _ = dataset[1]
    assert error.value.cause == "segment"
    index.unlink()


def test_frames_that_a_lower_rate_left_out(work: Path, tmp_path: Path) -> None:
    """Numbers and times of segments are those of the file, of whose frames the cache has some."""
    (tmp_path / "videos").mkdir()
    os.link(work / "videos" / "a.mov", tmp_path / "videos" / "a.mov")
    build(tmp_path, write_list(tmp_path, ["a.mov,,,,,"], "files.csv"), "whole", config_of(fps=10))
    write_list(tmp_path, ROWS)
    with cc.open_cache(tmp_path / "whole") as cache:
        numbers = cache[0].source_frames
    for label, video in segments(tmp_path).items():
        first, stop = SPANS[str(label)]
        assert np.array_equal(video.source_frames, numbers[(numbers >= first) & (numbers < stop)])


def test_an_item_in_a_bucket_does_not_have_all_frames(work: Path, tmp_path: Path) -> None:
    """Its source is not read in its place, since a bucket is chosen for a whole video."""
    config = config_from_json({"frames": {"codec": "raw", "buckets": [[64, 96, 9]]}})
    cache = tmp_path / "cache"
    cc.build(work / "files.json", cache, tiers=("lmdb",), config=config, jobs=HERE)
    index = work / "videos" / "list.csv"
    with pytest.raises(NotFoundError, match="5 of 5 videos not in"):
        cc.ChordVideoDataset(cc.videos.indexed(index, cache))
    with pytest.raises(cc.UsageError, match="on_miss: got 'source' for 5 of 5 videos .* frames: got buckets"):
        cc.ChordVideoDataset(cc.videos.indexed(index, cache, on_miss="source"))


def test_a_file_that_changed_is_read_from_its_source(work: Path, tmp_path: Path) -> None:
    """A segment of a whole file that was cached from another source counts as not cached."""
    source = whole_clip(tmp_path)
    files = cc.scan([tmp_path / "videos"], output=tmp_path / "files.json", jobs=HERE)
    cache = build(tmp_path, files.path, "cache")
    index = write_list(tmp_path, ROWS[:1])
    ffmpeg("-i", source, "-vf", "negate", "-c:a", "copy", tmp_path / "negated.mov")
    os.replace(tmp_path / "negated.mov", source)
    options: dict[str, Any] = {"clip_sampler": cc.RegularClipSampler(4, stride=1), "size": None}
    cached, read = (
        cc.ChordVideoDataset(cc.videos.indexed(index, cache, on_miss=on_miss), **options)[0]["frames"].int()
        for on_miss in ("error", "source")
    )
    assert float((cached + read).float().mean()) == pytest.approx(255, abs=8)


def build_rows(work: Path, folder: Path, section: dict[str, Any], columns: str, *rows: str) -> Path:
    (folder / "videos").mkdir()
    os.link(work / "videos" / "a.mov", folder / "videos" / "a.mov")
    features = {"rows": section, "flow": None, "mel": None, "motion": None}
    (folder / "rows.yaml").write_text(yaml.dump({"features": features}))
    files = write_list(folder, rows, "files.csv", columns)
    cc.build(files, folder / "cache", tiers=["lmdb", "npz"], config=folder / "rows.yaml", jobs=HERE)
    return folder / "cache"


@pytest.mark.parametrize("facts", [{}, {"frames_per_clip": 21}])
def test_rows_of_groups_are_those_that_cover_the_frames(work: Path, tmp_path: Path, facts: dict[str, int]) -> None:
    section = {
        "extractor": "helpers.row_extractors:Groups", "facts": {"frames_per_row": 4, "frames_in_first_row": 1, **facts},
    }  # fmt: skip
    cache = build_rows(work, tmp_path, section, "path", "a.mov")
    write_list(tmp_path, ROWS)
    with cc.open_cache(cache) as opened:
        all_rows = opened.read(0, "rows")
        for label, video in segments(tmp_path, "cache").items():
            first, stop = SPANS[str(label)]
            expected = all_rows[(all_rows[:, 1] >= first) & (all_rows[:, 0] < stop)]
            assert np.array_equal(opened.read(video, "rows"), expected)
            some = opened.read(video, "rows", indices=[3])
            assert some[0, 0] <= first + 3 <= some[0, 1]


def test_rows_of_a_caption_are_of_segments_with_this_caption(work: Path, tmp_path: Path) -> None:
    section = {"extractor": "helpers.row_extractors:Words"}
    cache = build_rows(work, tmp_path, section, "path,caption", "a.mov,a dog")
    write_list(tmp_path, ["a.mov,a dog,1,2", "a.mov,a cat,2,3"], "list.csv", "path,caption,start_seconds,end_seconds")
    with cc.open_cache(cache) as opened:
        same, other = (
            SegmentOfFile(opened[0], record) for record in cc.read_index(tmp_path / "videos" / "list.csv")
        )  # fmt: skip
        assert bytes(opened.read(same, "rows")).decode() == "a dog"
        with pytest.raises(cc.NotFoundError, match="made of another value of caption, label"):
            opened.read(other, "rows")
