"""Moments of every VAE against diffusers, latents drawn from them, and the form in which training scripts take them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
import yaml
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from helpers.networks import COMPRESSION, load_vae, make_vae

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.engine.choice import Engine
from chordcache.features.networks.latent_rows import _normalized
from chordcache.features.registry import resolve
from chordcache.media.cropping import CropBox
from chordcache.train.samplers.clip_request import ClipRequest, RandomStream


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Two videos that need padding in space, in time or in both, depending on the VAE."""
    folder = tmp_path_factory.mktemp("moments")
    make_video(folder / "videos/a.mp4", num_frames=17, size=(64, 48))
    make_video(folder / "videos/b.mp4", num_frames=20, size=(44, 36))
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder / "index.json"


def build(index: Path, cache: Path, model: Path, **params: Any) -> cc.Cache:
    cache.parent.mkdir(exist_ok=True, parents=True)
    latents = {"model": str(model), "dtype": "float32", "moments": True, "batch_size": 1, **params}
    config = {"frames": {"codec": "raw", "short_side": None}, "features": {"latents": latents}}
    cache.with_suffix(".yaml").write_text(yaml.dump(config))
    cc.build(
        index, cache, tiers=["lmdb", "npz"], features=["frames", "latents"], config=cache.with_suffix(".yaml"),
        jobs=Engine("inline"),
    )  # fmt: skip
    return cc.open_cache(cache)


def direct(folder: Path, frames: np.ndarray, clip_frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and logarithm of the variance [shape=(t, C, h, w)] by diffusers, clip by clip."""
    vae, (per_row, pixels) = load_vae(folder), COMPRESSION[folder.name]
    height, width = frames.shape[1:3]
    frames = np.pad(frames, ((0, 0), (0, -height % pixels), (0, -width % pixels), (0, 0)), mode="edge")
    means, logvars = [], []
    for start in range(0, len(frames), clip_frames):
        clip = frames[start : start + clip_frames]
        clip = np.concatenate([clip, np.repeat(clip[-1:], -(len(clip) - 1) % per_row, axis=0)])
        picture = torch.from_numpy(clip).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        with torch.no_grad():
            posterior = vae.encode(picture[:, :, 0] if per_row == 1 else picture).latent_dist
        for values, moments in ((means, posterior.mean), (logvars, posterior.logvar)):
            values.append(moments[0].movedim(1, 0).numpy() if per_row > 1 else moments.numpy())
    return np.concatenate(means), np.concatenate(logvars)


def as_trained(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Return latents [shape=(1, C, t, h, w)] as the pipelines of diffusers normalize and order them."""
    config, kind = vae.config, type(vae).__name__
    if kind == "AutoencoderKLLTXVideo":
        normalize = diffusers.LTXImageToVideoPipeline._normalize_latents
        return normalize(latents, vae.latents_mean, vae.latents_std, config.scaling_factor)
    if kind in ("AutoencoderKLWan", "AutoencoderKLMochi"):
        mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (config.latents_mean, config.latents_std))
        return (latents - mean) * getattr(config, "scaling_factor", 1.0) / std
    scaled = latents * config.scaling_factor
    return scaled if kind == "AutoencoderKLHunyuanVideo" else scaled.permute(0, 2, 1, 3, 4)


@pytest.mark.parametrize("kind", sorted(COMPRESSION))
def test_moments_and_normalized_latents_are_those_of_diffusers(index: Path, tmp_path: Path, kind: str) -> None:
    settings = {"scaling_factor": 1.5} if kind == "AutoencoderKLLTXVideo" else {}
    folder = make_vae(kind, tmp_path / "models" / kind, **settings)
    per_row, _ = COMPRESSION[kind]
    clip_frames = 1 + 2 * per_row if per_row > 1 else 1
    with build(index, tmp_path / "cache", folder, clip_frames=1 + 2 * per_row) as cache:
        for video in cache:
            mean, logvar = direct(folder, cache.read(video, "frames"), clip_frames)
            assert np.abs(cache.read(video, "latents") - mean).max() <= 1e-5
            assert np.abs(cache.read(video, "latents.logvar") - logvar).max() <= 1e-5
        sampler = cc.RegularClipSampler(num_frames=9, stride=1)
        arguments: dict[str, Any] = {"clip_sampler": sampler, "videos": [cache[0].key]}
        drawn = cc.ChordVideoDataset(tmp_path / "cache", features=("latents",), **arguments)[0, 0]["latents"]
        sample = cc.ChordVideoDataset(tmp_path / "cache", features=("latents.normalized",), **arguments)[0, 0]
        assert sample["latents"].dtype == torch.float32
        with torch.no_grad():
            expected = as_trained(load_vae(folder), drawn.movedim(0, 1)[None])[0]
        assert sample["latents"].shape == expected.shape
        assert torch.allclose(sample["latents"], expected, rtol=1e-5, atol=1e-6)


