"""Sequences that once lost or garbled something, each as a user would run into it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from conftest import make_planes
from helpers import processes
from helpers.ffmpeg import ffmpeg

import chordcache as cc
from chordcache.engine import pool

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture
def built(tmp_path, make_video) -> Path:
    """A folder with videos/, index.json and cache/."""
    for name in ("a", "b"):
        make_video(tmp_path / "videos" / f"{name}.mp4", num_frames=10, size=(96, 64))
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=1)
    return tmp_path


def test_gc_leaves_what_the_catalog_names_alone(built):
    """A build with other parameters was killed before it could write the catalog."""
    catalog = (built / "cache/catalog.bin").read_bytes()
    (built / "small.yaml").write_text("frames: {short_side: 32}\n")
    cc.build(built / "index.json", built / "cache", config=built / "small.yaml", jobs=1)
    (built / "cache/catalog.bin").write_bytes(catalog)
    assert len(cc.collect_garbage(built / "cache")) == 2
    with cc.open_cache(built / "cache") as cache:
        assert [cache.read(video).shape[1] for video in cache] == [32, 32]


def test_a_reader_sees_what_was_repaired(built):
    cache = cc.open_cache(built / "cache")
    video = cache[0]
    path = built / "cache" / video.feature("frames").file.name
    data = bytearray(path.read_bytes())
    record = bytes(data).rfind(b"\xff\xd8\xff")
    data[record + 300] ^= 1
    path.write_bytes(data)
    with pytest.raises(cc.DamageError, match="--repair"):
        cache.read(video)
    cc.repair(built / "cache", cc.verify(built / "cache", jobs=1).damage, jobs=1)
    assert cache.read(video).shape == (10, 64, 96, 3)


def test_labels_of_undecodable_bytes(tmp_path, make_video):
    folder = os.fsdecode(b"caf\xe9")
    make_video(tmp_path / "videos" / folder / "a.mp4")
    cc.build(cc.scan([tmp_path / "videos"], labels="dir"), tmp_path / "cache")
    with cc.open_cache(tmp_path / "cache") as cache:
        assert cache.labels() == [cache[0].label] == [folder]


def test_half_a_change_of_parameters_is_stale(built):
    (built / "small.yaml").write_text("frames: {short_side: 32}\n")
    (built / "one.csv").write_text("path\nvideos/a.mp4\n")
    index = built / "half.jsonl"
    cc.read_index(built / "index.json").write(index)
    header = built / "cache/chordcache.json"
    before = header.read_text()
    cc.build(built / "index.json", built / "cache", config=built / "small.yaml", jobs=1)
    header.write_text(before)
    report = cc.verify(built / "cache", jobs=1)
    assert {finding.kind for finding in report.damage} == {"stale", "orphan"}
    assert report.exit_code == 6


def test_a_fault_of_the_caches_disk_quarantines_no_video(built):
    """lmdb/ cannot be made, here because a file is in its place."""
    index = built / "index.json"
    (built / "new" / "videos").mkdir(parents=True)
    (built / "new" / "chordcache.json").write_bytes((built / "cache/chordcache.json").read_bytes())
    (built / "new" / "lmdb").write_text("in the way")
    with pytest.raises(cc.StorageError, match="new/lmdb"):
        cc.build(index, built / "new", jobs=1)
    (built / "new" / "lmdb").unlink()
    summary = cc.build(index, built / "new", jobs=1)
    assert (summary.num_done, summary.num_failed) == (2, 0)


def test_fps_is_a_number_however_it_is_written(built):
    for text in ("25", "25.0"):
        (built / "fps.yaml").write_text(f"frames: {{fps: {text}}}\n")
        summary = cc.build(built / "index.json", built / "cache", config=built / "fps.yaml", jobs=1)
    assert summary.num_up_to_date == 2


def test_the_dataset_opens_nothing_where_it_is_made(built):
    before = set(os.listdir("/proc/self/fd"))
    dataset = cc.ChordVideoDataset(built / "cache")
    after = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in set(os.listdir("/proc/self/fd")) - before if
             os.path.exists(f"/proc/self/fd/{fd}")}  # fmt: skip
    assert not [name for name in after.values() if name.startswith(str(built))]
    assert len(dataset) == 2


def test_a_move_with_its_cache(built, tmp_path_factory):
    """Caches and sources move together; the sidecars name no absolute path."""
    new = tmp_path_factory.mktemp("new") / "place"
    shutil.move(built / "cache", new)
    assert cc.verify(new, level="deep", jobs=1).damage == []
    assert json.loads((new / "chordcache.json").read_text())["roots"] == {"videos": str(built / "videos")}


@pytest.mark.usefixtures("workers")
def test_no_worker_is_left_after_a_build_that_fails(tmp_path, make_video):
    """They went on publishing after the lock was given back."""
    for number in range(8):
        make_video(tmp_path / f"videos/{number}.mp4", num_frames=60, size=(320, 240))
    (tmp_path / "videos/0.mp4").write_bytes((tmp_path / "videos/0.mp4").read_bytes()[:-2000])
    with pytest.raises(cc.StoppedError):
        cc.build(_list_of(tmp_path), tmp_path / "cache", jobs=2, options=cc.BuildOptions(max_failures=0))
    before = processes.files_of(tmp_path / "cache")
    time.sleep(1)
    assert processes.files_of(tmp_path / "cache") == before
    assert processes.partials(tmp_path / "cache") == []


def _list_of(folder: Path) -> Path:
    """A hand-written index, of which nothing is known before the build."""
    names = sorted(path.name for path in (folder / "videos").iterdir())
    (folder / "list.csv").write_text("path\n" + "".join(f"videos/{name}\n" for name in names))
    return folder / "list.csv"


def _other_planes(number, width, height):
    return make_planes(number + 50, width, height)


def test_a_source_that_is_replaced_while_it_waits_for_its_turn(built, make_video, monkeypatch):
    """Its old frames and its new motion would have stood under one sidecar."""
    other = make_video(built / "other.mp4", num_frames=10, size=(96, 64), planes=_other_planes)

    def run(function, tasks, **_):
        for tasks_of_file in tasks:
            shutil.copy(other, built / "videos" / tasks_of_file[0].item.path)
            yield tasks_of_file, function(tasks_of_file)

    monkeypatch.setattr(pool, "run", run)
    (built / "motion.yaml").write_text("features: {motion: {}}\n")
    options = {"config": built / "motion.yaml", "jobs": 1}
    assert cc.build(built / "index.json", built / "cache", tiers=("npz",), **options).num_failed == 2
    assert {failure["cause"] for failure in processes.quarantine(built / "cache").values()} == {"changed"}
    monkeypatch.undo()
    assert {finding.kind for finding in cc.verify(built / "cache", source=True).damage} == {"stale"}
    assert cc.build(built / "index.json", built / "cache", tiers=("lmdb", "npz"), **options).num_done == 2
    cc.collect_garbage(built / "cache")
    assert cc.verify(built / "cache", source=True).damage == []


ACTION = "Move the file in its place, and link the whole cache instead."


@pytest.mark.parametrize("level", ["quick", "default"])
def test_one_file_that_cannot_be_read_hides_no_other_finding(built, level):
    first, second = (data["_artefact"] for data in processes.sidecars(built / "cache").values())
    first.unlink()
    first.symlink_to(first.name)
    second.unlink()
    damage = cc.verify(built / "cache", level=level, jobs=1).damage
    assert {(finding.kind, finding.message) for finding in damage} == {
        ("damaged", f"'{first}': got a link, expected a file of the cache. {ACTION}"),
        ("missing", "the sidecar names it"),
    }


def test_an_avi_that_was_written_to_a_pipe_is_not_truncated(tmp_path, make_video):
    source = make_video(tmp_path / "x.mkv", num_frames=12, size=(96, 64))
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/x.avi").write_bytes(ffmpeg("-i", source, "-c:v", "mpeg4", "-f", "avi", "pipe:1"))
    (record,) = cc.scan([tmp_path / "videos"], jobs=1)
    assert (record.error, record.packets.num_frames) == (None, 12)
