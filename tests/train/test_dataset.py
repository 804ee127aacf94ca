"""The dataset returns the requested frames, under any DataLoader, and never another sample instead."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.spellings import work_beside
from torch.utils.data import DataLoader

from chordcache.building.build import build
from chordcache.errors import DamageError, NotFoundError, UsageError
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.sources.video_source import CachedSource
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.fields import class_names
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import RandomClipSampler, RegularClipSampler
from chordcache.train.videos import cached, indexed
from chordcache.verifying.repair import collect_garbage

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("inline")


STEP = 4
"""Luma levels from one frame to the next, so that frame n is gray level ``n * STEP * 255 / 219``"""

VIDEOS = {
    "a/wide.mp4": ((96, 64), 50, "run", "a, b and c"),
    "a/tall.mp4": ((64, 96), 40, "jump", ""),
    "b/wide.mp4": ((96, 64), 30, "run", "über"),
    "b/short.mp4": ((64, 64), 5, "", "five frames"),
}
"""Path: (width, height), frames, label, caption"""


def gray_planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u, v = np.full((2, height // 2, width // 2), 128, np.uint8)
    return np.full((height, width), 16 + STEP * number, np.uint8), u, v


def write_index(folder: Path) -> Path:
    rows = [f'{path},{label},"{caption}"\n' for path, (_, _, label, caption) in VIDEOS.items()]
    index = folder / "index.csv"
    index.write_text("path,label,caption\n" + "".join(rows), encoding="utf-8")
    return index


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Cache:
    folder = tmp_path_factory.mktemp("dataset")
    for path, (size, num_frames, _, _) in VIDEOS.items():
        options = {"crf": "4", "bf": "2"}
        make_video(folder / path, size=size, num_frames=num_frames, planes=gray_planes, options=options)
    summary = build(write_index(folder), folder / "cache", jobs=1)
    assert (summary.num_done, summary.num_failed) == (4, 0)
    return Cache(folder / "cache")


def key_of(cache: Cache, path: str) -> str:
    (key,) = (video.key for video in cache if video.path == path)
    return key


def numbers_shown(frames: torch.Tensor) -> list[int]:
    """Frame numbers read off the pictures (T, C, H, W); every pixel must agree."""
    numbers = frames.double() * 219 / 255 / STEP
    assert (numbers - numbers.round()).abs().max() < 0.45
    rounded = numbers.round().long().flatten(1)
    assert (rounded == rounded[:, :1]).all()
    return rounded[:, 0].tolist()


def numbers_asked_for(dataset: ChordVideoDataset, cache: Cache, index: int, epoch: int, **settings: Any) -> list[int]:
    num_clips = settings.get("clips_per_video", 1)
    video = cache[index // num_clips]
    request = ClipRequest(settings.get("seed", 0), epoch, index, index % num_clips, num_clips)
    return settings["clip_sampler"].frame_numbers(video, request).tolist()


def test_sample(cache: Cache) -> None:
    key = key_of(cache, "a/wide.mp4")
    sample = ChordVideoDataset(cache.path, videos=[key])[0]
    assert sorted(sample) == ["caption", "frames", "label", "pts_seconds", "sample_id", "video"]
    assert sample["frames"].shape == (16, 3, 224, 224)
    assert sample["frames"].dtype == torch.uint8
    assert sample["frames"].is_contiguous()
    assert numbers_shown(sample["frames"]) == [min(i * 4, 49) for i in range(16)]
    assert sample["pts_seconds"].dtype == torch.float64
    assert sample["pts_seconds"].tolist() == pytest.approx([min(i * 4, 49) / 25 for i in range(16)])
    assert sample["label"].dtype == torch.int64
    assert sample["label"].shape == ()
    assert sample["label"] == 1  # classes are sorted: jump, run
    assert sample["caption"] == "a, b and c"
    assert sample["video"] == key


@pytest.mark.parametrize(
    "sampler", [RegularClipSampler(num_frames=6, stride=5), RandomClipSampler(num_frames=6, stride=5)]
)
@pytest.mark.parametrize("size", [None, (32, 48), (100, 90)])
def test_frames_are_those_asked_for(cache: Cache, sampler: Any, size: tuple[int, int] | None) -> None:
    settings = {"clip_sampler": sampler, "clips_per_video": 3, "seed": 5}
    dataset = ChordVideoDataset(cache, size=size, **settings)
    assert len(dataset) == 12
    for index in range(12):
        video, sample = cache[index // 3], dataset[2, index]
        expected = numbers_asked_for(dataset, cache, index, epoch=2, **settings)
        assert sample["frames"].shape == (6, 3, *(size or (video.height, video.width)))
        assert numbers_shown(sample["frames"]) == expected
        assert sample["pts_seconds"].tolist() == video.pts_seconds[expected].tolist()
        assert sample["video"] == video.key


def test_samples_without_label_or_caption(cache: Cache) -> None:
    samples = {sample["video"]: sample for sample in ChordVideoDataset(cache)}
    labels = {path: int(samples[key_of(cache, path)]["label"]) for path in VIDEOS}
    assert labels == {"a/wide.mp4": 1, "a/tall.mp4": 0, "b/wide.mp4": 1, "b/short.mp4": -1}
    captions = {path: samples[key_of(cache, path)]["caption"] for path in VIDEOS}
    assert captions == {path: caption for path, (_, _, _, caption) in VIDEOS.items()}


def test_length_and_indices(cache: Cache) -> None:
    dataset = ChordVideoDataset(cache, clips_per_video=3, size=(32, 32))
    assert len(dataset) == 12
    assert [sample["video"] for sample in dataset] == [key for key in cache.keys() for _ in range(3)]  # noqa: SIM118
    assert torch.equal(dataset[-1]["frames"], dataset[11]["frames"])
    assert torch.equal(dataset[np.int64(-12)]["frames"], dataset[torch.tensor(0)]["frames"])
    for index in (12, -13, (0, 12), (1, -13)):
        with pytest.raises(IndexError, match=r"^sample -?1[23] is out of range for a dataset of 12 samples$"):
            dataset[index]
    with pytest.raises(UsageError, match="^index: got 1.0, expected an integer"):
        dataset[1.0]


def test_sampler_of_several_clips_is_an_error(cache: Cache) -> None:
    class TwoClips:
        def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
            return np.array([[0, 1, 2], [3, 4, 5]])

    with pytest.raises(UsageError, match=r"clip_sampler: got frame numbers of shape \(2, 3\), expected \(T,\)"):
        ChordVideoDataset(cache, clip_sampler=TwoClips())[0]


def selected(dataset: ChordVideoDataset) -> list[str]:
    return [dataset[i]["video"] for i in range(len(dataset))]


def test_all_videos_in_the_order_of_their_keys(cache: Cache) -> None:
    assert selected(ChordVideoDataset(cache)) == cache.keys() == sorted(cache.keys())


def test_videos_as_keys(cache: Cache) -> None:
    keys = cache.keys()
    assert selected(ChordVideoDataset(cache, videos=[keys[2], keys[0], keys[2]])) == [keys[2], keys[0], keys[2]]
    assert selected(ChordVideoDataset(cache, videos=iter(keys[1:]))) == keys[1:]


def test_videos_as_predicate(cache: Cache) -> None:
    dataset = ChordVideoDataset(cache, videos=lambda video: video.label == "run")
    assert selected(dataset) == [video.key for video in cache if video.path in ("a/wide.mp4", "b/wide.mp4")]
    pickle.dumps(dataset)  # the predicate does not come along


def test_split_path_in_two_roots(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    for root in ("one", "two"):
        make_video(tmp_path / root / "clip.mp4", num_frames=3)
        (tmp_path / root / "index.csv").write_text("path\nclip.mp4\n")
        build(tmp_path / root / "index.csv", tmp_path / "cache", jobs=1)
    keys = Cache(tmp_path / "cache").keys()
    assert len(keys) == 2
    (tmp_path / "train.txt").write_text("clip.mp4\n")
    with pytest.raises(UsageError, match=f"expected a key. Several videos have this path: {', '.join(keys)}"):
        ChordVideoDataset(tmp_path / "cache", videos=tmp_path / "train.txt")
    (tmp_path / "train.txt").write_text(keys[1])
    assert selected(ChordVideoDataset(tmp_path / "cache", videos=tmp_path / "train.txt")) == [keys[1]]


def test_path_that_is_not_utf8_in_split_file(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    name = os.fsdecode(b"caf\xe9.mp4")
    make_video(tmp_path / "plain.mp4", num_frames=3).rename(tmp_path / name)
    (tmp_path / "index.csv").write_bytes(b"path\ncaf\xe9.mp4\n")
    build(tmp_path / "index.csv", tmp_path / "cache", jobs=1)
    (tmp_path / "train.txt").write_bytes(b"caf\xe9.mp4\n")
    assert len(ChordVideoDataset(tmp_path / "cache", videos=tmp_path / "train.txt")) == 1


def test_videos_that_do_not_exist(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="videos: got 'no-such-key', expected the key or the path of a"):
        ChordVideoDataset(cache, videos=[cache.keys()[0], "no-such-key"])
    with pytest.raises(UsageError, match="videos: got 0, expected keys"):
        ChordVideoDataset(cache, videos=[0])
    with pytest.raises(NotFoundError, match=r"cannot read split file '.*none\.txt': No such file or directory"):
        ChordVideoDataset(cache, videos=tmp_path / "none.txt")
    with pytest.raises(NotFoundError, match="Is a directory"):
        ChordVideoDataset(cache, videos=tmp_path)


@pytest.mark.parametrize("videos", [[], lambda video: False, "empty.txt"])
def test_no_video_selected(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, videos: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("# nothing yet\n")
    with pytest.raises(UsageError, match=r"^(videos|split file 'empty.txt'): got no video, expected at least one"):
        ChordVideoDataset(cache, videos=videos)


def test_classes(cache: Cache) -> None:
    run = [key_of(cache, "a/wide.mp4")]
    assert ChordVideoDataset(cache).classes == ["jump", "run"]
    only_runs = ChordVideoDataset(cache, videos=run)
    assert only_runs.classes == ["jump", "run"]  # of the whole cache, so that splits agree
    assert only_runs[0]["label"] == 1
    given = ChordVideoDataset(cache, videos=run, classes=("swim", "run", "walk", "jump"))
    assert given.classes == ["swim", "run", "walk", "jump"]
    assert given[0]["label"] == 1
    assert ChordVideoDataset(cache, videos=run, classes=["run"])[0]["label"] == 0  # none of the others matters


def test_numbers_as_labels_keep_their_value(make_video: Callable[..., Path], tmp_path: Path) -> None:
    """The ids 0, 2 and 10 of a published list are the ids that a model learns, and not 0, 2 and 1 of their texts."""
    wanted = {"a.mp4": "10", "b.mp4": "0", "c.mp4": "2"}
    for name in wanted:
        make_video(tmp_path / "videos" / name, num_frames=3)
    rows = "".join(f"videos/{name},{label}\n" for name, label in wanted.items())
    (tmp_path / "list.csv").write_text("path,label\n" + rows)
    build(tmp_path / "list.csv", tmp_path / "cache", jobs=1)
    for dataset in (
        ChordVideoDataset(tmp_path / "cache", size=None),
        ChordVideoDataset(indexed(tmp_path / "list.csv", tmp_path / "cache"), size=None),
    ):
        assert len(dataset.classes) == 11
        for sample in (dataset[number] for number in range(3)):
            name = Path(Cache(tmp_path / "cache")[sample["video"]].path).name
            assert dataset.classes[sample["label"]] == wanted[name] == str(int(sample["label"]))
            assert dataset.classes.index(wanted[name]) == sample["label"]


@pytest.mark.parametrize("labels", [{"0", "2", "ten"}, {"007", "-1", "x"}, {"20261122", "20261123"}, {"²"}])
def test_other_labels_are_sorted(labels: set[str]) -> None:
    assert class_names(labels) == sorted(labels)


def test_label_that_is_not_in_classes(cache: Cache) -> None:
    key = key_of(cache, "a/tall.mp4")
    match = rf"^classes: got \['run'\], expected also 'jump', the label of video '{key}'$"
    with pytest.raises(UsageError, match=match):
        ChordVideoDataset(cache, classes=["run"])
    with pytest.raises(UsageError, match=match):
        ChordVideoDataset(cache, videos=cache.keys(), classes=["run"])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"classes": ["run", "jump", "run"]}, "^classes: got .*distinct"),
        ({"classes": [1, 2]}, "^classes: got"),
        ({"clips_per_video": 0}, "clips_per_video: got 0, expected an integer of at least 1"),
        ({"seed": -1}, "^seed: got -1, expected an integer of at least 0$"),
        ({"size": (0, 224)}, r"^size: got \(0, 224\)"),
    ],
)
def test_wrong_arguments(cache: Cache, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        ChordVideoDataset(cache, **arguments)


def batches_of(dataset: ChordVideoDataset, workers: int = 0, method: str | None = None) -> list[Any]:
    return list(iterate(DataLoader(dataset, batch_size=3, num_workers=workers, multiprocessing_context=method)))


def iterate(loader: DataLoader) -> Iterator[Any]:
    batches = iter(loader)
    try:
        yield from batches
    except Exception:
        # A worker that is asked to leave while its queue's thread is inside torch aborts: let all of them finish first
        for _ in range(len(loader)):
            with contextlib.suppress(Exception):
                next(batches, None)
        raise
    finally:
        # Left to the garbage collector, torch waits 5 s for each worker of a loader that raised
        getattr(batches, "_shutdown_workers", lambda: None)()


def assert_equal_batches(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        assert sorted(one) == sorted(other)
        for name in ("frames", "pts_seconds", "label"):
            assert torch.equal(one[name], other[name])
        assert (one["caption"], one["video"]) == (other["caption"], other["video"])


LOADERS = [(0, None), (2, "fork")]


def damaged_copy(cache: Cache, folder: Path, path: str) -> Path:
    """A copy of the cache in which one video's frames file is cut short."""
    subprocess.run(["cp", "-r", cache.path, folder], check=True)
    artefact = folder / cache[key_of(cache, path)].feature("frames").file.name
    os.truncate(artefact, artefact.stat().st_size // 2)
    return folder


@pytest.mark.parametrize(("workers", "method"), LOADERS)
def test_damage_is_an_error_and_nothing_is_put_in_its_place(
    cache: Cache, tmp_path: Path, workers: int, method: str | None
) -> None:
    dataset = ChordVideoDataset(damaged_copy(cache, tmp_path / "cache", "a/tall.mp4"), size=(32, 32))
    bad = cache.keys().index(key_of(cache, "a/tall.mp4"))
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)
    served: list[str] = []
    with pytest.raises(DamageError, match="is damaged"):
        served.extend(sample["video"] for sample in iterate(loader))
    assert served == cache.keys()[:bad]
    with pytest.raises(DamageError, match=r"is damaged: got \d+ bytes, expected \d+; run 'chordcache verify"):
        dataset[bad]


