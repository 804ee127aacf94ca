"""Videos that are not cached: read from their sources, and built in the background by a child of each reader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import processes
from helpers.inline import HERE
from helpers.training import assert_same
from torch.utils.data import DataLoader

from chordcache.building.build import build
from chordcache.config.config import config_from_json
from chordcache.digests import digest_file
from chordcache.errors import LockedError, MediaError, NotFoundError, StorageError, UsageError
from chordcache.index.index_files import read_index
from chordcache.index.scan import scan
from chordcache.read.cache import Cache
from chordcache.storage.artefacts.open_files import forget
from chordcache.storage.cache_header import read_header
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.loader import make_loader
from chordcache.train.samplers.clip_samplers import KeyframeSampler, RegularClipSampler
from chordcache.train.samplers.content_samplers import AdaptiveSampler
from chordcache.train.samplers.distributed import ChordSampler
from chordcache.train.videos import indexed
from chordcache.verifying.repair import collect_garbage
from chordcache.verifying.verify import verify

CLIP = RegularClipSampler(num_frames=4, stride=3)

BUILD_SECONDS = 60
"""Longest time until a background build is over. It takes two, on an idle machine"""

VIDEOS = {
    "jump/b-frames.mp4": {"num_frames": 40, "size": (96, 64), "options": {"bf": "2"}},
    "jump/turned.mp4": {"num_frames": 30, "size": (96, 64), "rotation": 90, "audio": True},
    "run/scaled.mkv": {"num_frames": 25, "size": (640, 480), "fps": 30},
    "run/counted.avi": {"num_frames": 20, "size": (80, 64), "codec": "mpeg4"},
}
"""In the order in which ``scan`` lists them; the last has no presentation times"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("on_miss")
    for path, spec in VIDEOS.items():
        make_video(folder / "videos" / path, **spec)
    scan([folder / "videos"], output=folder / "index.jsonl", labels="dir", jobs=HERE)
    return folder


@pytest.fixture(scope="module")
def sparse(sources: Path) -> Path:
    return empty_cache(sources, "sparse", tiers=["lmdb", "npz"])


