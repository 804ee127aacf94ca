"""Datasets that read files through a source have the samples of a cache."""

from __future__ import annotations

import gc
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.inline import HERE
from helpers.training import assert_same, make_dataset

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.config.picture import PictureConfig
from chordcache.errors import MediaError, NotFoundError, UsageError
from chordcache.index.index_files import Index
from chordcache.sources.live import StreamSource
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.sources.video_source import VideoSource
from chordcache.train.samplers.clip_samplers import KeyframeSampler
from chordcache.train.videos import from_files

RAW = {"frames": {"codec": "raw", "short_side": 48, "fps": 12}}
PICTURE = PictureConfig(short_side=48, fps=12)
SAMPLER = cc.RandomClipSampler(num_frames=4, stride=2)
SOURCES = [cc.MP4Source, MappedMP4Source]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("sources") / "videos"
    (folder / "run").mkdir(parents=True)
    options = {"bf": "3", "x264-params": "b-adapt=0"}
    make_video(folder / "a.mp4", num_frames=40, size=(96, 64), options=options, audio=True)
    make_video(folder / "run" / "b.mp4", num_frames=33, size=(96, 64), rotation=90)
    make_video(folder / "run" / "c.mp4", num_frames=30, size=(128, 64))
    (folder / "notes.txt").write_text("not a video")
    return folder


@pytest.fixture(scope="module")
def index(videos: Path) -> Index:
    return cc.scan([videos], level="content", labels="dir", output=videos.parent / "index.json")


@pytest.fixture(scope="module")
def cache(index: Index, videos: Path) -> Path:
    cc.build(index, videos.parent / "cache", tiers=["lmdb"], config=config_from_json(RAW), jobs=HERE)
    return videos.parent / "cache"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("sampler", [SAMPLER, cc.RandomClipSampler(num_frames=4, fps=5)])
def test_samples_are_those_of_a_raw_cache(
    cache: Path, index: Index, source: type[cc.MP4Source | MappedMP4Source], sampler: Any
) -> None:
    options: dict[str, Any] = {"clip_sampler": sampler, "size": (40, 40), "seed": 2}
    dataset = cc.ChordVideoDataset(from_files(source(PICTURE), index=index), **options)
    # A clip is drawn from the index of the sample, and a cache alone has its videos in another order
    expected = cc.ChordVideoDataset(cache, videos=list(_keys(dataset)), **options)
    assert len(dataset) == len(expected) == 3
    assert dataset.classes == expected.classes == ["run"]
    assert dataset.label_ids.tolist() == expected.label_ids.tolist() == [-1, 0, 0]
    for epoch in range(3):
        for number in range(3):
            assert_same(dataset[epoch, number], expected[epoch, number])


def _keys(dataset: cc.ChordVideoDataset) -> Iterator[str]:
    for number in range(len(dataset)):
        yield dataset.describe((0, number))[0].key


@pytest.mark.parametrize("given", ["folder", "files", "paths"])
def test_videos_of_folders_and_files(cache: Path, videos: Path, given: str) -> None:
    files = [videos / "a.mp4", videos / "run" / "b.mp4", videos / "run" / "c.mp4"]
    chosen: Any = {"folder": str(videos), "files": list(map(str, files)), "paths": files}[given]
    dataset = cc.ChordVideoDataset(from_files(cc.MP4Source(PICTURE), chosen), size=(40, 40), clip_sampler=SAMPLER)
    assert len(dataset) == 3
    with pytest.warns(UserWarning, match="^classes: got no label in any sample"):
        assert dataset.classes == []
    assert dataset.label_ids.tolist() == [-1, -1, -1]
    keys = list(_keys(dataset))
    assert dataset[0]["label"] == -1
    if given == "folder":
        expected = cc.ChordVideoDataset(cache, videos=keys, size=(40, 40), clip_sampler=SAMPLER)
        for number in range(3):
            assert_same(dataset[0, number], expected[0, number], but=("label",))


class _Halves(cc.MP4Source):
    """A source of one's own."""

    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        for frame in super()._read(wanted):
            yield frame // 2