@pytest.mark.parametrize("spelling", ["../cache", "link"])
def test_a_cache_of_any_spelling(cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spelling: str) -> None:
    """The working folder changes before the workers fork."""
    work_beside(cache.path.parent, monkeypatch)
    path = spelling.format(cache.path.parent)
    chosen = cached(path)
    datasets = [ChordVideoDataset(path, size=(32, 32)), ChordVideoDataset(CachedSource(path).cache, size=(32, 32))]
    datasets.append(pickle.loads(pickle.dumps(datasets[0])))
    monkeypatch.chdir(tmp_path)
    datasets.append(ChordVideoDataset(chosen, size=(32, 32)))
    expected = ChordVideoDataset(cache, size=(32, 32))[3]["frames"]
    for dataset in datasets:
        assert torch.equal(dataset[3]["frames"], expected)
    batches = list(DataLoader(datasets[0], batch_size=4, num_workers=1))
    assert torch.equal(batches[0]["frames"][3], expected)


def h264_of(folder: Path) -> list[np.ndarray]:
    """Build all videos again with other frames, and remove the files of the earlier ones."""
    (folder / "h264.yaml").write_text("frames: {codec: h264}")
    build(folder / "index.csv", folder / "cache", config=folder / "h264.yaml", jobs=1)
    assert collect_garbage(folder / "cache")
    cache = Cache(folder / "cache")
    return [cache.read(video) for video in cache]