@pytest.fixture(scope="module")
def whole(sources: Path) -> Path:
    """The same cache with all videos, from an ordinary build."""
    summary = build(sources / "index.jsonl", sources / "whole", tiers=["lmdb", "npz"], jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (4, 0)
    return sources / "whole"


@pytest.fixture(scope="module")
def frames_only(sources: Path) -> Path:
    """A cache of the frames of all videos."""
    build(sources / "index.jsonl", sources / "frames_only", jobs=HERE)
    return sources / "frames_only"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Mark in the environment of every process that this test starts."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(processes.MARK, mark)
    return mark


HOLD = """
import signal, sys
from pathlib import Path
from chordcache.storage.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""


@contextlib.contextmanager
def held_by_another_process(cache: Path) -> Iterator[None]:
    """The cache's lock; held here, forked workers would hold it too, and on."""
    with subprocess.Popen([sys.executable, "-c", HOLD, cache], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield
        finally:
            holder.kill()


def partials(cache: Path) -> list[str]:
    """Return the names of partial files, and of the locks of keys."""
    return os.listdir(cache / ".partial") if (cache / ".partial").exists() else []


def num_cached(cache: Path) -> int:
    return len(list(cache.glob("videos/*/*.json")))


def wait_for_build(cache: Path, num_videos: int) -> None:
    """Wait until so many videos are built."""

    def is_built() -> bool:
        return not partials(cache) and num_cached(cache) == num_videos

    assert processes.wait_until(is_built, BUILD_SECONDS, step=0.1), (partials(cache), list(processes.sidecars(cache)))


def check_lists(folder: Path, cache: Path) -> None:
    """Check that the next build has nothing to do but the lists, and that the cache is sound before and after it."""
    assert verify(cache, jobs=HERE).damage == []
    summary = build(folder / "index.jsonl", cache, jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (0, 0)
    assert summary.num_up_to_date == len(Cache(cache)) == num_cached(cache)
    assert verify(cache, jobs=HERE).damage == []


def on_demand(folder: Path, cache: Path | str = "cache", on_miss: str = "build", **settings: Any) -> ChordVideoDataset:
    settings = {"clip_sampler": CLIP, "size": None, **settings}
    dataset = ChordVideoDataset(indexed(folder / "index.jsonl", folder / cache, on_miss=on_miss), **settings)
    dataset.set_epoch(0)  # samples are compared, and each of them contains its epoch
    return dataset


def only_from_cache(folder: Path, cache: Path | str = "cache", **settings: Any) -> list[dict[str, Any]]:
    dataset = on_demand(folder, cache, "error", **settings)
    return [dataset[i] for i in range(len(dataset))]


@pytest.fixture
def copy(sources: Path, tmp_path: Path) -> Path:
    """Two of the videos and their index, to do anything to."""
    for path in list(VIDEOS)[:2]:
        (tmp_path / "videos" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sources / "videos" / path, tmp_path / "videos" / path)
    scan([tmp_path / "videos"], output=tmp_path / "index.jsonl", labels="dir", jobs=HERE)
    return tmp_path


@pytest.fixture
def built(copy: Path) -> Path:
    build(copy / "index.jsonl", copy / "cache", jobs=HERE)
    return copy


def artefact_of(cache: Path, path: str) -> Path:
    return processes.sidecars(cache)[path]["_artefact"]


def spoil(artefact: Path) -> None:
    """Flip a bit of every JPEG."""
    data = artefact.read_bytes()
    at = data.find(b"\xff\xd8\xff")
    while at >= 0:
        processes.flip(artefact, at + 100)
        at = data.find(b"\xff\xd8\xff", at + 1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": (40, 50), "clips_per_video": 2, "seed": 3},
        {"clip_sampler": KeyframeSampler(num_frames=3, stride=2)},
        {"clip_sampler": AdaptiveSampler(num_frames=3, stride=2)},
        {"features": ("frames", "mel"), "missing": "zeros", "size": (32, 32)},
        {"features": ("mel",), "missing": "zeros"},
    ],
    ids=["frames", "crop", "keyframes", "adaptive", "frames and mel", "mel"],
)
def test_a_source_equals_the_cache(sources: Path, sparse: Path, whole: Path, settings: Any) -> None:
    expected = only_from_cache(sources, whole, **settings)
    dataset = on_demand(sources, sparse, "source", **settings)
    assert len(dataset) == len(expected) == len(VIDEOS) * settings.get("clips_per_video", 1)
    for i, sample in enumerate(expected):
        assert_same(dataset[i], sample)
    assert len(Cache(sparse)) == 0
    assert partials(sparse) == []


@pytest.mark.parametrize(
    "frames",
    ["{codec: raw, short_side: 48}", "{codec: yuv420}", "{fps: 10, quality: 70}"],
    ids=["raw", "yuv420", "ten a second"],
)
def test_the_config_of_the_cache_counts(sources: Path, tmp_path: Path, frames: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"frames: {frames}\n")
    empty_cache(tmp_path, "sparse", config=config)
    build(sources / "index.jsonl", tmp_path / "whole", config=config, jobs=HERE)
    dataset = on_demand(sources, tmp_path / "sparse", "source")
    for i, sample in enumerate(only_from_cache(sources, tmp_path / "whole")):
        assert_same(dataset[i], sample)


def test_a_source_that_broke(copy: Path, sparse: Path) -> None:
    dataset = on_demand(copy, sparse, "source")
    path = copy / "videos/jump/turned.mp4"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(MediaError, match=f"cannot read '{path}': .*; video 'turned-"):
        dataset[1]
    loader = make_loader(dataset, 1, 1, sampler=ChordSampler(2, shuffle=False))
    with pytest.raises(MediaError, match=f"(?s)in DataLoader worker.*cannot read '{path}': "):
        list(loader)
    path.unlink()
    with pytest.raises(NotFoundError, match=f"(?s)in DataLoader worker.*cannot read '{path}': No such file"):
        list(loader)


def test_a_link_that_leads_out_of_its_root_is_refused(copy: Path, sparse: Path) -> None:
    dataset = on_demand(copy, sparse, "source")
    path = copy / "videos/jump/turned.mp4"
    path.rename(copy / "outside.mp4")
    path.symlink_to(copy / "outside.mp4")
    with pytest.raises(MediaError, match="a symbolic link leads it out of its root"):
        dataset[1]


def test_broken_records_are_left_out(copy: Path, sparse: Path) -> None:
    (copy / "videos/jump/turned.mp4").write_bytes(b"no video" * 100)
    scan([copy / "videos"], output=copy / "index.jsonl", labels="dir", jobs=HERE)
    with pytest.warns(
        UserWarning, match="left out 1 of 2 videos: 1 that the scan could not read, such as 'jump/turned"
    ):
        assert len(on_demand(copy, sparse, "source")) == 1


SMALL = config_from_json({"frames": {"short_side": 32}, "features": {"flow": {"method": "dis", "preset": "ultrafast"}}})


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"config": SMALL, "on_miss": "build"}, UsageError, "^config: got one that is not that of cache '.*only'"),
        ({"index": "none.jsonl"}, NotFoundError, "no such file '.*none.jsonl'"),
        (
            {"features": ("pose",)},
            NotFoundError,
            "features: got 'pose', expected one of frames, which cache .* is built for",
        ),
        ({"cache": "none"}, NotFoundError, "no cache at"),
        ({"classes": ["run"]}, UsageError, "classes: got .*, expected also 'jump', a label of the index"),
    ],
)
def test_wrong_arguments(
    frames_only: Path, settings: Any, error: type[Exception], match: str, monkeypatch: Any
) -> None:
    monkeypatch.chdir(frames_only.parent)
    with pytest.raises(error, match=match):
        arguments = {"index": "index.jsonl", "cache": frames_only.name, "on_miss": "source", **settings}
        of_set = {name: arguments.pop(name) for name in ("index", "cache", "on_miss", "config") if name in arguments}
        ChordVideoDataset(indexed(**of_set), **arguments)


