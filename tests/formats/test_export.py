"""``export``: each file has the frames and features of the cache, and a second call goes on where the first stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from helpers import processes, small_disks
from pyarrow import parquet

import chordcache as cc
from chordcache.choices import EXPORT_FORMATS, EXPORT_FRAMES
from chordcache.formats.export import FORMATS, ExportSummary
from chordcache.formats.items import Items
from chordcache.formats.source_packets import SourcePackets

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

CONFIG = "frames: {short_side: 32}\nfeatures: {flow: {method: dis}, mel: {n_mels: 20}}\n"
NUM_FRAMES = (8, 13, 20)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with a cache of three videos, captions and a column of numbers."""
    work = tmp_path_factory.mktemp("export")
    rows = ["path,label,caption,score"]
    for name, num_frames in zip("abc", NUM_FRAMES, strict=True):
        make_video(work / "videos" / f"{name}.mp4", num_frames=num_frames, audio=True)
        rows.append(f"videos/{name}.mp4,letters,the letter {name},{num_frames}")
    (work / "list.csv").write_text("\n".join(rows) + "\n")
    (work / "config.yaml").write_text(CONFIG)
    cc.build(work / "list.csv", work / "cache", config=work / "config.yaml", jobs=1)
    return work


@pytest.fixture
def cache(work: Path) -> cc.Cache:
    return cc.open_cache(work / "cache")


def facts_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/facts.json"))]


def times_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def test_the_choices_of_the_command_are_those_of_the_function() -> None:
    assert tuple(FORMATS) == EXPORT_FORMATS
    assert {form for one in FORMATS.values() for form in one.frames} == set(EXPORT_FRAMES)


def test_a_folder_for_each_video(work: Path, cache: cc.Cache, tmp_path: Path) -> None:
    summary = cc.export(work / "cache", tmp_path / "out", to="folder")
    assert summary == ExportSummary(3, 3, 0, 0, 0)
    for video, facts in zip(cache, facts_of(tmp_path / "out"), strict=True):
        folder = tmp_path / "out" / video.key
        jpegs = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
        assert jpegs == cache.read_encoded(video, range(video.num_frames))
        for name in ("flow", "mel"):
            np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), cache.read(video, name))
        assert facts["caption"] == f"the letter {video.path[-5]}"
        assert facts["pts_seconds"] == video.pts_seconds.tolist()
        assert facts["extra"] == {"score": str(video.num_frames)}


@pytest.mark.parametrize(("clip", "stride", "num_clips"), [(4, 1, (2, 3, 5)), (4, 2, (1, 1, 2)), (3, 5, (0, 1, 1))])
def test_clips_follow_each_other(
    work: Path, cache: cc.Cache, tmp_path: Path, clip: int, stride: int, num_clips: tuple[int, ...]
) -> None:
    summary = cc.export(work / "cache", tmp_path / "out", to="folder", clip=clip, stride=stride)
    assert (summary.num_samples, summary.num_too_short) == (sum(num_clips), num_clips.count(0))
    facts = iter(facts_of(tmp_path / "out"))
    for video, num in zip(cache, num_clips, strict=True):
        for number in range(num):
            frames = range(number * clip * stride, (number + 1) * clip * stride, stride)
            one = next(facts)
            assert one["source_frames"] == video.source_frames[frames].tolist()
            folder = tmp_path / "out" / f"{video.key}-{number:05}"
            flow_rows = [frame for frame in frames if frame < video.num_frames - 1]
            np.testing.assert_array_equal(np.load(folder / "flow.npy"), cache.read(video, "flow", indices=flow_rows))
            mel = cache.read(video, "mel", frames.start, frames[-1] + 1)
            np.testing.assert_array_equal(np.load(folder / "mel.npy"), mel)
    assert next(facts, None) is None


@pytest.mark.parametrize("codec", ["yuv420", "raw", "mpeg4"])
def test_frames_of_another_codec_become_jpegs(work: Path, tmp_path: Path, codec: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"frames: {{short_side: 32, codec: {codec}}}\n")
    cc.build(work / "list.csv", tmp_path / "cache", config=config, jobs=1)
    cc.export(tmp_path / "cache", tmp_path / "out", to="folder", videos=["videos/a.mp4"])
    (folder,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir() and not path.name.startswith("."))
    decoded = [simplejpeg.decode_jpeg(path.read_bytes()) for path in sorted(folder.glob("*.jpg"))]
    frames = cc.open_cache(tmp_path / "cache").read(folder.name)
    assert np.abs(np.stack(decoded).astype(int) - frames).mean() < 3


def test_parquet(work: Path, cache: cc.Cache, tmp_path: Path) -> None:
    summary = cc.export(work / "cache", tmp_path / "out", to="parquet", shards=3)
    assert summary == ExportSummary(3, 3, 0, 0, 0)
    rows = [
        row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in parquet.read_table(path).to_pylist()
    ]
    for video, row in zip(cache, rows, strict=True):
        assert [frame["bytes"] for frame in row["frames"]] == cache.read_encoded(video, range(video.num_frames))
        assert (row["key"], row["label"], row["caption"]) == (video.key, "letters", video.caption)
        assert row["extra.score"] == str(video.num_frames)
        assert row["pts_seconds"] == video.pts_seconds.tolist()


