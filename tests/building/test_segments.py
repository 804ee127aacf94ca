"""Segments of files as items: their frames, sound, keys and failures, against whole files and ffmpeg."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
from helpers.cache_contents import arrays, differing
from helpers.ffmpeg import decode_samples, ffmpeg
from helpers.inline import HERE
from helpers.processes import flip

import chordcache as cc
from chordcache.config.picture import PictureConfig
from chordcache.errors import MediaError, UsageError
from chordcache.features.feed import decode_items
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import IndexWriter
from chordcache.media.exact_frames import ExactFrames
from chordcache.media.segments import span_of
from chordcache.media.video_decoder import VideoDecoder
from chordcache.records import Segment, VideoRecord

RAW = "frames: {codec: raw, short_side: null}\nfeatures: {flow: {method: dis, dtype: float32}}\n"

CONTAINERS = {
    "h264.mp4": ["-c:v", "libx264", "-g", "12", "-bf", "3"],
    "h264.ts": ["-c:v", "libx264", "-g", "12", "-bf", "3"],
    "hevc_open_gop.mkv": ["-c:v", "libx265", "-x265-params", "keyint=12:bframes=3:open-gop=1:log-level=none"],
    "vp9.webm": ["-c:v", "libvpx-vp9", "-g", "15", "-deadline", "realtime", "-c:a", "libopus"],
    "mpeg4.avi": ["-c:v", "mpeg4", "-g", "12", "-bf", "2"],
}
"""Containers with an index, without one, and one whose frames can only be counted from the start"""


def write_clip(path: Path, *options: str, seconds: float = 4.0) -> Path:
    """Encode moving test bars and a tone that rises."""
    pictures = f"testsrc2=size=96x64:rate=25:duration={seconds}"
    sound = f"aevalsrc='0.4*sin(2*PI*(200+150*t)*t)':sample_rate=16000:duration={seconds}"
    ffmpeg("-f", "lavfi", "-i", pictures, "-f", "lavfi", "-i", sound, *options, "-pix_fmt", "yuv420p", path)
    return path


def write_list(folder: Path, rows: Sequence[str]) -> Path:
    path = folder / "list.csv"
    path.write_text("\n".join(["path,label,start_seconds,end_seconds,start_frame,end_frame", *rows]) + "\n")
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "raw.yaml"
    path.write_text(RAW)
    return path


def by_label(cache: Path) -> dict[str | None, cc.Video]:
    return {video.label: video for video in cc.Cache(cache)}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_segment_has_the_frames_of_the_file(tmp_path: Path, config: Path, name: str) -> None:
    source = (
        write_clip(tmp_path / "videos" / name, *CONTAINERS[name]) if (tmp_path / "videos").mkdir() is None else None
    )
    assert source is not None
    shown = np.frombuffer(
        ffmpeg("-i", source, "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"), np.uint8
    )
    shown = shown.reshape(-1, 64, 96, 3)
    rows = [
        f"{name},whole",
        f"{name},late,2,3",
        f"{name},overlap,2.5,3.5",
        f"{name},frames,,,31,47",
        f"{name},rest,3.6,",
    ]
    cc.build(write_list(source.parent, rows), tmp_path / "cache", tiers=("lmdb", "npz"), config=config, jobs=HERE)
    cache, segments = cc.Cache(tmp_path / "cache"), by_label(tmp_path / "cache")
    whole = segments.pop("whole")
    assert whole.num_frames == len(shown) == 100
    times = whole.pts_seconds - whole.pts_seconds[0] + 1e-4
    seconds = {"late": (2, 3), "overlap": (2.5, 3.5), "rest": (3.6, 9)}
    spans = {label: range(*np.searchsorted(times, limits)) for label, limits in seconds.items()}
    spans["frames"] = range(31, 47)
    assert {label: range(v.source_frames[0], v.source_frames[-1] + 1) for label, v in segments.items()} == spans
    for label, span in spans.items():
        video = segments[label]
        assert np.array_equal(video.source_frames, np.arange(span.start, span.stop))
        assert np.array_equal(video.pts_seconds, whole.pts_seconds[span.start : span.stop])
        frames = cache.read(video)
        assert np.array_equal(frames, cache.read(whole, start=span.start, stop=span.stop))
        errors = [np.abs(frames[i].astype(int) - shown).mean((1, 2, 3)) for i in range(len(span))]
        assert np.argmin(errors, axis=1).tolist() == list(span), f"ffmpeg shows other frames for {label}"
        assert np.array_equal(cache.read(video, "flow"), cache.read(whole, "flow", span.start, span.stop - 1)), (
            f"the flow of {label} starts at its first frame"
        )
        assert np.array_equal(video.keyframes, [k - span.start for k in whole.keyframes if k in span])


def test_the_sound_of_a_segment_is_that_of_its_time(tmp_path: Path, config: Path) -> None:
    (tmp_path / "videos").mkdir()
    source = write_clip(tmp_path / "videos" / "a.mov", "-c:v", "libx264", "-c:a", "pcm_s16le")
    cc.build(
        write_list(source.parent, ["a.mov,b,1.2,2.4"]), tmp_path / "cache", tiers=("npz",), config=config, jobs=HERE
    )
    cache = cc.Cache(tmp_path / "cache")
    facts = cache[0].feature("mel").facts
    samples = decode_samples(source, 1)[:, 0]
    start = round(facts["start_seconds"] * 16000)
    assert 1.2 * 16000 - 2048 < start <= 1.2 * 16000
    power = librosa.feature.melspectrogram(y=samples[start:], sr=16000, n_fft=400, hop_length=160, n_mels=80)
    expected = librosa.power_to_db(power, ref=1.0, amin=1e-10, top_db=None)
    first = round((1.2 - facts["start_seconds"]) / facts["row_seconds"])
    mel = cache.read(cache[0], "mel")
    assert mel.shape == (80, 120)
    assert np.abs(mel[:, :117] - expected[:, first : first + 117]).max() < 0.1


def test_bad_segments_are_quarantined_by_row_and_the_others_are_built(tmp_path: Path, config: Path) -> None:
    (tmp_path / "videos").mkdir()
    write_clip(tmp_path / "videos" / "a.mp4")
    rows = [
        "a.mp4,past,9,12",
        "a.mp4,good,1,2",
        "a.mp4,reversed,3,2",
        "a.mp4,empty,1,1",
        "a.mp4,frames,,,90,200",
        "a.mp4,rounded,3,4.03",
    ]
    summary = cc.build(write_list(tmp_path / "videos", rows), tmp_path / "cache", config=config, jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (2, 4)
    assert {label: video.num_frames for label, video in by_label(tmp_path / "cache").items()} == {
        "good": 25,
        "rounded": 25,
    }
    lines = [json.loads(line) for line in (tmp_path / "cache" / "quarantine.jsonl").read_text().splitlines()]
    messages = sorted(line["message"] for line in lines if "message" in line)
    assert messages == [
        "row 1 of the index: segment [9.0, 12.0) s is past the end of the file of 4.000 s. Correct the list.",
        "row 3 of the index: segment [3.0, 2.0) s has no frame. The file has 4.000 s. Correct the list.",
        "row 4 of the index: segment [1.0, 1.0) s has no frame. The file has 4.000 s. Correct the list.",
        "row 5 of the index: segment frames [90, 200) is past the end of the file of 100 frames. Correct the list.",
    ]
    assert {line["cause"] for line in lines if "cause" in line} == {"segment"}
    again = cc.build(tmp_path / "videos" / "list.csv", tmp_path / "cache", config=config, jobs=HERE)
    assert (again.num_up_to_date, again.num_failed) == (2, 4)


def test_one_decode_serves_all_segments_and_skips_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_clip(tmp_path / "a.mp4", "-c:v", "libx264", "-g", "10", "-bf", "0", seconds=20)
    decoded: list[int] = []
    num_packets = 0
    frame, decode = ExactFrames.frame, VideoDecoder.decode

    def count_frame(self: ExactFrames, number: int, **options: Any) -> Any:
        decoded.append(number)
        return frame(self, number, **options)

    def count_packet(self: VideoDecoder, *args: Any) -> Any:
        nonlocal num_packets
        num_packets += 1
        return decode(self, *args)

    monkeypatch.setattr(ExactFrames, "frame", count_frame)
    monkeypatch.setattr(VideoDecoder, "decode", count_packet)
    items = [
        _Item(Segment(start_frame=start, end_frame=end)) for start, end in [(405, 425), (12, 30), (20, 40), (408, 412)]
    ]
    decode_items(str(source), items)
    assert [item.numbers for item in items] == [
        list(range(405, 425)),
        list(range(12, 30)),
        list(range(20, 40)),
        [408, 409, 410, 411],
    ]
    assert decoded == [*range(12, 40), *range(405, 425)]
    assert num_packets < 80, "500 packets are in the file"


class _Item:
    """A segment that keeps the numbers of its frames."""

    picture = PictureConfig()
    needs_sound = needs_motion_vectors = False

    def __init__(self, segment: Segment) -> None:
        self.segment: Segment | None = segment
        self.numbers: list[int] = []
        self.is_finished = False

    def begin(self, media: Any) -> None:
        assert not self.numbers

    def add_frame(self, decoded: Any) -> None:
        self.numbers.append(decoded.number)

    def add_sound(self, sound: Any) -> None:
        raise AssertionError("sound was not asked for")

    def finish(self, media: Any, sounds: Any = (), end_seconds: float | None = None) -> None:
        self.is_finished = True

    def fail(self, error: MediaError) -> None:
        raise error


def test_rows_of_a_file_are_built_together_wherever_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [
        VideoRecord("v", f"{file}.mp4", segment=Segment(start_frame=start), label=str(start))
        for file in range(7)
        for start in range(5)
    ]
    for suffix in ("json", "jsonl", "csv"):
        for shuffled in (False, True):
            order = rng.permutation(len(records)) if shuffled else np.arange(len(records))
            path = tmp_path / f"index.{suffix}"
            with IndexWriter(path, roots={"v": "/data"}, level=None) as writer:
                for number in order:
                    writer.write(records[number])
            with IndexRows(cc.read_index(path)) as rows:
                groups = list(rows.by_file())
            assert [len(group) for group in groups] == [5] * 7
            assert all(len({record.path for _, record in group}) == 1 for group in groups)
            assert all(record == records[order[row - 1]] for group in groups for row, record in group)
            firsts = [group[0][0] for group in groups]
            assert firsts == sorted(firsts)


@pytest.fixture
def built(tmp_path: Path, config: Path) -> tuple[Path, Path]:
    """A list of segments, and its cache."""
    (tmp_path / "videos").mkdir()
    write_clip(tmp_path / "videos" / "a.mp4", seconds=2)
    rows = write_list(tmp_path / "videos", ["a.mp4,x,0,1", "a.mp4,y,0.5,1.5"])
    cc.build(
        rows,
        tmp_path / "cache",
        tiers=("lmdb", "npz"),
        config=config,
        jobs=HERE,
    )
    return rows, tmp_path / "cache"


def test_only_new_segments_are_built(built: tuple[Path, Path]) -> None:
    rows, cache = built
    before = {path: path.stat().st_mtime_ns for path in cache.glob("*/*/*") if path.suffix != ".json"}
    rows.write_text(rows.read_text().replace(",y,", ",renamed,") + "a.mp4,z,1,2,,\n")
    summary = cc.build(rows, cache, tiers=("lmdb", "npz"), jobs=HERE)
    assert (summary.num_done, summary.num_up_to_date) == (1, 2)
    assert set(by_label(cache)) == {"x", "renamed", "z"}
    assert before.items() <= {path: path.stat().st_mtime_ns for path in cache.glob("*/*/*")}.items()
    rows.write_text("\n".join(rows.read_text().splitlines()[:2]) + "\n")
    assert cc.build(rows, cache, options=cc.BuildOptions(prune="100%"), jobs=HERE).num_pruned == 2
    assert set(by_label(cache)) == {"x"}


def test_segments_are_verified_repaired_and_merged(built: tuple[Path, Path], tmp_path: Path) -> None:
    rows, cache = built
    assert cc.verify(cache, source=True, jobs=HERE).damage == []
    expected = arrays(cache)
    (damaged,) = [path for path in cache.glob("npz/*/*.flow.*") if by_label(cache)["y"].key in path.name]
    flip(damaged, damaged.stat().st_size // 2)
    report = cc.verify(cache, jobs=HERE)
    assert report.exit_code == 5
    cc.repair(cache, report.damage)
    assert cc.verify(cache, source=True, jobs=HERE).damage == []
    assert differing(arrays(cache), expected) == []
    (cache / "index.jsonl").write_text("damaged\n")
    cc.repair(cache, cc.verify(cache, jobs=HERE).damage)
    assert cc.build(rows, cache, tiers=("lmdb", "npz"), jobs=HERE).num_up_to_date == 2
    rows.with_name("more.csv").write_text(rows.read_text().replace(",x,0,1", ",w,0.2,0.4"))
    cc.build(
        rows.with_name("more.csv"), tmp_path / "second", tiers=("lmdb", "npz"), config=tmp_path / "raw.yaml", jobs=HERE
    )
    assert cc.merge([cache, tmp_path / "second"], tmp_path / "joined").num_inputs == 3
    assert set(by_label(tmp_path / "joined")) == {"w", "x", "y"}


@pytest.mark.parametrize(("on_miss", "features"), [("source", ("frames",)), ("build", ("frames", "flow"))])
def test_a_missing_segment_is_read_from_its_source_or_built(
    built: tuple[Path, Path], on_miss: str, features: tuple[str, ...], tmp_path: Path
) -> None:
    rows, cache = built
    rows.write_text(rows.read_text() + "a.mp4,z,1,2,,\n")
    sampler = cc.RegularClipSampler(num_frames=4, stride=1)
    options: dict[str, Any] = {"clip_sampler": sampler, "features": features}
    dataset = cc.ChordVideoDataset(cc.videos.indexed(rows, cache, on_miss=on_miss), **options)
    samples = {dataset.classes[sample["label"]]: sample for sample in (dataset[i] for i in range(len(dataset)))}
    assert set(samples) == {"x", "y", "z"}
    cc.build(rows, tmp_path / "complete", tiers=("lmdb", "npz"), config=tmp_path / "raw.yaml",
             jobs=HERE)  # fmt: skip
    complete = cc.ChordVideoDataset(cc.videos.indexed(rows, tmp_path / "complete"), **options)
    for sample in (complete[i] for i in range(len(complete))):
        other = samples[complete.classes[sample["label"]]]
        assert np.array_equal(other["frames"], sample["frames"])
        assert "flow" not in features or np.array_equal(other["flows"], sample["flows"])


def test_times_with_hours(tmp_path: Path) -> None:
    rows = ["a.mp4,x,0:01:02.5,1:02:03,,", "a.mp4,x,1:02,62.5,,"]
    segments = [record.segment for record in cc.read_index(write_list(tmp_path, rows))]
    assert segments == [Segment(start_seconds=62.5, end_seconds=3723.0), Segment(start_seconds=62.0, end_seconds=62.5)]
    with pytest.raises(UsageError, match="twice"):
        cc.read_index(write_list(tmp_path, ["a.mp4,x,1,2,,", "a.mp4,y,1,2,,"]))


def test_spans() -> None:
    pts = np.array([10.0, 10.04, 10.08, 10.5])
    span: Callable[..., range] = lambda **parts: span_of(Segment(**parts), pts, 0.04)  # noqa: E731
    assert span(start_seconds=0.0, end_seconds=0.08) == range(2)
    assert span(start_seconds=0.0401) == range(1, 4), "a time may be rounded to 1 ms"
    assert span(start_seconds=0.05) == range(2, 4)
    assert span(end_seconds=0.5) == range(3)
    assert span(end_frame=4) == range(4)
    joined = np.array([0.0, 0.04, 0.0, 0.04])
    assert span_of(Segment(start_frame=1), joined, 0.04) == range(1, 4)
    with pytest.raises(MediaError, match="the clock of the file is set back. Name frames, not times"):
        span_of(Segment(start_seconds=0.04), joined, 0.04)
    for parts in (
        {"start_seconds": 0.54},
        {"end_seconds": 0.6},
        {"start_frame": 4},
        {"end_frame": 5},
        {"start_frame": 2, "end_frame": 2},
    ):
        with pytest.raises(MediaError, match="segment"):
            span(**parts)
