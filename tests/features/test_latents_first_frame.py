"""The first frame as the condition of image-to-video: as the pipelines of diffusers prepare it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from helpers.networks import COMPRESSION, load_vae, make_vae

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.engine.choice import Engine
from chordcache.features.read_side import FIRST_FRAME_LATENTS
from chordcache.features.registry import resolve

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "cogvideox": ("AutoencoderKLCogVideoX", {"scaling_factor": 0.7}),
    "cogvideox-1.5": ("AutoencoderKLCogVideoX", {"scaling_factor": 0.7, "invert_scale_latents": True}),
    "hunyuanvideo": ("AutoencoderKLHunyuanVideo", {}),
    "ltx": ("AutoencoderKLLTXVideo", {}),
    "wan": ("AutoencoderKLWan", {}),
    "wan-2.2": ("AutoencoderKLWan", {"is_residual": True}),
}
"""Family to the class of its VAE, and its settings"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """One video of two clips, which is as large as every VAE can take."""
    folder = tmp_path_factory.mktemp("first-frame")
    make_video(folder / "videos/a.mp4", num_frames=34, size=(64, 32))
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder / "index.json"


def build(index: Path, cache: Path, model: Path, **params: Any) -> cc.Cache:
    latents = {"model": str(model), "dtype": "float32", "clip_frames": 17, "first_frame": True, **params}
    config = config_from_json({"frames": {"codec": "raw", "short_side": None}, "features": {"latents": latents}})
    cc.build(
        index, cache, tiers=["lmdb", "npz"], features=["frames", "latents"], config=config, jobs=Engine("inline")
    )  # fmt: skip
    return cc.open_cache(cache)


def prepared(family: str, vae: Any, picture: np.ndarray, num_frames: int, patch: pytest.MonkeyPatch) -> torch.Tensor:
    """Return the condition [axes as of the trainer] that the family's pipeline makes of the first frame."""
    image = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 127.5 - 1
    per_row, pixels = COMPRESSION[FAMILIES[family][0]]
    arguments: Mapping[str, Any] = {
        "batch_size": 1, "num_channels_latents": vae.config.get("latent_channels", 4), "height": picture.shape[0],
        "width": picture.shape[1], "num_frames": num_frames, "dtype": torch.float32, "device": torch.device("cpu"),
    }  # fmt: skip
    condition: torch.Tensor
    pipeline: Any = SimpleNamespace(vae=vae, vae_scale_factor_temporal=per_row, vae_scale_factor_spatial=pixels)
    with torch.no_grad():
        if family.startswith("cogvideox"):
            kind: Any = diffusers.CogVideoXImageToVideoPipeline
            pipeline.vae_scaling_factor_image = vae.config.scaling_factor
            pipeline.transformer = SimpleNamespace(config=SimpleNamespace(patch_size_t=None))
            pipeline.scheduler = SimpleNamespace(init_noise_sigma=1.0)
            _take_mode(kind, patch)
            condition = kind.prepare_latents(pipeline, image, **arguments)[1]
            return condition[0]
        if family == "hunyuanvideo":
            kind = diffusers.HunyuanVideoImageToVideoPipeline
            pipeline.vae_scaling_factor = vae.config.scaling_factor
            condition = kind.prepare_latents(pipeline, image, **arguments)[1]
            condition[:, :, 1:] = 0  # as in its __call__
            return condition[0]
        if family == "ltx":
            kind = diffusers.LTXImageToVideoPipeline
            pipeline.vae_temporal_compression_ratio, pipeline.vae_spatial_compression_ratio = per_row, pixels
            pipeline.transformer_spatial_patch_size = pipeline.transformer_temporal_patch_size = 1
            pipeline._normalize_latents, pipeline._pack_latents = kind._normalize_latents, lambda latents, *_: latents
            _take_mode(kind, patch)
            latents, mask = kind.prepare_latents(pipeline, image, **arguments)
            condition = latents * mask  # noise is in the other rows
            return condition[0]
        kind = diffusers.WanImageToVideoPipeline
        pipeline.config = SimpleNamespace(expand_timesteps=family == "wan-2.2")
        condition = kind.prepare_latents(pipeline, image, **arguments)[1][0]
        if family == "wan":
            return condition[per_row:]  # after the channels of the mask
        return torch.cat([condition, torch.zeros(4, (num_frames - 1) // per_row, *condition.shape[2:])], dim=1)


def _take_mode(pipeline: Any, patch: pytest.MonkeyPatch) -> None:
    """Take the mean in place of a sample, which these pipelines draw."""
    names = pipeline.prepare_latents.__globals__
    patch.setitem(names, "retrieve_latents", partial(names["retrieve_latents"], sample_mode="argmax"))


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_condition_of_the_pipeline(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    kind, settings = FAMILIES[family]
    vae = make_vae(kind, tmp_path / "vae", **settings)
    features = ("latents.normalized", FIRST_FRAME_LATENTS)
    with build(index, tmp_path / "cache", vae) as cache:
        network, frames = load_vae(vae), cache.read(0)
        for start, length in ((0, 17), (17, 17), (17, 9)):
            dataset = cc.ChordVideoDataset(cache, features=features, clip_sampler=Numbers(start, start + length))
            sample = dataset[0]
            expected = prepared(family, network, frames[start], length, monkeypatch)
            assert sample["latents_first_frame"].shape == sample["latents"].shape == expected.shape
            assert sample["latents_first_frame"].dtype == torch.float32
            assert expected.abs().max() > 0.01
            assert torch.allclose(sample["latents_first_frame"], expected, rtol=1e-4, atol=1e-5)


class Numbers:
    """A sampler of the frames of a range."""

    def __init__(self, start: int, stop: int) -> None:
        self._numbers = np.arange(start, stop)

    def frame_numbers(self, video: object, request: object) -> np.ndarray:
        return self._numbers


def test_clips_that_begin_elsewhere_are_refused(index: Path, tmp_path: Path) -> None:
    with build(index, tmp_path / "cache", make_vae("AutoencoderKLWan", tmp_path / "vae"), moments=True) as cache:
        for start, stop in ((1, 9), (0, 18), (16, 20), (18, 34)):
            dataset = cc.ChordVideoDataset(cache, features=FIRST_FRAME_LATENTS, clip_sampler=Numbers(start, stop))
            message = (
                rf"^clip_sampler: got frames {start} to {stop - 1} of video '.*' for 'latents\.first_frame', expected "
                r"frames of one clip of 17, from its first on\. Take LatentClipSampler\.$"
            )
            with pytest.raises(cc.UsageError, match=message):
                dataset[0]
        sampler = {"name": "latent_clips"}
        dataset = cc.ChordVideoDataset(cache, features=("latents", FIRST_FRAME_LATENTS), clip_sampler=sampler)
        batch = cc.collate([dataset[epoch, 0] for epoch in range(4)])
        assert batch["latents"].shape == batch["latents_first_frame"].shape == (4, 5, 4, 4, 8)
        stored = cache.read(0, FIRST_FRAME_LATENTS)
        assert stored.shape == cache.read(0, "latents").shape == (10, 4, 4, 8)
        assert any(np.array_equal(batch["latents_first_frame"][0], stored[start : start + 5]) for start in (0, 5))


def test_a_cache_without_it(index: Path, tmp_path: Path) -> None:
    with build(index, tmp_path / "cache", make_vae("AutoencoderKLWan", tmp_path / "vae"), first_frame=False) as cache:
        assert cache[0].feature("latents").num_rows.keys() == {"latents"}
        with pytest.raises(cc.NotFoundError, match=r"'latents\.first_frame' of video .* is not cached"):
            cc.ChordVideoDataset(cache, features=FIRST_FRAME_LATENTS, clip_sampler=Numbers(0, 17))[0]


@pytest.mark.parametrize(("kind", "value", "message"), [
    ("AutoencoderKL", True, "got True for a VAE of pictures, expected one that compresses time"),
    ("AutoencoderKLWan", "yes", "got 'yes', expected one of True, False"),
])  # fmt: skip
def test_values_that_are_refused(tmp_path: Path, kind: str, value: object, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": kind}))
    latents = {"model": str(tmp_path), "first_frame": value}
    with pytest.raises(cc.UsageError, match=rf"^features\.latents\.first_frame: {message}"):
        resolve("latents", config_from_json({"features": {"latents": latents}}))
