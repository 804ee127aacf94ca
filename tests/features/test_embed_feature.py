"""Embeddings of frames: equal to what transformers computes of the cached frames, each at the row of its frame."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from helpers import processes

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.records import RunSummary

SIZES = {"wide": (64, 48), "tall": (40, 72), "small": (26, 20)}
"""Name of each video to the (width, height) of its frames, [pixels]"""

VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


def make_network(kind: str) -> Any:
    """Return a small network of the real architecture with random weights."""
    torch.manual_seed(0)
    if kind == "clip":
        config = transformers.CLIPConfig(
            text_config=TEXT, vision_config={**VISION, "projection_dim": 24}, projection_dim=24
        )
        return transformers.CLIPModel(config)
    if kind == "clip_vision":
        return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VISION))
    if kind == "siglip":
        return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**VISION))
    return transformers.Dinov2Model(
        transformers.Dinov2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=40, patch_size=8
        )
    )


def make_model(folder: Path, kind: str) -> Path:
    """Save a network and the image processor of its architecture."""
    processor = {
        "siglip": lambda: transformers.SiglipImageProcessor(size={"height": 32, "width": 32}),
        "dinov2": lambda: transformers.BitImageProcessor(size={"shortest_edge": 37}, crop_size=32),
    }.get(kind, lambda: transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32))()
    processor.save_pretrained(folder)
    make_network(kind).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model of each kind. Do not write into it."""
    folder = tmp_path_factory.mktemp("models")
    for kind in ("clip", "clip_vision", "siglip", "dinov2"):
        make_model(folder / kind, kind)
    return folder


