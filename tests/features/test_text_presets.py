"""Text as generators take it: each preset, against the pipeline of diffusers with a small model of its architecture."""

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
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.engine.choice import Engine
from chordcache.features.networks.text import encode_captions, encode_pooled
from chordcache.index.index_files import IndexWriter
from chordcache.records import VideoRecord

CAPTIONS = {
    "short": ["two cats sleep"],
    "several": ["a dog runs over the hill", "cats &amp;amp; dogs\t in   the rain ", "the sun"],
    "long": ["a dog " * 300],
}

WORDS = ["<pad>", "</s>", "<unk>", "&", *"a dog runs over the green hill while two cats sleep in sun and rain".split()]

SETTINGS: dict[str, Any] = {"vocab_size": len(WORDS), "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2}

FLOAT16 = 2.0**-11
"""Relative error of rounding to float16"""


def make_network(preset: str) -> Any:
    """Return a small text encoder of a generator, with random weights."""
    torch.manual_seed(0)
    if preset == "wan":
        return transformers.UMT5EncoderModel(transformers.UMT5Config(**SETTINGS, num_heads=2))
    if preset == "hunyuanvideo":
        return transformers.LlamaModel(
            transformers.LlamaConfig(
                vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2,
                num_key_value_heads=1, max_position_embeddings=512,
            )
        )  # fmt: skip
    return transformers.T5EncoderModel(transformers.T5Config(**SETTINGS, num_heads=2))


def make_tokenizer(**settings: Any) -> Any:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", model_max_length=24,
        **settings,
    )  # fmt: skip


PIPELINES: dict[str, Any] = {
    "cogvideox": diffusers.CogVideoXPipeline,
    "flux": diffusers.FluxPipeline,
    "hunyuanvideo": diffusers.HunyuanVideoPipeline,
    "ltx": diffusers.LTXPipeline,
    "wan": diffusers.WanPipeline,
}

NUM_TOKENS = {"cogvideox": 226, "flux": 512, "hunyuanvideo": 256, "ltx": 128, "wan": 512}