def test_a_source_of_ones_own(videos: Path) -> None:
    plain, halves = (
        cc.ChordVideoDataset(from_files(source, videos / "a.mp4"), size=None, clip_sampler=SAMPLER)[0, 0]
        for source in (cc.MP4Source(), _Halves())
    )
    assert torch.equal(halves["frames"], plain["frames"] // 2)


@pytest.mark.parametrize("source", SOURCES)
def test_loaders(videos: Path, source: type[cc.MP4Source | MappedMP4Source]) -> None:
    dataset = cc.ChordVideoDataset(from_files(source(PICTURE), videos), size=(40, 40), clips_per_video=3)
    batches = [list(cc.ClipLoader(dataset, 2, num_threads=n)) for n in (1, 3)]
    batches += [list(cc.make_loader(dataset, 2, n)) for n in (0, 2)]
    batches.append(list(cc.ClipLoader(pickle.loads(pickle.dumps(dataset)), 2)))
    for loaded in batches[1:]:
        assert_same(loaded, batches[0])


@pytest.mark.parametrize(("source", "given"), [(cc.MP4Source, "folder"), (MappedMP4Source, "index")])
def test_sound_is_that_of_a_cache(
    index: Index, videos: Path, tmp_path: Path, source: type[cc.MP4Source], given: str
) -> None:
    config = config_from_json({**RAW, "features": {"mel": {"n_mels": 40}, "waveform": {}}})
    features = ["frames", "mel", "waveform"]
    cc.build(index, tmp_path / "cache", features=features, config=config, jobs=HERE)
    options: dict[str, Any] = {"clip_sampler": SAMPLER, "size": (40, 40), "features": features, "missing": "zeros"}
    files = {"files": videos} if given == "folder" else {"index": index}
    dataset = cc.ChordVideoDataset(from_files(source(PICTURE), config=config, **files), **options)
    expected = cc.ChordVideoDataset(tmp_path / "cache", videos=list(_keys(dataset)), **options)
    assert len(dataset) == len(expected) == 3
    names = ("label",) if given == "folder" else ()  # an index has the labels
    for number in range(3):
        sample = dataset[0, number]
        assert (sample["audio"].shape[0], sample["waveform"].ndim) == (40, 1)
        assert_same(sample, expected[0, number], but=names)
    assert dataset[0, 0]["present"].tolist() == [True, True, True]
    copy = pickle.loads(pickle.dumps(dataset))  # as for workers that are spawned
    assert_same(copy[0, 1], dataset[0, 1])


def test_the_index_of_files_is_removed(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dataset = cc.ChordVideoDataset(from_files(cc.MP4Source(PICTURE), videos / "a.mp4"), features=["mel"])
    assert dataset[0]["audio"].any()
    assert len(list(tmp_path.glob("chordcache-*"))) == 1
    del dataset
    gc.collect()
    assert list(tmp_path.glob("chordcache-*")) == []


@pytest.mark.parametrize(("mapped", "source"), [(False, cc.MP4Source), (True, MappedMP4Source)])
def test_a_config_switches_the_source(
    cache: Path, videos: Path, index: Index, tmp_path: Path, mapped: bool, source: type[VideoSource]
) -> None:
    train: dict[str, Any] = {
        "dataset": {"size": [40, 40]},
        "clip_sampler": {"name": "random", "num_frames": 4, "stride": 2},
    }
    config: dict[str, Any] = {
        **RAW,
        "train": {**train, "source": {"name": "mp4", "mapped": mapped, "path": str(videos)}},
    }
    dataset = make_dataset(config)
    assert type(dataset._videos._source) is source
    cached = {**train, "source": {"name": "cache", "path": str(cache), "videos": list(_keys(dataset))}}
    of_cache = make_dataset({**RAW, "train": cached})
    for number in range(3):
        assert_same(dataset[0, number], of_cache[0, number], but=("label",))
    index.write(tmp_path / "index.json")
    config["train"]["source"] = {"name": "mp4", "index": str(tmp_path / "index.json")}
    assert make_dataset(config).classes == ["run"]
    with pytest.raises(UsageError, match="^train.source: got the name 'stream', expected one of cache, index, mp4$"):
        make_dataset({"train": {"source": {"name": "stream"}}})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (
            {"source": _Halves(), "features": ["frames", "mel"]},
            "^features: got 'mel' with a _Halves, expected only frames. For sound, take MP4Source or MappedMP4Source",
        ),
        (
            {"features": ["frames", "flow"]},
            "^features: got 'flow' with a MP4Source, expected only frames, librosa, mel, waveform.* build a cache",
        ),
        ({"videos": "train.txt"}, "^videos: got a selection and a set of videos, expected one of them$"),
        ({"index": "index.json"}, "^index and files: got both with a MP4Source, expected one of them"),
        ({"files": None}, "^index and files: got none with a MP4Source, expected one of them"),
        ({"files": lambda video: True}, "^files: got <function .*, expected a folder, or a sequence of paths"),
        ({"files": []}, "^files: got no video, expected a folder with videos"),
        (
            {"source": _Halves(), "clip_sampler": KeyframeSampler(4)},
            "^clip_sampler: got one that needs keyframes, expected one that needs",
        ),
        (
            {"source": StreamSource()},
            r"^source: got a StreamSource, expected a source of files. A live .* Loop over St",
        ),
    ],
)
def test_wrong_arguments(videos: Path, arguments: dict[str, Any], match: str) -> None:
    options = {"source": cc.MP4Source(), "files": videos, **arguments}
    of_set = {name: options.pop(name) for name in ("source", "files", "index") if name in options}
    with pytest.raises(UsageError, match=match):
        cc.ChordVideoDataset(from_files(**of_set), **options)


def test_videos_that_cannot_be_read(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such folder or file"):
        cc.ChordVideoDataset(from_files(cc.MP4Source(), tmp_path / "none.mp4"))
    (tmp_path / "broken.mp4").write_bytes(b"not a video")
    with pytest.raises(MediaError, match=r"cannot read '.*broken.mp4'"):
        cc.ChordVideoDataset(from_files(cc.MP4Source(), tmp_path))
    (tmp_path / "broken.mp4").unlink()
    (tmp_path / "link.mp4").symlink_to(videos / "a.mp4")
    with pytest.raises(UsageError, match="^files: got no video"):
        cc.ChordVideoDataset(from_files(cc.MP4Source(PictureConfig(short_side=None)), tmp_path))
