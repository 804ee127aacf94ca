"""Videos that are not cached: read from their sources, and built in the background by a child of each reader."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import processes
from helpers.inline import HERE

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from chordcache.building.build import build  # noqa: E402
from chordcache.config.config import config_from_json  # noqa: E402
from chordcache.digests import digest_file  # noqa: E402
from chordcache.errors import DamageError, FeatureAbsentError, MediaError, NotFoundError, UsageError  # noqa: E402
from chordcache.index.index_files import read_index  # noqa: E402
from chordcache.index.scan import scan  # noqa: E402
from chordcache.read.cache import Cache  # noqa: E402
from chordcache.storage.artefacts.open_files import forget  # noqa: E402
from chordcache.storage.cache_header import read_header  # noqa: E402
from chordcache.storage.layout import key_of  # noqa: E402
from chordcache.storage.sealed_json import seal  # noqa: E402
from chordcache.train.dataset import ChordVideoDataset  # noqa: E402
from chordcache.train.loader import make_loader  # noqa: E402
from chordcache.train.misses.background import FOLDER  # noqa: E402
from chordcache.train.samplers.clip_samplers import KeyframeSampler, RegularClipSampler  # noqa: E402
from chordcache.train.samplers.content_samplers import AdaptiveSampler  # noqa: E402
from chordcache.train.samplers.distributed import ChordSampler  # noqa: E402
from chordcache.train.videos import indexed  # noqa: E402
from chordcache.verifying.verify import verify  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

CLIP = RegularClipSampler(num_frames=4, stride=3)

BUILD_SECONDS = 120
"""Until a background build must be over; it takes two, on an idle machine"""

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
    """A cache for frames and features that holds no video."""
    nothing = sources / "nothing.csv"
    nothing.write_text("path\n")
    build(read_index(nothing), sources / "sparse", tiers=["lmdb", "npz"], jobs=HERE)
    return sources / "sparse"


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


def wait_for_build(cache: Path, num_videos: int) -> None:
    """Until so many videos are built or in quarantine, and index and catalog have them."""

    def is_built() -> bool:
        names = [name for name in os.listdir(cache / FOLDER) if not name.startswith("slot-")]
        return not names and len(processes.sidecars(cache)) + len(processes.quarantine(cache)) == num_videos

    assert processes.wait_until(is_built, BUILD_SECONDS, step=0.1), os.listdir(cache / FOLDER)


def on_demand(folder: Path, cache: Path | str = "cache", on_miss: str = "build", **settings: Any) -> ChordVideoDataset:
    settings = {"clip_sampler": CLIP, "size": None, **settings}
    dataset = ChordVideoDataset(indexed(folder / "index.jsonl", folder / cache, on_miss=on_miss), **settings)
    dataset.set_epoch(0)  # samples are compared, and each of them contains its epoch
    return dataset


def only_from_cache(folder: Path, cache: Path | str = "cache", **settings: Any) -> list[dict[str, Any]]:
    dataset = on_demand(folder, cache, "error", **settings)
    return [dataset[i] for i in range(len(dataset))]


def assert_same(sample: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sample.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert (name, value.dtype, value.shape) == (name, sample[name].dtype, sample[name].shape)
            assert torch.equal(value.nan_to_num(), sample[name].nan_to_num()), name
        else:
            assert sample[name] == value


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


# From the source


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": (40, 50), "clips_per_video": 2, "seed": 3},
        {"clip_sampler": KeyframeSampler(num_frames=3, stride=2)},
        {"clip_sampler": AdaptiveSampler(num_frames=3, stride=2)},
        {"features": ("frames", "flow", "mel", "motion"), "missing": "zeros", "size": (32, 32)},
    ],
    ids=["frames", "crop", "keyframes", "adaptive", "features"],
)
def test_a_source_equals_the_cache(sources: Path, sparse: Path, whole: Path, settings: Any) -> None:
    expected = only_from_cache(sources, whole, **settings)
    dataset = on_demand(sources, sparse, "source", **settings)
    assert len(dataset) == len(expected) == len(VIDEOS) * settings.get("clips_per_video", 1)
    for i, sample in enumerate(expected):
        assert_same(dataset[i], sample)
    assert len(Cache(sparse)) == 0
    assert not (sparse / FOLDER).exists()


def test_the_index_orders_and_labels(sources: Path, sparse: Path) -> None:
    dataset = on_demand(sources, sparse, "source")
    assert dataset.classes == ["jump", "run"]
    paths = [record.path for record in read_index(sources / "index.jsonl")]
    keys = [dataset[i]["video"] for i in range(len(dataset))]
    assert [key.rpartition("-")[0] for key in keys] == [Path(path).stem for path in paths]
    assert [dataset.classes[dataset[i]["label"]] for i in range(4)] == [Path(path).parent.name for path in paths]


@pytest.mark.parametrize(
    "frames",
    ["{codec: raw, short_side: 48}", "{fps: 10, quality: 70}", "{codec: mpeg4}", "{codec: h264, stride: 2}"],
    ids=["raw", "ten a second", "mpeg4", "h264"],
)
def test_the_config_of_the_cache_counts(sources: Path, tmp_path: Path, frames: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"frames: {frames}\n")
    (tmp_path / "nothing.csv").write_text("path\n")
    build(read_index(tmp_path / "nothing.csv"), tmp_path / "sparse", config=config, jobs=HERE)
    build(sources / "index.jsonl", tmp_path / "whole", config=config, jobs=HERE)
    dataset = on_demand(sources, tmp_path / "sparse", "source")
    for i, sample in enumerate(only_from_cache(sources, tmp_path / "whole")):
        assert_same(dataset[i], sample)


# What cannot be read


def test_error_is_as_before(built: Path) -> None:
    expected = [ChordVideoDataset(built / "cache", clip_sampler=CLIP, size=None)[0, i] for i in range(2)]
    for sample in only_from_cache(built):
        assert_same(sample, next(candidate for candidate in expected if candidate["video"] == sample["video"]))
    (built / "videos/half.csv").write_text("path\njump/b-frames.mp4\n")
    build(built / "videos/half.csv", built / "half", jobs=HERE)
    with pytest.raises(NotFoundError, match="got 1 of 2 videos not in .*, such as 'jump/turned.mp4'"):
        on_demand(built, "half", "error")
    with pytest.warns(UserWarning, match="left out 1 of 2 videos: 1 not cached, such as 'jump/turned.mp4'"):
        dataset = on_demand(built, "half", "skip")
    assert len(dataset) == 1
    assert dataset[0]["frames"].shape == (4, 3, 64, 96)
    spoil(artefact_of(built / "half", "jump/b-frames.mp4"))
    with pytest.raises(DamageError, match="verify --repair"):
        dataset[0]
    assert not (built / "half" / FOLDER).exists()


@pytest.mark.parametrize("features", [("frames",), ("mel",)])
def test_a_source_that_vanished(copy: Path, sparse: Path, features: tuple[str, ...]) -> None:
    dataset = on_demand(copy, sparse, "source", features=features, missing="zeros")
    path = copy / "videos/jump/turned.mp4"
    path.unlink()
    with pytest.raises(NotFoundError, match=f"cannot read '{path}': No such file or directory; video 'turned-"):
        dataset[1]
    assert dataset[0]["video"].startswith("b-frames-")


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


def test_another_file_under_the_path_is_another_video(built: Path, make_video: Callable[..., Path]) -> None:
    path = built / "videos/jump/turned.mp4"
    make_video(path, num_frames=10, size=(64, 64))
    scan([built / "videos"], output=built / "index.jsonl", labels="dir", jobs=HERE)
    assert on_demand(built, on_miss="error")[1]["frames"].shape == (4, 3, 96, 64)
    assert on_demand(built, on_miss="source")[1]["frames"].shape == (4, 3, 64, 64)


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
        ({"on_miss": "download"}, UsageError, "on_miss: got 'download', expected one of error, skip, source, build"),
        ({"on_miss": "skp"}, UsageError, "on_miss: got 'skp', expected one of .*. Did you mean 'skip'?"),
        ({"on_miss": "build", "cache": None}, UsageError, "^cache: got None with on_miss='build', expected a cache"),
        ({"on_miss": "error", "cache": None}, UsageError, "^cache: got None with on_miss='error', expected a cache"),
        ({"config": SMALL, "on_miss": "build"}, UsageError, "^config: got one that is not that of cache '.*only'"),
        ({"index": "none.jsonl"}, NotFoundError, "no such file '.*none.jsonl'"),
        ({"videos": ["a"]}, UsageError, "^videos: got a selection and a set of videos, expected one of them$"),
        (
            {"features": ("pose",)},
            FeatureAbsentError,
            "features: got 'pose', expected one of frames, which cache .* is built for",
        ),
        ({"cache": "none"}, NotFoundError, "no cache at"),
        ({"index": "frames_only/index.jsonl"}, UsageError, "expected the index that 'chordcache scan' wrote"),
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


def test_sources_without_a_cache(sources: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options: dict[str, Any] = {"clip_sampler": CLIP, "features": ("frames", "motion"), "size": (48, 48)}
    dataset = ChordVideoDataset(indexed(sources / "index.jsonl", on_miss="source"), **options)
    expected = ChordVideoDataset(indexed(sources / "index.jsonl", whole), **options)
    for workers, method in ((0, None), (2, "fork"), (2, "forkserver")):
        loader = DataLoader(dataset, None, num_workers=workers, multiprocessing_context=method)
        for sample, one in zip(loader, expected, strict=True):
            assert torch.equal(sample["frames"], one["frames"])
            assert torch.equal(sample["motion"], one["motion"])
    assert len(list(tmp_path.glob("chordcache-*"))) == 1  # multiprocessing keeps a folder of its own there
    del dataset, loader
    gc.collect()
    assert list(tmp_path.glob("chordcache-*")) == []


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


# Built in the background

READER = """
import os, signal, sys, time, warnings
from pathlib import Path
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.misses import background
from chordcache.train.samplers.clip_samplers import RegularClipSampler
from chordcache.train.videos import indexed
folder, first = Path(sys.argv[1]), int(sys.argv[2])
settings = {"clip_sampler": RegularClipSampler(num_frames=4, stride=3), "size": None}
dataset = ChordVideoDataset(indexed(folder / "index.jsonl", folder / "cache", on_miss="build"), **settings)
for i in range(len(dataset)):
    dataset[(first + i) % len(dataset)]