def by_pipeline(preset: str, captions: list[str], **options: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the embeddings [shape=(N, L, D), dtype=float32] of a pipeline, and its mask if it has one."""
    kind = PIPELINES[preset]
    parts = {name: None for name in kind.__init__.__annotations__ if name != "return"}
    second = "_2" if preset == "flux" else ""
    parts |= {f"text_encoder{second}": make_network(preset).eval(), f"tokenizer{second}": make_tokenizer()}
    pipeline = kind(**{name: part for name, part in parts.items() if name in _modules(kind)})
    with torch.no_grad():
        if preset == "hunyuanvideo":
            outputs = pipeline._get_llama_prompt_embeds(captions, DEFAULT_PROMPT_TEMPLATE, device="cpu", **options)
        elif preset == "flux":
            outputs = pipeline._get_t5_prompt_embeds(captions, device="cpu", dtype=torch.float32, **options)
        else:
            length = {"max_sequence_length": NUM_TOKENS[preset]}  # of __call__; that of encode_prompt is shorter in Wan
            outputs = pipeline.encode_prompt(
                captions, do_classifier_free_guidance=False, device="cpu", **{**length, **options}
            )
    if preset in ("hunyuanvideo", "ltx"):
        return outputs[0].numpy(), outputs[1].bool().numpy()
    return (outputs if preset == "flux" else outputs[0]).numpy(), None


def _modules(kind: Any) -> set[str]:
    expected, _ = kind._get_signature_keys(kind)
    return set(expected)


@pytest.fixture
def work(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    for number, name in enumerate(CAPTIONS):
        make_video(tmp_path / f"{name}.mp4", num_frames=6 + number)
    write_index(tmp_path, CAPTIONS)
    return tmp_path


def write_index(work: Path, captions: dict[str, list[str]]) -> None:
    with IndexWriter(work / "index.json", roots={"root": str(work)}, level=None, columns={}) as writer:
        for name, (first, *others) in captions.items():
            writer.write(VideoRecord(root="root", path=f"{name}.mp4", caption=first, captions=tuple(others)))


def save(folder: Path, preset: str, **settings: Any) -> Path:
    make_network(preset).save_pretrained(folder)
    make_tokenizer(**settings).save_pretrained(folder)
    return folder


def build(work: Path, **text: Any) -> dict[str, tuple[cc.Cache, Any]]:
    (work / "text.yaml").write_text(yaml.dump({"features": {"text": text, "flow": None, "mel": None}}))
    summary = cc.build(
        work / "index.json", work / "cache", tiers=["npz"], features=["text"], config=work / "text.yaml",
        jobs=Engine("inline"),
    )  # fmt: skip
    assert (summary.num_done + summary.num_up_to_date, summary.num_failed) == (len(CAPTIONS), 0)
    cache = cc.open_cache(work / "cache")
    return {Path(video.path).stem: (cache, video) for video in cache}


@pytest.mark.parametrize("preset", sorted(PIPELINES))
def test_each_preset_is_what_its_pipeline_computes(work: Path, tmp_path: Path, preset: str) -> None:
    videos = build(work, model=str(save(tmp_path / "model", preset)), preset=preset, captions="all", dtype="float16")
    for name, captions in CAPTIONS.items():
        cache, video = videos[name]
        rows, (expected, mask) = cache.read(video, "text"), by_pipeline(preset, captions)
        assert rows.dtype == np.float16
        assert rows.shape == expected.shape == (len(captions), NUM_TOKENS[preset], 32)
        assert np.all(np.abs(rows - expected) <= FLOAT16 * np.abs(expected) + 1e-5)
        num_tokens = video.feature("text").facts["num_tokens"]
        if mask is not None:
            assert np.array_equal(mask, np.arange(mask.shape[1]) < np.array(num_tokens)[:, None])
    assert videos["long"][1].feature("text").facts["num_tokens_left_out"] > 0


def test_each_key_of_a_preset_can_be_given(work: Path, tmp_path: Path) -> None:
    model = str(save(tmp_path / "model", "cogvideox"))
    cache, video = build(work, model=model, preset="cogvideox", max_tokens=9, dtype="float32")["short"]
    expected, _ = by_pipeline("cogvideox", CAPTIONS["short"], max_sequence_length=9)
    preset = cache.read(video, "text")
    assert np.abs(preset - expected).max() <= 1e-5
    fingerprint = video.feature("text").fingerprint
    keys = {"padding": "max_length", "max_tokens": 9, "mask": False, "hidden_state": -1}
    cache, video = build(work, model=model, dtype="float32", **keys)["short"]
    assert video.feature("text").fingerprint == fingerprint
    assert np.array_equal(cache.read(video, "text"), preset)
    masked, _ = build(work, model=model, dtype="float32", **{**keys, "mask": True})["short"]
    assert np.abs(masked.read(video.key, "text")[:, 4:] - preset[:, 4:]).max() > 1e-3


@pytest.mark.parametrize("preset", ["cogvideox", "wan"])
def test_the_empty_caption_is_encoded_without_a_build(tmp_path: Path, preset: str) -> None:
    text = {"model": str(save(tmp_path / "model", preset)), "preset": preset, "dtype": "float32"}
    config = config_from_json({"features": {"text": text}})
    embeddings, mask = encode_captions(config)
    expected, _ = by_pipeline(preset, [""])
    assert embeddings.dtype == np.float32
    assert embeddings.shape == expected.shape == (1, NUM_TOKENS[preset], 32)
    assert np.abs(embeddings - expected).max() <= 1e-5
    assert mask.sum() == 1  # </s>
    with pytest.raises(cc.UsageError, match="^captions: got none, expected at least one. Take"):
        encode_captions(config, [])


def save_clip(folder: Path, **settings: Any) -> Path:
    """Save the second encoder of Flux and HunyuanVideo, with its tokenizer."""
    torch.manual_seed(1)
    clip = transformers.CLIPTextConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        eos_token_id=1, **settings,
    )  # fmt: skip
    transformers.CLIPTextModel(clip).save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 77
    tokenizer.save_pretrained(folder)
    return folder


def both_by_pipeline(preset: str, clip: Path, captions: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the embeddings [shape=(N, L, D)] and the pooled ones [shape=(N, D)] of ``encode_prompt``."""
    kind = PIPELINES[preset]
    first, second = ("_2", "") if preset == "flux" else ("", "_2")
    pipeline = kind(
        **{
            **dict.fromkeys(_modules(kind)),
            f"text_encoder{first}": make_network(preset).eval(),
            f"tokenizer{first}": make_tokenizer(),
            f"text_encoder{second}": transformers.CLIPTextModel.from_pretrained(clip).eval(),
            f"tokenizer{second}": transformers.AutoTokenizer.from_pretrained(clip),
        }
    )
    others = {"prompt_2": None} if preset == "flux" else {}
    with torch.no_grad():
        embeddings, pooled, _ = pipeline.encode_prompt(captions, device="cpu", **others)
    return embeddings.numpy(), pooled.numpy()


@pytest.mark.parametrize("preset", ["flux", "hunyuanvideo"])
def test_pooled_embeddings_are_those_of_the_pipeline(work: Path, tmp_path: Path, preset: str) -> None:
    clip = save_clip(tmp_path / "clip")
    text = {"model": str(save(tmp_path / "model", preset)), "preset": preset, "pooled_model": str(clip)}
    videos = build(work, **text, captions="all", dtype="float32")
    for name, captions in CAPTIONS.items():
        cache, video = videos[name]
        embeddings, pooled = both_by_pipeline(preset, clip, captions)
        assert np.abs(cache.read(video, "text") - embeddings).max() <= 1e-5
        assert cache.read(video, "text.pooled").shape == pooled.shape == (len(captions), 16)
        assert np.abs(cache.read(video, "text.pooled") - pooled).max() <= 1e-5
    several = videos["several"][0].read(videos["several"][1], "text.pooled")
    assert np.abs(several[0] - several[1]).max() > 1e-3
    dataset = cc.ChordVideoDataset(
        work / "cache", clip_sampler=cc.RegularClipSampler(num_frames=4, stride=1), features=("text",),
        fields=("caption",), clips_per_video=8, videos=[videos["several"][1].key],
    )  # fmt: skip
    samples = [dataset[number] for number in range(8)]
    for sample in samples:
        assert np.array_equal(sample["text_pooled"], several[CAPTIONS["several"].index(sample["caption"])])
    assert cc.collate(samples)["text_pooled"].shape == (8, 16)
    config = config_from_json({"features": {"text": {**text, "dtype": "float32"}}})
    _, expected = both_by_pipeline(preset, clip, [""])
    assert np.abs(encode_pooled(config) - expected).max() <= 1e-5


def test_pooled_embeddings_without_a_preset(work: Path, tmp_path: Path) -> None:
    text = {"model": str(save(tmp_path / "model", "ltx")), "dtype": "float16"}
    without = build(work, **text)["short"][1].feature("text").fingerprint
    cache, video = build(work, **text, pooled_model=str(save_clip(tmp_path / "clip")))["short"]
    assert video.feature("text").fingerprint != without
    assert cache.read(video, "text").shape == (1, 4, 32)
    assert cache.read(video, "text.pooled").dtype == np.float16
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RegularClipSampler(num_frames=4, stride=1), features=("text",), videos=[video.key]
    )
    assert dataset[0]["text"].shape == (4, 32)
    assert dataset[0]["text_pooled"].shape == (16,)
    with pytest.raises(cc.UsageError, match=r"^features\.text\.pooled_model: got None, expected a model"):
        encode_pooled(config_from_json({"features": {"text": text}}))
    with pytest.raises(
        cc.UsageError, match=r"features\.text\.pooled_model: got '.*' of type 't5', expected one of: clip,"
    ):
        build(work, **text, pooled_model=text["model"])