@pytest.mark.parametrize("is_indexed", [False, True])
def test_files_that_gc_removed_under_a_dataset(
    tmp_path: Path, make_video: Callable[..., Path], is_indexed: bool
) -> None:
    """The catalog is opened once more. A file that the new one names, and that is missing too, is damage."""
    for name in "abc":
        make_video(tmp_path / f"{name}.mp4", num_frames=9)
    (tmp_path / "index.csv").write_text("path\na.mp4\nb.mp4\nc.mp4\n")
    build(tmp_path / "index.csv", tmp_path / "cache", jobs=1)
    videos = indexed(tmp_path / "index.csv", tmp_path / "cache") if is_indexed else cached(tmp_path / "cache")
    dataset = ChordVideoDataset(videos, clip_sampler=RegularClipSampler(9, stride=1), size=None)
    dataset[0]
    expected = h264_of(tmp_path)
    for position in (0, 1):
        assert np.array_equal(dataset[position]["frames"].numpy(), expected[position].transpose(0, 3, 1, 2))
    lost = Cache(tmp_path / "cache")[2]
    (lost.cache_path / lost.feature("frames").file.name).unlink()
    with pytest.raises(DamageError, match="No such file or directory; run 'chordcache verify --repair"):
        dataset[2]


@pytest.mark.parametrize("on_miss", [None, "error", "source"])
def test_a_cache_that_was_renamed_under_a_dataset(tmp_path: Path, cache: Cache, on_miss: str | None) -> None:
    """It is not damaged, and none is to be made in its old place."""
    shutil.copytree(cache.path, tmp_path / "cache")
    index = write_index(cache.path.parent)
    videos = cached(tmp_path / "cache") if on_miss is None else indexed(index, tmp_path / "cache", on_miss=on_miss)
    datasets = [ChordVideoDataset(videos, size=(32, 32)) for _ in range(2)]
    datasets[0][1]
    opened = Cache(tmp_path / "cache")
    video = opened[2]
    os.rename(tmp_path / "cache", tmp_path / "moved")
    gone = rf"cache '{tmp_path}/cache' does not exist any more\. Open it where it is now\.$"
    for read in (lambda: opened.read(video), lambda: datasets[0][2], lambda: datasets[1][2]):
        with pytest.raises(NotFoundError, match=gone):
            read()