def noise(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return planes of which no two frames are alike."""
    random = np.random.default_rng(number)
    luma, *chroma = (random.integers(16, 236, (height // step, width // step), np.uint8) for step in (1, 2, 2))
    return luma, chroma[0], chroma[1]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """List of videos of several sizes."""
    folder = tmp_path_factory.mktemp("videos")
    for number, (name, size) in enumerate(SIZES.items()):
        make_video(folder / f"{name}.mp4", num_frames=7 + number, size=size, planes=noise)
    (folder / "list.csv").write_text("\n".join(["path", *(f"{name}.mp4" for name in SIZES)]) + "\n")
    return folder / "list.csv"


def build(work: Path, videos: Path, model: Path, jobs: Any = None, **params: Any) -> RunSummary:
    """Build raw frames and embeddings. Batches are smaller than a video."""
    section = {"model": str(model), "dtype": "float32", "batch_size": 5, **params}
    config = {"frames": {"codec": "raw"}, "features": {"embed": section, "flow": None, "motion": None, "mel": None}}
    (work / "embed.yaml").write_text(yaml.dump(config))
    return cc.build(
        videos, work / "cache", tiers=["lmdb", "npz"], config=work / "embed.yaml", jobs=jobs or Engine("inline")
    )


def direct(frames: np.ndarray, model: Path, network: str, output: str) -> np.ndarray:
    """Return an output of transformers for all frames of a video at once."""
    processor = transformers.AutoImageProcessor.from_pretrained(model, backend="pil")
    pixels = processor(list(frames), return_tensors="pt", input_data_format="channels_last")
    loaded = getattr(transformers, network).from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        return np.asarray(loaded(**pixels)[output])


def differences(cache: Path, model: Path, network: str, output: str) -> list[float]:
    """Return the largest difference of each video."""
    with cc.open_cache(cache) as opened:
        largest = []
        for video in opened:
            rows = opened.read(video, "embed")
            expected = direct(opened.read(video, "frames"), model, network, output)
            assert rows.dtype == np.float32
            assert rows.shape == expected.shape
            assert len(rows) == video.num_frames
            assert np.abs(np.diff(rows, axis=0)).max(axis=tuple(range(1, rows.ndim))).min() > 1e-2, "frames are alike"
            largest.append(float(np.abs(rows - expected).max()))
        return largest


@pytest.mark.parametrize(
    ("kind", "output", "network", "name"),
    [
        ("clip", "pooled", "CLIPVisionModel", "pooler_output"),
        ("clip", "projected", "CLIPVisionModelWithProjection", "image_embeds"),
        ("clip_vision", "tokens", "CLIPVisionModel", "last_hidden_state"),
        ("siglip", "pooled", "SiglipVisionModel", "pooler_output"),
        ("dinov2", "pooled", "Dinov2Model", "pooler_output"),
        ("dinov2", "tokens", "Dinov2Model", "last_hidden_state"),
    ],
)
def test_embeddings_are_those_of_transformers(
    tmp_path: Path, videos: Path, models: Path, kind: str, output: str, network: str, name: str
) -> None:
    assert build(tmp_path, videos, models / kind, output=output).num_done == len(SIZES)
    assert max(differences(tmp_path / "cache", models / kind, network, name)) <= 1e-5


def test_samples_of_the_dataset(tmp_path: Path, videos: Path, models: Path) -> None:
    """An embedding belongs to the whole frame, whatever part of it a sample shows."""
    build(tmp_path, videos, models / "dinov2", dtype="float16")
    dataset = cc.ChordVideoDataset(
        tmp_path / "cache",
        clip_sampler=cc.RegularClipSampler(num_frames=3, stride=2),
        features=("frames", "embed"),
        size=(16, 16),
    )
    batch = cc.collate([dataset[number] for number in range(len(dataset))])
    assert batch["embed"].shape == (len(SIZES), 3, 32)
    assert batch["embed"].dtype == torch.float16
    with cc.open_cache(tmp_path / "cache") as opened:
        for video, embedding in zip(opened, batch["embed"].numpy(), strict=True):
            rows = opened.read(video, "embed")
            times = batch["pts_seconds"][list(opened.keys()).index(video.key)].numpy()
            numbers = [int(np.flatnonzero(video.pts_seconds == time)[0]) for time in times]
            assert np.diff(numbers).tolist() == [2, 2]
            assert np.array_equal(embedding, rows[numbers])
            assert np.array_equal(opened.read(video, "embed", indices=[5, 0, 5]), rows[[5, 0, 5]])


def test_what_makes_them_again(tmp_path: Path, videos: Path, models: Path) -> None:
    model = Path(shutil.copytree(models / "clip", tmp_path / "model"))
    build(tmp_path, videos, model)
    assert build(tmp_path, videos, model, batch_size=2, device="cpu").num_up_to_date == len(SIZES)
    assert build(tmp_path, videos, model, output="projected").num_done == len(SIZES)
    for file, old, new in (("preprocessor_config.json", b"0.48", b"0.47"), ("model.safetensors", b"\0\0", b"\0\1")):
        content = (model / file).read_bytes()
        (model / file).write_bytes(new.join(content.rsplit(old, 1)))  # of the same size
        assert build(tmp_path, videos, model, output="projected").num_done == len(SIZES)


def test_models_that_cannot_be_used(tmp_path: Path, videos: Path, models: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"model_type": "siglip2"}')
    shutil.copytree(models / "clip", tmp_path / "raw", ignore=lambda *_: ["preprocessor_config.json"])
    shutil.copytree(models / "clip", tmp_path / "padded")
    (tmp_path / "padded/preprocessor_config.json").write_text(
        '{"image_processor_type": "CLIPImageProcessor", "do_pad": 1}'
    )
    shutil.copytree(models / "dinov2", tmp_path / "dino")
    for name, params, message in [
        ("nowhere", {}, "expected a folder with the config.json of a model (FileNotFoundError). Check the path"),
        ("other", {}, "of type 'siglip2', expected one of: clip, clip_vision_model, dinov2, siglip, siglip_vision_"),
        ("raw", {}, "expected a folder with the preprocessor_config.json of a model (FileNotFoundError)."),
        ("padded", {}, "got do_pad: 1, which is not supported, expected only the settings of BitImageProcessor, "),
        ("dino", {"output": "projected"}, "of type 'dinov2', expected one of: clip, clip_vision_model"),
    ]:
        with pytest.raises(cc.UsageError, match="^feature 'embed': features.embed.model.*/" + name) as raised:
            build(tmp_path, videos, tmp_path / name, **params)
        assert message in str(raised.value)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(cc.UsageError, match=r"device: got cuda:99, expected one of: auto, cpu"):
        build(tmp_path, videos, models / "clip", device="cuda:99", jobs=1)
    assert not list((tmp_path / "cache").glob("videos/*/*"))
    assert not processes.quarantine(tmp_path / "cache")


def test_networks_that_cannot_be_used(tmp_path: Path, videos: Path, models: Path) -> None:
    """They are found when the weights are loaded, and before the first video."""
    large = Path(shutil.copytree(models / "siglip", tmp_path / "large"))
    transformers.SiglipImageProcessor(size={"height": 64, "width": 64}).save_pretrained(large)
    headless = Path(shutil.copytree(models / "siglip", tmp_path / "headless"))
    config = transformers.SiglipVisionConfig(**VISION, vision_use_head=False)
    transformers.SiglipVisionModel(config).save_pretrained(headless)
    for model, params, message in [
        (
            large,
            {},
            "features.embed.model: got '.*large', whose image processor makes pictures of 64x64 pixels, expected 32x32",
        ),
        (headless, {}, "features.embed.output: got pooled, which '.*headless' lacks, expected tokens"),
        (
            models / "clip_vision",
            {"output": "projected"},
            "1 of the weights of CLIPVisionModelWithProjection are absent",
        ),
    ]:
        with pytest.raises(cc.UsageError, match=message):
            build(tmp_path, videos, model, **params)
        assert not processes.quarantine(tmp_path / "cache")
    assert build(tmp_path, videos, headless, output="tokens").num_done == len(SIZES)
