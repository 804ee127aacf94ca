"""Exports of latents and text: the layouts of musubi-tuner and of LTX's trainer, read by the safetensors package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
import transformers
import yaml
from helpers.networks import VAES
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.train.samplers.content_samplers import LatentClipSampler

WORDS = ["<pad>", "</s>", "<unk>", "the", "letter", "a", "b"]

SETTINGS: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 2,
}

LTX: dict[str, Any] = {
    "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8), "latent_channels": 6,
    "layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1, 1),
}  # fmt: skip


def make_models(folder: Path, family: str) -> None:
    torch.manual_seed(0)
    if family == "wan":
        diffusers.AutoencoderKLWan(**VAES["AutoencoderKLWan"]).save_pretrained(folder / "vae")
        transformers.UMT5EncoderModel(transformers.UMT5Config(**SETTINGS)).save_pretrained(folder / "text")
    else:
        diffusers.AutoencoderKLLTXVideo(**LTX).save_pretrained(folder / "vae")
        transformers.T5EncoderModel(transformers.T5Config(**SETTINGS)).save_pretrained(folder / "text")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    fast.save_pretrained(folder / "text")


def build_cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path], family: str) -> cc.Cache:
    """Latents of two videos, of one clip and of two, and their captions as the family's pipeline encodes them."""
    work = tmp_path_factory.mktemp(family)
    make_models(work / "models", family)
    for name, num_frames in (("a", 17), ("b", 34)):
        make_video(work / "videos" / f"{name}.mp4", num_frames=num_frames, size=(64, 64))
    (work / "list.csv").write_text("path,caption\nvideos/a.mp4,the letter a\nvideos/b.mp4,b\n")
    features = {
        "latents": {"model": str(work / "models/vae"), "clip_frames": 17, "dtype": "float16"},
        "text": {"model": str(work / "models/text"), "preset": family},
    }
    (work / "config.yaml").write_text(yaml.dump({"frames": {"short_side": None}, "features": features}))
    cc.build(
        work / "list.csv", work / family, config=work / "config.yaml", features=["latents", "text"],
        jobs=Engine("inline"),
    )  # fmt: skip
    return cc.open_cache(work / family)


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> cc.Cache:
    return build_cache(tmp_path_factory, make_video, "wan")