@pytest.mark.parametrize(("name", "n"), [("a.mp4", 1 << 70), (os.fsdecode(b"\xe4.mp4"), 1)], ids=["number", "path"])
def test_a_value_that_parquet_cannot_hold(work: Path, tmp_path: Path, name: str, n: int) -> None:
    (tmp_path / "videos").mkdir()
    shutil.copy(work / "videos" / "a.mp4", tmp_path / "videos" / name)
    index = cc.scan([tmp_path / "videos"], output=tmp_path / "scanned.json", jobs=1)
    with index.writer(tmp_path / "index.json", columns={"n": "int"}) as writer:
        for record in index:
            writer.write(record.replace(extra={"n": n}))
    cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=1)
    with pytest.raises(cc.UsageError, match="to: got parquet for a video with a value that it cannot hold"):
        cc.export(tmp_path / "cache", tmp_path / "out", to="parquet")


def test_parquet_without_frames(work: Path, tmp_path: Path) -> None:
    cc.export(work / "cache", tmp_path / "out", to="parquet", frames="none", clip=4)
    table = parquet.read_table(tmp_path / "out" / "000000.parquet")
    assert table.num_rows == 10
    assert table.column("frames").to_pylist() == [[]] * 10


def test_what_is_left_over_is_dropped_and_said(work: Path, run_cli: Cli, tmp_path: Path) -> None:
    done = run_cli(
        "export", work / "cache", "--format", "parquet", "--clip", "4", "--shards", "4", "-o", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    assert "8 samples in 4 files; 2 samples dropped, so that all shards have the same number" in done.stdout
    assert [parquet.read_table(path).num_rows for path in sorted((tmp_path / "out").glob("*.parquet"))] == [2] * 4


def test_a_video_that_is_named_twice(work: Path, cache: cc.Cache, tmp_path: Path) -> None:
    key = cache.keys()[1]
    summary = cc.export(work / "cache", tmp_path / "out", to="parquet", frames="none", videos=[key, key])
    assert summary.num_samples == 1
    assert parquet.read_table(tmp_path / "out" / "000000.parquet").column("key").to_pylist() == [key]


def test_the_packets_of_sources_behind_links(work: Path, tmp_path: Path) -> None:
    """Links may lead out of a root if the cache was built so, and not otherwise."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.mp4").symlink_to(work / "videos" / "a.mp4")
    index = cc.scan([tmp_path / "root"], follow_symlinks=True, jobs=1)
    cc.build(index, tmp_path / "cache", jobs=1)
    with cc.open_cache(tmp_path / "cache") as cache:
        items = Items(cache, None, clip=4, stride=1, frames="mp4", roots={})
        assert items.packets is not None
        _, numbers = items.packets.mp4(items[1])
        assert numbers.tolist() == [4, 5, 6, 7]
        with pytest.raises(cc.MediaError, match="leads it out of its root"):
            SourcePackets({"root": str(tmp_path / "root")}, follow_symlinks=False).mp4(items[1])


@pytest.mark.parametrize("suffix", ["mkv", "ts", "mp4"])
def test_the_packets_of_segments(tmp_path: Path, make_video: Callable[..., Path], suffix: str) -> None:
    """A segment has the packets that a clip of the same frames has, and a whole file has all of them."""
    source = make_video(tmp_path / f"a.{suffix}", num_frames=100, gop=10, audio=True)
    rows = ["path,start_frame,end_frame", *(f"{source.name},{bounds}" for bounds in ("0,5", "40,45", "90,95", ","))]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    cc.build(tmp_path / "list.csv", tmp_path / "cache", jobs=1)
    with cc.open_cache(tmp_path / "cache") as cache:
        items, clips = (Items(cache, None, clip=n, stride=1, frames="mp4", roots={}) for n in (None, 5))
        assert items.packets is not None
        copies = {
            (item.video.segment is None, item.video.source_frames[item.frames][0].item()): items.packets.mp4(item)
            for item in (*(items[n] for n in range(len(items))), *(clips[n] for n in range(len(clips))))
            if item.video.segment is not None or len(item.frames) == 5
        }
        whole = next(item for item in map(items.__getitem__, range(4)) if item.video.segment is None)
        num_bytes = len(items.packets.mp4(whole)[0])
        for start in (0, 40, 90):
            of_segment, of_clip = copies[False, start], copies[True, start]
            assert of_segment[0] == of_clip[0]
            assert of_segment[1].tolist() == of_clip[1].tolist()
            assert len(of_segment[0]) < num_bytes / 3


def test_a_second_call_writes_what_is_missing(work: Path, tmp_path: Path) -> None:
    whole = cc.export(work / "cache", tmp_path / "out", to="parquet", clip=4, shards=5)
    before = times_of(tmp_path / "out")
    (tmp_path / "out" / "000003.parquet").unlink()
    again = cc.export(work / "cache", tmp_path / "out", to="parquet", clip=4, shards=5)
    assert again == whole._replace(num_up_to_date=4)
    after = times_of(tmp_path / "out")
    assert {name for name in before if before[name] != after[name]} == {"000003.parquet"}


@pytest.mark.parametrize(
    "other", [{"clip": 5}, {"stride": 2}, {"shards": 2}, {"videos": ["videos/a.mp4"]}, {"frames": "none"}], ids=str
)
def test_the_output_of_other_options(work: Path, tmp_path: Path, other: dict[str, Any]) -> None:
    cc.export(work / "cache", tmp_path / "out", to="parquet", clip=4)
    before = times_of(tmp_path / "out")
    with pytest.raises(cc.UsageError, match="which holds something else"):
        cc.export(work / "cache", tmp_path / "out", **{"to": "parquet", "clip": 4, **other})
    assert times_of(tmp_path / "out") == before


def test_a_folder_with_other_files(work: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(cc.UsageError, match="which holds something else, expected a new folder"):
        cc.export(work / "cache", tmp_path / "out", to="folder")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_a_killed_export_goes_on(work: Path, cache: cc.Cache, tmp_path: Path) -> None:
    args = ["export", str(work / "cache"), "--format", "folder", "--clip", "1", "-o", str(tmp_path / "out")]
    with processes.running(tmp_path, *args) as run:
        assert processes.wait_until(lambda: len(list((tmp_path / "out").glob("*-*"))) > 3, 60), run.stderr
        run.process.kill()
        run.wait()
    num_before = len(list((tmp_path / "out").glob("*-*")))
    summary = cc.export(work / "cache", tmp_path / "out", to="folder", clip=1)
    assert summary == ExportSummary(sum(NUM_FRAMES), sum(NUM_FRAMES), num_before, 0, 0)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")) == [".lock"]
    for facts in facts_of(tmp_path / "out"):
        (number,) = facts["source_frames"]
        jpeg = (tmp_path / "out" / f"{facts['key']}-{number:05}" / "00000.jpg").read_bytes()
        assert [jpeg] == cache.read_encoded(facts["key"], [number])


@pytest.mark.parametrize(
    ("to", "package"), [("webdataset", "webdataset"), ("parquet", "pyarrow"), ("ltx", "safetensors")]
)
def test_a_missing_package_leaves_nothing(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(cc.UsageError, match=rf"got {to}, which needs {package}. Run: pip install"):
        cc.export(work / "cache", tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


def test_a_full_disk(work: Path, cache: cc.Cache, tmp_path: Path) -> None:
    """No shard is there that is not whole, and with more room the same call goes on."""
    with small_disks.tmpfs(tmp_path / "disk", "3m", may_be_open=True) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes((3 << 20) - 60_000))
        with pytest.raises(cc.StorageError, match="make room"):
            cc.export(work / "cache", disk / "out", to="parquet", shards=3)
        shards = list((disk / "out").glob("*.parquet"))
        assert sum(parquet.read_table(path).num_rows for path in shards) == len(shards) < 3
        filler.unlink()
        assert cc.export(work / "cache", disk / "out", to="parquet", shards=3).num_up_to_date == len(shards)
        rows = [
            row for path in sorted((disk / "out").glob("*.parquet")) for row in parquet.read_table(path).to_pylist()
        ]
    assert [row["key"] for row in rows] == cache.keys()


def test_a_damaged_frame_ends_the_export(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "cache", tmp_path / "cache")
    (path,) = (tmp_path / "cache" / "lmdb").glob("*/b-*.lmdb")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    with pytest.raises(cc.DamageError, match="verify --repair"):
        cc.export(tmp_path / "cache", tmp_path / "out", to="parquet", shards=3)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == ["000000.parquet"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "tfrecord"}, "to: got 'tfrecord', expected one of webdataset, parquet"),
        ({"to": "folder", "clip": 0}, "clip: got 0, expected an integer of at least 1"),
        ({"to": "folder", "clip": 4, "stride": 0}, "stride: got 0"),
        ({"to": "parquet", "shards": 4}, "shards: got 4, expected at most the number of samples, 3"),
        ({"to": "folder", "frames": "mp4"}, "frames: got 'mp4', expected jpg or none for the format folder"),
        ({"to": "folder", "clip": 100}, "clip: got 100, expected at most 20 frames"),
        ({"to": "folder", "stride": 2}, "stride: got 2 without a clip"),
        ({"to": "folder", "shards": 2}, "shards: got 2, expected 1 for the format folder"),
        ({"to": "folder", "roots": {"wrok": "."}}, "roots: got 'wrok', expected one of "),
    ],
    ids=str,
)
def test_arguments(work: Path, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(cc.UsageError) as caught:
        cc.export(work / "cache", tmp_path / "out", **arguments)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
