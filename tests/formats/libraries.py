"""Exports read by the libraries they are for. No test_*.py, since they need the environment of `make test-formats`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import mlcroissant
import numpy as np
import pytest
import simplejpeg
import torch
import webdataset

import chordcache as cc
from chordcache.formats.decode_video import decode_video

# WebDataset leaves its files to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

NUM_FRAMES = (24, 33, 40, 61)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path], clips: Path) -> Path:
    """A folder with a cache of made videos with sound and B-frames, and one of the four clips."""
    work = tmp_path_factory.mktemp("export")
    for name, num_frames in zip("abcd", NUM_FRAMES, strict=True):
        make_video(work / "videos" / f"{name}.mp4", num_frames=num_frames, audio=True, gop=12)
    for folder, name in ((work / "videos", "made"), (clips, "clips")):
        cc.scan([folder], output=work / f"{name}.json", labels="dir", jobs=1)
        cc.build(work / f"{name}.json", work / name, jobs=1)
    return work


def samples(folder: Path, decoder: Any = None) -> list[dict[str, Any]]:
    dataset = webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False)
    return list(dataset.decode(decoder) if decoder else dataset.decode())


@pytest.mark.parametrize("name", ["made", "clips"])
def test_jpegs_of_webdataset(work: Path, tmp_path: Path, name: str) -> None:
    summary = cc.export(work / name, tmp_path / "out", to="webdataset", clip=8, stride=2, shards=2)
    cache = cc.open_cache(work / name)
    got = samples(tmp_path / "out")
    assert len(got) == summary.num_samples == len({sample["__key__"] for sample in got})
    for sample in got:
        facts = sample["json"]
        start = int(sample["__key__"].rpartition("-")[2]) * 16
        jpegs = cache.read_encoded(facts["key"], range(start, start + 16, 2))
        assert isinstance(jpegs, list)
        raw = dict(webdataset_files(tmp_path / "out", sample["__key__"]))
        assert [raw[f"{place:03}.jpg"] for place in range(8)] == jpegs
        assert facts.get("label") == cache[facts["key"]].label


def webdataset_files(folder: Path, key: str) -> list[tuple[str, bytes]]:
    raw = webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False)
    (sample,) = (sample for sample in raw if sample["__key__"] == key)
    return [(name, data) for name, data in sample.items() if name.endswith("jpg")]


@pytest.mark.parametrize("name", ["made", "clips"])
@pytest.mark.parametrize("clip", [None, 8])
def test_packets_of_webdataset(work: Path, clips: Path, tmp_path: Path, name: str, clip: int | None) -> None:
    """The decoder of WebDataset gives the frames of the source, and the sound with a whole video."""
    cc.export(work / name, tmp_path / "out", to="webdataset", frames="mp4", clip=clip)
    folder = clips if name == "clips" else work / "videos"
    for sample in samples(tmp_path / "out", decode_video):
        frames, sound, info = sample["mp4"]
        facts = sample["json"]
        with cc.MP4Source().open(folder / facts["path"]) as source:
            expected = source.get_frames(facts["source_frames"])
            np.testing.assert_array_equal(frames[facts["frames"]].numpy(), expected)
            if clip is None:
                assert len(frames) == source.num_frames
                assert info["video_fps"] == pytest.approx(source.fps)
            if clip is None and name == "made":
                seconds = len(frames) / source.fps
                chunk = source.get_audio_chunk(float(source.pts_seconds[0]), seconds)
                assert info["audio_fps"] == source.sample_rate
                assert sound.shape[1] == pytest.approx(len(chunk), abs=2)
                np.testing.assert_allclose(sound[:, : len(chunk) - 2].T, chunk[:-2], atol=1e-6)


def test_packets_without_a_decoder(work: Path, tmp_path: Path) -> None:
    cc.export(work / "made", tmp_path / "out", to="webdataset", frames="mp4")
    dataset = webdataset.WebDataset(str(tmp_path / "out" / "000000.tar"), shardshuffle=False)
    pairs = list(dataset.decode().to_tuple("mp4", "json"))
    assert len(pairs) == len(NUM_FRAMES)
    assert all(data[4:8] == b"ftyp" and facts["root"] == "videos" for data, facts in pairs)


RANK = """
import json, os, sys
import torch, torch.distributed as dist, webdataset
dist.init_process_group("gloo")
shards = sorted(os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1]) if name.endswith(".tar"))
dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), nodesplitter=webdataset.split_by_node, seed=0)
dataset = dataset.decode("rgb8").map(lambda sample: sample["__key__"])
epochs = []
for epoch in range(3):
    keys = []
    for batch in torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list):
        dist.all_reduce(torch.ones(1))  # hangs where another rank has fewer batches
        keys += batch
    epochs.append(keys)
    dist.barrier()
with open(f"{sys.argv[2]}-{dist.get_rank()}.json", "w") as file:
    json.dump(epochs, file)
dist.destroy_process_group()
"""


def test_two_ranks_with_two_workers(work: Path, tmp_path: Path) -> None:
    """Under torchrun, all ranks have the same number of samples, and no two the same."""
    summary = cc.export(work / "made", tmp_path / "out", to="webdataset", clip=4, shards=4)
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, tmp_path / "rank.py", tmp_path / "out", tmp_path / "keys"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"keys-{rank}.json").read_text()) for rank in range(2)]
    for first, second in zip(*ranks, strict=True):
        assert len(first) == len(second) == summary.num_samples // 2
        assert len({*first, *second}) == summary.num_samples


def test_the_decoder_leaves_other_files_to_others() -> None:
    assert decode_video(".json", b"{}") is None
    with pytest.raises(cc.MediaError):
        decode_video("clip.mp4", b"not a video")


def test_a_silent_video_has_no_samples(clips: Path) -> None:
    decoded = decode_video(".mp4", (clips / "street" / "bikes.mp4").read_bytes())
    assert decoded is not None
    frames, sound, info = decoded
    assert (frames.dtype, sound.dtype, sound.shape) == (torch.uint8, torch.float32, (1, 0))
    assert "audio_fps" not in info


def test_datasets(work: Path, tmp_path: Path) -> None:
    cc.export(work / "made", tmp_path / "out", to="parquet", shards=2)
    files = sorted(map(str, (tmp_path / "out").glob("*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "hub"))
    assert rows.features["frames"] == datasets.List(datasets.Image())
    raw = rows.cast_column("frames", datasets.List(datasets.Image(decode=False)))
    cache = cc.open_cache(work / "made")
    for video, row, encoded in zip(cache, rows, raw, strict=True):
        jpegs = cache.read_encoded(video, range(video.num_frames))
        assert [frame["bytes"] for frame in encoded["frames"]] == jpegs
        assert np.array_equal(np.asarray(row["frames"][3]), simplejpeg.decode_jpeg(jpegs[3]))
        assert row["pts_seconds"] == video.pts_seconds.tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:rdflib", "ignore::DeprecationWarning:mlcroissant")
def test_a_passport_is_metadata_of_croissant(work: Path, tmp_path: Path) -> None:
    passport = cc.passport(work / "made", tmp_path / "passport.json", splits={"train": lambda video: True})
    dataset = mlcroissant.Dataset(jsonld=str(tmp_path / "passport.json"))
    assert not dataset.metadata.issues.errors
    rows = {row["videos/key"]: row for row in dataset.records("videos")}
    assert rows == {
        key: {f"videos/{name}": getattr(row, name) for name in row.__struct_fields__}
        for key, row in passport.rows.items()
    }