@pytest.fixture(scope="module")
def ltx(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> cc.Cache:
    return build_cache(tmp_path_factory, make_video, "ltx")


def sample_of(cache: cc.Cache, key: str, start: int) -> dict[str, Any]:
    """Return the normalized latents and the text of a clip as a dataset reads them."""
    dataset = cc.ChordVideoDataset(
        cache.path, features=("latents.normalized", "text"), clip_sampler=LatentClipSampler(), videos=[key], seed=0
    )
    for epoch in range(20):
        dataset.set_epoch(epoch)
        sample = dataset[0]
        if sample["pts_seconds"][0] == cache[key].pts_seconds[start]:
            return sample
    raise AssertionError(f"no clip at {start}")


@pytest.mark.parametrize("family", ["wan", "ltx"])
def test_a_file_for_each_clip(request: pytest.FixtureRequest, tmp_path: Path, family: str) -> None:
    cache = request.getfixturevalue(family)
    summary = cc.export(cache.path, tmp_path / "out", to="safetensors", clip=17)
    assert (summary.num_samples, summary.num_files) == (3, 3)
    for path in sorted((tmp_path / "out").glob("*.safetensors")):
        key, _, number = path.stem.rpartition("-")
        sample = sample_of(cache, key, int(number) * 17)
        arrays = load_file(path)
        assert arrays["latents"].dtype == np.float16
        np.testing.assert_array_equal(arrays["latents"], sample["latents"].numpy().astype(np.float16))
        np.testing.assert_array_equal(arrays["text"], sample["text"].numpy())
        np.testing.assert_array_equal(arrays["text_mask"], sample["text_mask"].numpy())


def test_a_video_without_a_caption(wan: cc.Cache, tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos" / "c.mp4", num_frames=17, size=(64, 64))
    (tmp_path / "list.csv").write_text("path\nvideos/c.mp4\n")
    cc.build(
        tmp_path / "list.csv", tmp_path / "cache", config=wan.path.parent / "config.yaml",
        features=["latents", "text"], jobs=Engine("inline"),
    )  # fmt: skip
    cc.export(tmp_path / "cache", tmp_path / "out", to="safetensors")
    (path,) = (tmp_path / "out").glob("*.safetensors")
    assert load_file(path).keys() == {"latents"}


def test_musubi_tuner(wan: cc.Cache, tmp_path: Path) -> None:
    summary = cc.export(wan.path, tmp_path / "out", to="musubi-wan", clip=17)
    assert (summary.num_samples, summary.num_files) == (3, 5)
    for video in wan:
        for start in range(0, video.num_frames, 17):
            path = tmp_path / "out" / f"{video.key}_{start:05}-017_0064x0064_wan.safetensors"
            (name, latents), *others = load_file(path).items()
            assert not others
            assert name == "latents_5x8x8_float16"
            assert latents.shape == (4, 5, 8, 8)
            expected = sample_of(wan, video.key, start)["latents"].numpy().astype(np.float16)
            np.testing.assert_array_equal(latents, expected)
            with safe_open(path, "numpy") as file:
                assert file.metadata() == {
                    "architecture": "wan", "format_version": "1.0.1", "width": "64", "height": "64",
                    "frame_count": "17",
                }  # fmt: skip
        path = tmp_path / "out" / f"{video.key}_wan_te.safetensors"
        num_tokens = len((video.caption or "").split()) + 1
        sample = sample_of(wan, video.key, 0)
        assert list(load_file(path)) == ["varlen_t5_float16"]
        np.testing.assert_array_equal(load_file(path)["varlen_t5_float16"], sample["text"].numpy()[:num_tokens])


def test_ltx_trainer(ltx: cc.Cache, tmp_path: Path) -> None:
    cc.export(ltx.path, tmp_path / "out", to="ltx", clip=17)
    names = sorted(path.name for path in (tmp_path / "out" / "latents").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "out" / "conditions").iterdir())
    assert len(names) == 3
    for name in names:
        key, _, number = name.removesuffix(".safetensors").rpartition("-")
        sample = sample_of(ltx, key, int(number) * 17)
        arrays = load_file(tmp_path / "out" / "latents" / name)
        sizes = [int(arrays[size]) for size in ("num_frames", "height", "width")]
        assert list(arrays["latents"].shape[1:]) == sizes
        assert float(arrays["fps"]) == pytest.approx(25)
        np.testing.assert_array_equal(arrays["latents"], sample["latents"].numpy().astype(np.float16))
        conditions = load_file(tmp_path / "out" / "conditions" / name)
        np.testing.assert_array_equal(conditions["prompt_embeds"], sample["text"].numpy())
        np.testing.assert_array_equal(conditions["prompt_attention_mask"], sample["text_mask"].numpy())


def test_a_video_of_several_clips_as_a_whole(wan: cc.Cache, tmp_path: Path) -> None:
    with pytest.raises(cc.UsageError, match="latents are of clips of 17. Add clip=17"):
        cc.export(wan.path, tmp_path / "out", to="safetensors")


def test_a_cache_without_latents(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos" / "a.mp4", num_frames=5)
    cc.build(cc.scan([tmp_path / "videos"], jobs=1), tmp_path / "cache", jobs=Engine("inline"))
    with pytest.raises(cc.UsageError, match="has no latents and no text, expected .* Run .*--features latents,text"):
        cc.export(tmp_path / "cache", tmp_path / "out", to="safetensors")
    with pytest.raises(cc.UsageError, match="has no latents, expected .*--features latents'"):
        cc.export(tmp_path / "cache", tmp_path / "other", to="ltx")
    assert {path.name for path in (tmp_path / "other").iterdir()} <= {".lock", ".partial"}
    assert cc.export(tmp_path / "cache", tmp_path / "other", to="folder").num_samples == 1