print("read", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def readers(folder: Path, firsts: list[int]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have read all videos, each in its own order, and live on."""
    command = [sys.executable, "-c", READER, str(folder)]
    started = [subprocess.Popen([*command, str(first)], stdout=subprocess.PIPE, text=True) for first in firsts]
    try:
        for reader in started:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "read\n"
        yield started
    finally:
        for reader in started:
            reader.kill()
            reader.communicate()


def empty_cache(folder: Path) -> Path:
    (folder / "nothing.csv").write_text("path\n")
    build(read_index(folder / "nothing.csv"), folder / "cache", jobs=HERE)
    return folder / "cache"


@pytest.mark.slow
def test_the_first_access_is_as_the_later_ones(copy: Path) -> None:
    dataset = on_demand(copy)  # the cache does not exist yet
    first = [dataset[i] for i in range(2)]
    wait_for_build(copy / "cache", 2)
    assert verify(copy / "cache", jobs=HERE).damage == []
    os.rename(copy / "videos", copy / "away")  # so that it must be the cache that is read
    for i, sample in enumerate(first):
        assert_same(dataset[i], sample)


@pytest.mark.slow
@pytest.mark.parametrize("num_killed", [0, 1])
def test_readers_build_every_video_once(sources: Path, tmp_path: Path, mark: str, num_killed: int) -> None:
    shutil.copytree(sources / "videos", tmp_path / "videos")
    scan([tmp_path / "videos"], output=tmp_path / "index.jsonl", labels="dir", jobs=HERE)
    cache = empty_cache(tmp_path)
    with readers(tmp_path, list(range(4)) if num_killed else [0, 0]) as started:
        for reader in started[:num_killed]:
            reader.kill()
        wait_for_build(cache, len(VIDEOS))
    assert processes.wait_until(lambda: not processes.alive_with(mark), BUILD_SECONDS)
    assert len(processes.sidecars(cache)) == len(VIDEOS)
    assert verify(cache, jobs=HERE).damage == []
    assert build(tmp_path / "index.jsonl", cache, jobs=HERE).num_done == 0


@pytest.mark.slow
def test_a_child_ends_with_its_reader_and_the_next_reader_goes_on(copy: Path, mark: str) -> None:
    cache = empty_cache(copy)
    with readers(copy, [0]) as (reader,):
        reader.kill()
        assert processes.wait_until(lambda: not processes.alive_with(mark), BUILD_SECONDS)
    (cache / FOLDER / "cut-short").write_text('{"record": {}}')
    dataset = on_demand(copy)
    for i in range(2):
        dataset[i]
    wait_for_build(cache, 2)
    assert verify(cache, jobs=HERE).damage == []


@pytest.mark.slow
def test_a_request_that_came_with_a_cache_opens_no_other_folder(
    copy: Path, tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]
) -> None:
    """Its sender knew the folder, cached a video of this name there, and asks for the one that is there now."""
    private = tmp_path_factory.mktemp("private")
    make_video(private / "a.mp4", num_frames=3)
    cache = empty_cache(copy)
    scan([private], output=copy / "private.jsonl", jobs=HERE)
    build(copy / "private.jsonl", cache, jobs=HERE)
    make_video(private / "a.mp4", num_frames=7)
    (record,) = read_index(copy / "private.jsonl")
    (cache / FOLDER).mkdir(exist_ok=True)
    (cache / FOLDER / key_of(record)).write_text(f"{seal(record)}\n")
    dataset = on_demand(copy)
    for i in range(2):
        dataset[i]

    def is_listed() -> bool:
        return len(list(read_index(cache / "index.jsonl"))) == 3

    assert processes.wait_until(is_listed, BUILD_SECONDS, step=0.1), os.listdir(cache / FOLDER)
    sidecars = processes.sidecars(cache)
    assert {path: data["num_frames"] for path, data in sidecars.items()}["a.mp4"] == 3
    assert len(sidecars) == 3


@pytest.mark.slow
def test_a_forked_worker_has_its_own_child(copy: Path) -> None:
    dataset = on_demand(copy)
    first = dataset[0]  # this process has a child when it forks
    loader = make_loader(dataset, 1, 1, sampler=ChordSampler(2, shuffle=False), start_method="fork")
    batches = list(loader)
    assert torch.equal(batches[0]["frames"][0], first["frames"])
    # Until the child of the worker has ended with it, it may hold the second video, which no other child builds then
    assert processes.wait_until(lambda: dataset[1] and len(processes.sidecars(copy / "cache")) == 2, BUILD_SECONDS)
    wait_for_build(copy / "cache", 2)
    assert verify(copy / "cache", jobs=HERE).damage == []


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

    def has_warned() -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert dataset[0]["frames"].shape == (4, 3, 64, 96)
        said.extend(str(warning.message) for warning in caught)
        return any("have stopped for now: no space left" in message for message in said)

    assert processes.wait_until(has_warned, BUILD_SECONDS, step=0.1), said
    free()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "background builds of cache")
        for i in range(2):
            dataset[i]
    wait_for_build(disk / "cache", 2)


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
def test_nothing_is_built_beside_a_build_and_a_failure_is_in_quarantine(copy: Path) -> None:
    dataset = on_demand(copy)
    path = copy / "videos/jump/turned.mp4"
    with held_by_another_process(copy / "cache"):
        assert dataset[0]["frames"].shape == (4, 3, 64, 96)
        path.write_bytes(b"no video" * 100)
        assert not processes.sidecars(copy / "cache")

    def is_done() -> bool:
        dataset[0]
        with pytest.raises(MediaError, match=f"cannot read '{path}'"):
            dataset[1]
        return bool(processes.sidecars(copy / "cache") and processes.quarantine(copy / "cache"))

    assert processes.wait_until(is_done, BUILD_SECONDS, step=0.1)
    wait_for_build(copy / "cache", 2)
    assert list(processes.sidecars(copy / "cache")) == ["jump/b-frames.mp4"]
    assert list(processes.quarantine(copy / "cache")) == ["jump/turned.mp4"]


def test_a_cache_that_cannot_be_written_to(built: Path) -> None:
    (built / "cache" / FOLDER).write_text("")
    with pytest.raises(
        UsageError, match=r"on_miss: got 'build' for cache .*, which cannot be written to .* Choose on_miss='source'\."
    ):
        on_demand(built)