@pytest.mark.parametrize("padding", ["none", "zeros", "max_length"])
def test_a_sample_has_the_embedding_of_its_caption(work: Path, tmp_path: Path, padding: str) -> None:
    model = str(save(tmp_path / "model", "ltx"))
    videos = build(work, model=model, padding=padding, max_tokens=12, captions="all", dtype="float32")
    dataset = cc.ChordVideoDataset(
        work / "cache", clip_sampler=cc.RegularClipSampler(num_frames=4, stride=1), features=("text",),
        fields=("caption",), clips_per_video=12,
    )  # fmt: skip
    seen = set()
    samples = [dataset[number] for number in range(len(dataset))]
    for sample in samples:
        (name,) = (name for name, (_, video) in videos.items() if video.key == sample["video"])
        cache, video = videos[name]
        number = CAPTIONS[name].index(sample["caption"])
        seen.add((name, number))
        num_tokens = video.feature("text").facts["num_tokens"][number]
        rows = cache.read(video, "text")[number]
        if padding == "none":
            assert np.array_equal(sample["text"], rows[:num_tokens])
        else:
            assert sample["text"].shape == (12, 32)
            assert np.array_equal(sample["text"], rows)
            assert sample["text_mask"].tolist() == [True] * num_tokens + [False] * (12 - num_tokens)
            assert bool(sample["text"][num_tokens:].any()) == (padding == "max_length" and num_tokens < 12)
    assert seen == {("short", 0), ("several", 0), ("several", 1), ("several", 2), ("long", 0)}
    batch = cc.collate(samples)
    assert batch["text"].shape == (len(samples), 12, 32)
    assert batch["text_mask"].sum(1).tolist() == [
        videos[Path(cc.open_cache(work / "cache")[sample["video"]].path).stem][1].feature("text").facts["num_tokens"][
            CAPTIONS[Path(cc.open_cache(work / "cache")[sample["video"]].path).stem].index(sample["caption"])]
        for sample in samples
    ]  # fmt: skip