def test_the_config_of_a_cache_that_does_not_exist(built: Path) -> None:
    options: dict[str, Any] = {"size": None, "clip_sampler": CLIP}
    without_cache = indexed(built / "index.jsonl", on_miss="source", config=SMALL)
    assert ChordVideoDataset(without_cache, **options)[0]["frames"].shape[2:] == (32, 48)
    new = indexed(built / "index.jsonl", built / "new", on_miss="build", config=SMALL)
    assert len(ChordVideoDataset(new, **options)) == 2
    assert config_from_json(read_header(built / "new").config) == SMALL
    assert len(ChordVideoDataset(new, **options)) == 2


def test_roots_that_differ(built: Path) -> None:
    (built / "videos").rename(built / "moved")
    scan([f"videos={built / 'moved'}"], output=built / "index.jsonl", labels="dir", jobs=HERE)
    with pytest.raises(UsageError, match="got root 'videos' in '.*/moved', expected '.*/videos' as in cache"):
        on_demand(built, on_miss="source")


def test_an_index_that_was_replaced(copy: Path, sparse: Path) -> None:
    dataset = on_demand(copy, sparse, "source")
    (copy / "videos/jump/turned.mp4").unlink()
    scan([copy / "videos"], output=copy / "index.jsonl", labels="dir", jobs=HERE)
    with pytest.raises(UsageError, match="changed since the dataset was made. Recreate the dataset"):
        dataset[0]


def empty_cache(folder: Path, name: str = "cache", **options: Any) -> Path:
    """Make a cache for frames, or for what the options say, that holds no video."""
    (folder / "nothing.csv").write_text("path\n")
    build(read_index(folder / "nothing.csv"), folder / name, jobs=HERE, **options)
    return folder / name


def read_until_built(dataset: ChordVideoDataset, cache: Path, num_videos: int) -> None:
    """Read all samples again and again, as training does, until the videos are built."""

    def is_built() -> bool:
        for i in range(len(dataset)):
            dataset[i]
        return num_cached(cache) == num_videos

    assert processes.wait_until(is_built, BUILD_SECONDS, step=0.1)
    wait_for_build(cache, num_videos)


@pytest.mark.slow
def test_the_first_access_is_as_the_later_ones(copy: Path) -> None:
    dataset = on_demand(copy)  # the cache does not exist yet
    first = [dataset[i] for i in range(2)]
    wait_for_build(copy / "cache", 2)
    check_lists(copy, copy / "cache")
    os.rename(copy / "videos", copy / "away")  # so that it must be the cache that is read
    for i, sample in enumerate(first):
        assert_same(dataset[i], sample)


@pytest.mark.slow
def test_gc_leaves_the_videos_that_readers_built(copy: Path) -> None:
    """They are in no list before it and after it. The next build lists them."""
    (copy / "videos/half.csv").write_text("path\njump/b-frames.mp4\n")
    build(copy / "videos/half.csv", copy / "cache", jobs=HERE)
    dataset = on_demand(copy)
    read_until_built(dataset, copy / "cache", 2)
    for _ in range(2):
        report = verify(copy / "cache", jobs=HERE)
        assert report.damage == []
        assert "the lists of the cache do not have 1 video that readers built" in report.notes[-1]
        assert collect_garbage(copy / "cache") == []
    check_lists(copy, copy / "cache")


