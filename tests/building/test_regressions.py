"""Sequences that once lost or garbled something, each as a user would run into it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest
from conftest import make_planes
from helpers import processes
from helpers.ffmpeg import ffmpeg

import chordcache as cc
from chordcache.digests import digest_file
from chordcache.engine import pool
from chordcache.storage.sealed_json import seal, unseal

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture
def built(tmp_path, make_video) -> Path:
    """A folder with videos/, index.json and cache/."""
    for name in ("a", "b"):
        make_video(tmp_path / "videos" / f"{name}.mp4", num_frames=10, size=(96, 64))
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=1)
    return tmp_path


def test_a_folder_of_videos_is_refused_as_a_cache(tmp_path, make_video):
    make_video(tmp_path / "data" / "videos" / "a.mp4")
    index = cc.scan([tmp_path / "data" / "videos"], output=tmp_path / "index.json")
    with pytest.raises(cc.UsageError, match="is not a cache and not empty"):
        cc.build(index, tmp_path / "data")


def test_gc_leaves_what_the_catalog_names_alone(built):
    """A build with other parameters was killed before it could write the catalog."""
    catalog = (built / "cache/catalog.bin").read_bytes()
    (built / "small.yaml").write_text("frames: {short_side: 32}\n")
    cc.build(built / "index.json", built / "cache", config=built / "small.yaml", jobs=1)
    (built / "cache/catalog.bin").write_bytes(catalog)
    assert len(cc.collect_garbage(built / "cache")) == 2
    with cc.open_cache(built / "cache") as cache:
        assert [cache.read(video).shape[1] for video in cache] == [32, 32]


def test_scan_does_not_overwrite_a_file_that_it_did_not_write(built):
    (built / "index.json").write_text('{"my": "annotations"}')
    with pytest.raises(cc.UsageError, match="^output: .* would be overwritten"):
        cc.scan([built / "videos"], output=built / "index.json")
    assert (built / "index.json").read_text() == '{"my": "annotations"}'


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


def test_a_temporary_failure_is_tried_again(built):
    """A record with an error, such as that of a worker that was killed, is looked at again."""
    records = list(cc.read_index(built / "index.json"))
    text = (built / "index.json").read_text()
    assert len(records) == 2
    bad = built / "videos" / "b.mp4"
    good = bad.read_bytes()
    bad.write_bytes(b"junk")
    cc.scan([built / "videos"], output=built / "index.json")
    bad.write_bytes(good)
    status = bad.stat()
    assert cc.scan([built / "videos"], output=built / "index.json").summary.num_failed == 0
    assert status.st_size == len(good)
    assert text


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


def test_a_sample_that_is_not_a_number_does_no_harm(tmp_path, make_video):
    import av

    path = tmp_path / "videos" / "nan.mov"
    path.parent.mkdir()
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=25)
        video.width, video.height = 64, 48
        sound = container.add_stream("pcm_f32le", rate=16000, layout="mono")
        for _ in range(25):
            container.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), "rgb24")))
        container.mux(video.encode(None))
        samples = np.zeros((1, 16000), np.float32)
        samples[0, 100] = np.nan
        frame = av.AudioFrame.from_ndarray(samples, "flt", "mono")
        frame.sample_rate = 16000
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    (record,) = cc.scan([tmp_path / "videos"], level="content")
    assert record.error is None
    assert all(np.isfinite(record.content.audio_energy_per_second))


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


def test_a_track_without_a_decoder_is_not_a_bug(tmp_path, make_video):
    """The picture's is refused in words; the sound's does not keep the picture out."""
    sound = make_video(tmp_path / "videos/sound.mp4", num_frames=10, audio=True)
    picture = make_video(tmp_path / "videos/picture.mp4", num_frames=10)
    sound.write_bytes(sound.read_bytes().replace(b"mp4a", b"xxxx").replace(b"esds", b"free"))
    picture.write_bytes(picture.read_bytes().replace(b"avc1", b"xxxx"))
    records = {record.path: record for record in cc.scan([tmp_path / "videos"], jobs=1)}
    assert (records["sound.mp4"].error, records["sound.mp4"].audio) == (None, None)
    refused = records["picture.mp4"]
    assert (refused.error, refused.error_cause) == ("FFmpeg has no decoder for the video track", "no-decoder")


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


@pytest.mark.usefixtures("workers")
def test_an_artefact_that_crashes_its_reader_is_repaired(built):
    """LMDB aborts on a branch page with one key, and the digest says that it is so by right."""
    data = processes.sidecars(built / "cache")["a.mp4"]
    path = data["_artefact"]
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
        page_size = environment.stat()["psize"]
    page = bytearray(path.read_bytes())
    branches = [at for at in range(0, len(page), page_size) if page[at + 10] == 1 and page[at + 11] == 0]
    assert branches
    for at in branches:
        page[at + 12 : at + 14] = (18).to_bytes(2, "little")  # mp_lower: the header of 16 bytes and one key
    path.write_bytes(page)
    sidecar = unseal(data["_sidecar"].read_text(), "")
    for info in sidecar["features"]:
        info["file"]["digest"] = digest_file(path)
    data["_sidecar"].write_text(seal(sidecar) + "\n")
    damage = cc.verify(built / "cache", level="deep", jobs=1).damage
    assert ("damaged", str(path.relative_to(built / "cache"))) in {(finding.kind, finding.file) for finding in damage}
    assert cc.repair(built / "cache", damage, jobs=1).num_done == 1
    assert cc.verify(built / "cache", level="deep", jobs=1).damage == []


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