def test_samples_are_drawn_from_the_posterior_by_their_own_random_numbers(index: Path, tmp_path: Path) -> None:
    build(index, tmp_path / "cache", make_vae("AutoencoderKLWan", tmp_path / "AutoencoderKLWan"), clip_frames=9)
    sampler = cc.RegularClipSampler(num_frames=9, stride=1)
    arguments: dict[str, Any] = {"clip_sampler": sampler, "features": ("latents",), "seed": 5}
    dataset = cc.ChordVideoDataset(tmp_path / "cache", **arguments)
    with cc.open_cache(tmp_path / "cache") as cache:
        numbers = sampler.frame_numbers(cache[0], ClipRequest())
        mean, logvar = (cache.read(cache[0], name, indices=numbers) for name in ("latents", "latents.logvar"))
    noise = (
        ClipRequest(seed=5, epoch=3, index=0).generator(RandomStream.LATENTS).standard_normal(mean.shape, np.float32)
    )
    posterior = DiagonalGaussianDistribution(torch.from_numpy(np.concatenate([mean, logvar], axis=1)))
    expected = posterior.mean + posterior.std * torch.from_numpy(noise)
    assert torch.allclose(dataset[3, 0]["latents"], expected, atol=1e-6)
    assert torch.equal(dataset[3, 0]["latents"], dataset[3, 0]["latents"])
    draws = np.stack([dataset[epoch, 0]["latents"] for epoch in range(200)])
    standardized = (draws - mean) / np.exp(logvar / 2)
    assert abs(standardized.mean()) < 0.02
    assert abs(standardized.std() - 1) < 0.02

    class Corner:
        def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
            return CropBox(16, 24, 24, 32, size=(24, 32))

    cropped = cc.ChordVideoDataset(tmp_path / "cache", crop=Corner(), videos=lambda v: v.width == 64, **arguments)
    assert cropped[0]["latents"].shape[-2:] == (3, 4)


def test_without_moments_the_mean_is_cached(index: Path, tmp_path: Path) -> None:
    folder = make_vae("AutoencoderKLWan", tmp_path / "AutoencoderKLWan")
    with build(index, tmp_path / "cache", folder, clip_frames=9, moments=False) as cache:
        video = cache[0]
        assert video.feature("latents").num_rows.keys() == {"latents"}
        expected = cache.read(video, "latents", 0, 9)
    sampler = cc.RegularClipSampler(num_frames=9, stride=1)
    dataset = cc.ChordVideoDataset(tmp_path / "cache", clip_sampler={"name": "latent_clips"}, features=("latents",))
    assert any(np.array_equal(dataset[epoch, 0]["latents"], expected) for epoch in range(20))
    with pytest.raises(
        cc.UsageError, match=r"^features: got 'latents' and 'latents\.normalized', expected one of them"
    ):
        cc.ChordVideoDataset(tmp_path / "cache", clip_sampler=sampler, features=("latents", "latents.normalized"))


@pytest.mark.parametrize(("normalization", "shape", "factor"), [
    ({"latents_mean": [0.0, 0.0], "latents_std": [0.5, 0.5]}, (2, 3, 4, 5), 2),
    ({"scaling_factor": 3.0}, (3, 2, 4, 5), 3),
])  # fmt: skip
def test_caches_that_do_not_state_the_axes(normalization: Any, shape: tuple[int, ...], factor: int) -> None:
    info: Any = SimpleNamespace(params={"normalization": normalization}, facts={})
    latents = np.arange(120, dtype=np.float32).reshape(3, 2, 4, 5)
    normalized = _normalized(latents, info)
    assert normalized.shape == shape
    assert np.array_equal(normalized, factor * (latents if shape == (3, 2, 4, 5) else latents.swapaxes(0, 1)))


@pytest.mark.parametrize(("kind", "settings", "params", "message"), [
    ("AutoencoderKLMochi", {}, {}, "clip_frames: got 81, expected 1 plus a multiple of 6, such as 79"),
    ("AutoencoderKLLTXVideo", {}, {"clip_frames": 20}, "clip_frames: got 20, expected 1 plus a multiple of 8, such as"),
    ("AutoencoderKLLTXVideo", {"patch_size": "4"}, {}, "model: got a config.json that compresses by .* expected whole"),
    ("AutoencoderKLMochi", {"spatial_expansions": 8}, {}, "model: got a config.json that compresses by .* expected wh"),
    ("AutoencoderKLWan", {}, {"moments": "yes"}, "moments: got 'yes', expected one of True, False"),
])  # fmt: skip
def test_keys_and_models_that_cannot_be_used(
    tmp_path: Path, kind: str, settings: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": kind, **settings}))
    with pytest.raises(cc.UsageError, match=rf"^features\.latents\.{message}"):
        resolve("latents", config_from_json({"features": {"latents": {"model": str(tmp_path), **params}}}))