@pytest.mark.slow
def test_features_that_take_a_build_are_waited_for(sources: Path, sparse: Path, whole: Path, tmp_path: Path) -> None:
    """Flow takes a build, and its other features come from it too."""
    shutil.copytree(sparse, tmp_path / "cache")
    settings: dict[str, Any] = {"features": ("frames", "flow", "mel", "motion"), "missing": "zeros", "size": (32, 32)}
    dataset = on_demand(sources, tmp_path / "cache", **settings)
    for i, sample in enumerate(only_from_cache(sources, whole, **settings)):
        assert_same(dataset[i], sample)
        assert len(processes.sidecars(tmp_path / "cache")) == i + 1
    check_lists(sources, tmp_path / "cache")


CANNOT = {
    "flow": (
        "",
        ("frames", "flow"),
        "features: got 'flow' with a StoredSource, expected only frames, librosa, mel, waveform",
    ),
    "packets": (
        "frames: {codec: h264}",
        ("frames",),
        "frames.codec: got h264, whose frames depend on those before them, expected another one",
    ),
    "buckets": (
        "frames: {buckets: [[32, 32, 9]]}",
        ("frames",),
        "frames: got buckets, which are chosen for whole items",
    ),
}
"""Config, features, and the end of the error about them"""


@pytest.mark.slow
@pytest.mark.parametrize(("config", "features", "reason"), CANNOT.values(), ids=CANNOT)
def test_what_only_a_build_gives_is_built_or_an_error(
    copy: Path, config: str, features: tuple[str, ...], reason: str
) -> None:
    (copy / "config.yaml").write_text(config)
    options: dict[str, Any] = {"features": features, "clip_sampler": CLIP, "size": (16, 16)}
    with pytest.raises(UsageError, match=f"^{reason}.*[Bb]uild a cache"):
        ChordVideoDataset(indexed(copy / "index.jsonl", on_miss="source", config=copy / "config.yaml"), **options)
    videos = indexed(copy / "index.jsonl", copy / "cache", on_miss="build", config=copy / "config.yaml")
    dataset = ChordVideoDataset(videos, **options)
    with pytest.raises(
        UsageError, match=f"^on_miss: got 'source' for 2 of 2 videos not in .*, expected 'build'. {reason}"
    ):
        ChordVideoDataset(indexed(copy / "index.jsonl", copy / "cache", on_miss="source"), **options)
    samples = [dataset[0, i] for i in range(2)]
    build(copy / "index.jsonl", copy / "whole", features=features, config=copy / "config.yaml", jobs=HERE)
    whole = ChordVideoDataset(indexed(copy / "index.jsonl", copy / "whole"), **options)
    for i, sample in enumerate(samples):
        assert_same(sample, whole[0, i])
    source = ChordVideoDataset(indexed(copy / "index.jsonl", copy / "whole", on_miss="source"), **options)
    assert_same(source[0, 0], samples[0])  # it is cached


@pytest.mark.slow
def test_a_segment_that_is_missed_is_built_alone(copy: Path) -> None:
    (copy / "videos/segments.csv").write_text(
        "path,start_frame,end_frame\njump/b-frames.mp4,5,20\njump/b-frames.mp4,15,30\n"
    )
    cache = empty_cache(copy)
    videos = indexed(copy / "videos/segments.csv", cache, on_miss="build")
    dataset = ChordVideoDataset(videos, clip_sampler=CLIP, size=None)
    first = [dataset[0, i] for i in range(2)]
    read_until_built(dataset, cache, 2)
    assert sorted(data["num_frames"] for data in map(_data, (cache / "videos").glob("*/*.json"))) == [15, 15]
    for i, sample in enumerate(first):
        assert_same(dataset[0, i], sample)