def test_another_of_the_captions_makes_it_again(work: Path, tmp_path: Path) -> None:
    model = str(save(tmp_path / "model", "wan"))
    before = {name: video.feature("text").file for name, (_, video) in build(work, model=model, preset="wan").items()}
    text = {"model": model, "preset": "wan", "captions": "all"}
    everything = {name: video.feature("text").file for name, (_, video) in build(work, **text).items()}
    assert all(before[name] != everything[name] for name in CAPTIONS)
    write_index(work, {**CAPTIONS, "several": [*CAPTIONS["several"][:2], "the rain"]})
    after = {name: video.feature("text").file for name, (_, video) in build(work, **text).items()}
    assert {name for name in CAPTIONS if after[name] != everything[name]} == {"several"}


def test_the_first_caption_alone_is_not_that_of_another_sample(work: Path, tmp_path: Path) -> None:
    build(work, model=str(save(tmp_path / "model", "wan")), preset="wan")
    dataset = cc.ChordVideoDataset(
        work / "cache", clip_sampler=cc.RegularClipSampler(num_frames=4, stride=1), features=("text",),
        fields=("caption",), clips_per_video=12,
    )  # fmt: skip
    with pytest.raises(cc.UsageError, match=r"^fields: got 'caption', which draws one .*captions: all, or leave"):
        for number in range(len(dataset)):
            dataset[number]


@pytest.mark.parametrize(("text", "message"), [
    ({"preset": "sora"}, "preset: got 'sora', expected one of cogvideox, flux, hunyuanvideo, ltx, wan"),
    ({"padding": "left"}, "padding: got 'left', expected one of none, zeros, max_length"),
    ({"padding": "zeros"}, "max_tokens: got None, expected a number with padding: zeros. Set it"),
    ({"mask": 0}, "mask: got 0, expected one of True, False"),
    ({"mask": False}, "mask: got False, expected True with padding: none, which the model does not get. Leave it out"),
    ({"hidden_state": 0}, "hidden_state: got 0, expected a number from -256 to -1"),
    ({"skip_tokens": -1}, "skip_tokens: got -1, expected a number from 0"),
    ({"clean": "yes"}, "clean: got 'yes', expected one of True, False"),
    ({"captions": 2}, "captions: got 2, expected one of first, all"),
    ({"pooled_tokenizer": "makers/clip"}, "pooled_tokenizer: got one without a pooled_model, expected both. Name"),
    ({"template": "{} {}"}, r"template: got '\{\} \{\}', expected a text with \{\} once. Write \{\}"),
])  # fmt: skip
def test_keys_that_cannot_be_used(text: dict[str, Any], message: str) -> None:
    with pytest.raises(cc.UsageError, match=rf"^features\.text\.{message}"):
        config_from_json({"features": {"text": {"model": "makers/t5", **text}}})


@pytest.mark.parametrize(("preset", "text", "settings", "message"), [
    ("hunyuanvideo", {"hidden_state": -6}, {}, "hidden_state: got -6, expected -5 to -1, the hidden states"),
    ("hunyuanvideo", {"max_tokens": 500}, {}, "max_tokens: got 595 with skip_tokens, expected at most 512, the positi"),
    ("ltx", {}, {"padding_side": "left"}, "tokenizer: got padding on the left, expected a tokenizer that pads on the"),
])  # fmt: skip
def test_models_that_do_not_fit_the_keys(
    work: Path, tmp_path: Path, preset: str, text: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    model = str(save(tmp_path / "model", preset, **settings))
    with pytest.raises(cc.UsageError, match=rf"features\.text\.{message}"):
        build(work, model=model, preset=preset, **text)