def test_cache_that_grew(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    names = ["b", "c", "a"]  # the third comes first in the order of keys
    for name in names:
        make_video(tmp_path / f"{name}.mp4", size=(64, 64), num_frames=8, planes=gray_planes, options={"crf": "4"})
    (tmp_path / "index.csv").write_text("path,label\nb.mp4,x\nc.mp4,x\n")
    build(tmp_path / "index.csv", tmp_path / "cache", jobs=1)
    sampler = RegularClipSampler(num_frames=2, stride=2)
    everything = ChordVideoDataset(tmp_path / "cache", clip_sampler=sampler, size=None)
    with Cache(tmp_path / "cache") as cache:
        keys = cache.keys()
    chosen = ChordVideoDataset(tmp_path / "cache", clip_sampler=sampler, size=None, videos=keys)
    unread = ChordVideoDataset(tmp_path / "cache", clip_sampler=sampler, size=None)
    expected = batches_of(everything)
    (tmp_path / "index.csv").write_text("path,label\na.mp4,new\nb.mp4,x\nc.mp4,x\n")
    build(tmp_path / "index.csv", tmp_path / "cache", jobs=1)
    assert_equal_batches(batches_of(chosen, 2, "fork"), expected)
    assert_equal_batches(batches_of(everything), expected)  # this process looks at the catalog that it opened
    assert_equal_batches(batches_of(everything, 2, "fork"), expected)  # and so do its children
    with pytest.raises(UsageError, match="had 2 videos when the dataset was made. Recreate the dataset"):
        batches_of(everything, 2, "forkserver")
    with pytest.raises(UsageError, match="had 2 videos when the dataset was made. Recreate the dataset"):
        unread[0]
    assert len(ChordVideoDataset(tmp_path / "cache")) == 3


@pytest.fixture(scope="module")
def red_and_blue(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A cache of four videos whose labels can be seen, and one without a label."""
    folder = tmp_path_factory.mktemp("demo")
    rows = []
    for number, label in enumerate(["red", "blue", "red", "blue", ""]):

        def planes(frame: int, width: int, height: int, label: str = label) -> tuple[np.ndarray, ...]:
            y, u, v = gray_planes(frame % 40, width, height)
            {"red": v, "blue": u}.get(label, v)[:] = 200
            return y, u, v

        make_video(folder / f"{number}.mp4", size=(96, 64), num_frames=60, planes=planes)
        rows.append(f"{number}.mp4,{label}\n")
    (folder / "index.csv").write_text("path,label\n" + "".join(rows))
    build(folder / "index.csv", folder / "cache", jobs=1)
    return folder / "cache"


def run_demo(cache: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", REPOSITORY / "scripts/train_demo.py", cache, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def losses_of(last_line: str) -> tuple[float, float]:
    match = re.fullmatch(
        r"batch \d+ ms \(median\), \d+\.\d samples/s, \d+% of the time waiting for data, "
        r"loss (\d+\.\d+) at first, (\d+\.\d+) at last",
        last_line,
    )
    assert match, last_line
    return float(match[1]), float(match[2])


@pytest.mark.slow
def test_demo_learns_labels(red_and_blue: Path) -> None:
    # Not of 4: every eighth batch of those is of one class, which batch normalization may stumble over at the end
    result = run_demo(red_and_blue, "--steps", "30", "--workers", "1", "--batch-size", "8")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "64 clips an epoch, learning 2 classes"
    assert [line.split()[1] for line in lines[1:-1]] == ["1", "10", "20", "30"]
    first, last = losses_of(lines[-1])
    assert last < first / 2