def _data(sidecar: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(sidecar.read_text())
    return data


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_have_children_of_their_own(copy: Path, mark: str, method: str) -> None:
    dataset = on_demand(copy)
    first = dataset[0]  # this process has a child when it forks, and a miss under way
    loader = DataLoader(dataset, None, num_workers=2, multiprocessing_context=method, persistent_workers=True)

    def is_built() -> bool:
        samples = list(loader)
        assert torch.equal(samples[0]["frames"], first["frames"])
        return num_cached(copy / "cache") == 2

    assert processes.wait_until(is_built, BUILD_SECONDS)
    wait_for_build(copy / "cache", 2)
    check_lists(copy, copy / "cache")


@pytest.mark.slow
def test_threads_that_come_and_go_share_one_child(copy: Path, mark: str) -> None:
    """The thread that starts the child ends before its build does."""
    dataset = on_demand(copy)
    for i in (0, 1, 1, 0):
        thread = threading.Thread(target=dataset.__getitem__, args=(i,))
        thread.start()
        thread.join()
    wait_for_build(copy / "cache", 2)
    assert len([pid for pid in processes.alive_with(mark) if "engine.worker" in processes.command_of(pid)]) <= 1


@pytest.mark.slow
def test_a_full_disk(copy: Path, small_disk: tuple[Path, Any, Callable[[], Any]]) -> None:
    disk, _, free = small_disk
    if not os.path.ismount(disk):
        pytest.skip("no right to mount a small disk")
    dataset = on_demand(copy, disk / "cache")
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    said: list[str] = []

    def read(times: int) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i in range(times):
                assert dataset[i % 2]["frames"].shape[0] == 4
        said.extend(str(warning.message) for warning in caught)

    assert processes.wait_until(lambda: read(1) or said, BUILD_SECONDS, step=0.1)
    read(20)
    assert len(said) == 1, said
    assert re.match("the build of video '.*' failed: no space left .* Its source is read.", said[0])
    free()
    read_until_built(dataset, disk / "cache", 2)
    check_lists(copy, disk / "cache")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [spoil, lambda path: os.truncate(path, 5000), Path.unlink])
def test_a_damaged_artefact_is_repaired(built: Path, damage: Callable[[Path], object]) -> None:
    expected = only_from_cache(built)
    artefact = artefact_of(built / "cache", "jump/turned.mp4")
    digest, before = digest_file(artefact), processes.files_of(built / "cache")
    forget(artefact)  # who has a file mapped while it is cut short does not survive
    damage(artefact)
    dataset = on_demand(built)
    with pytest.warns(UserWarning, match=f"{artefact.name}.*; its source is read instead"):
        assert_same(dataset[1], expected[1])
    assert_same(dataset[0], expected[0])

    def is_repaired() -> bool:
        return artefact.exists() and digest_file(artefact) == digest

    assert processes.wait_until(is_repaired, BUILD_SECONDS)
    wait_for_build(built / "cache", 2)
    untouched = {file: state for file, state in before.items() if "turned" not in file}
    assert untouched.items() <= processes.files_of(built / "cache").items()
    assert_same(dataset[1], expected[1])  # a warning would be an error


@pytest.mark.slow
def test_a_miss_beside_a_build(copy: Path) -> None:
    """Frames come from the source, and nothing is built. What takes a build is an error."""
    empty_cache(copy, tiers=["lmdb", "npz"])
    frames, flow = on_demand(copy), on_demand(copy, features=("flow",))
    with held_by_another_process(copy / "cache"):
        for _ in range(3):
            assert frames[0]["frames"].shape == (4, 3, 64, 96)
        with pytest.raises(LockedError, match="is being written by process"):
            flow[0]
        frames[0]
        assert not processes.sidecars(copy / "cache")
    assert flow[0]["flows"].shape[0] == 3
    read_until_built(frames, copy / "cache", 2)
    check_lists(copy, copy / "cache")


@pytest.mark.slow
@pytest.mark.parametrize("features", [("frames",), ("flow",)])
def test_a_video_that_cannot_be_built_is_one_warning_or_the_error_of_its_samples(
    copy: Path, features: tuple[str, ...]
) -> None:
    path = copy / "videos/jump/turned.mp4"
    empty_cache(copy, tiers=["lmdb", "npz"])
    dataset = on_demand(copy, features=features)
    path.write_bytes(path.read_bytes()[:2000])
    said: list[str] = []

    def read() -> list[str]:
        with warnings.catch_warnings(record=True) as caught, pytest.raises(MediaError, match="; video 'turned-"):
            warnings.simplefilter("always")
            dataset[1]
        said.extend(str(warning.message) for warning in caught)
        return said

    for _ in range(20):
        read()
    if features == ("frames",):
        assert processes.wait_until(read, BUILD_SECONDS, step=0.1)
        read()
        assert len(said) == 1, said
        assert re.match("the build of video 'turned-.*' failed: .* Its source is read.", said[0])
    else:
        assert said == []
    dataset[0]
    wait_for_build(copy / "cache", 1)
    assert not (copy / "cache/quarantine.jsonl").exists()
    assert build(copy / "index.jsonl", copy / "cache", jobs=HERE).num_failed == 1


def test_a_cache_that_cannot_be_written_to(built: Path) -> None:
    if (built / "cache/.partial").exists():
        (built / "cache/.partial").rmdir()
    (built / "cache/.partial").write_text("")
    with pytest.raises(StorageError, match=r"/\.partial': got Not a directory, expected a readable folder"):
        on_demand(built)
