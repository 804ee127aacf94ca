"""Embeddings of captions: equal to what transformers computes, truncated with a count, never of another caption."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.records import RunSummary

WORDS = ["<pad>", "</s>", "<unk>", *"a dog runs over the green hill while two cats sleep in sun and rain".split()]

CAPTIONS = {"one": "a dog runs over the hill", "two": "two cats sleep", "long": "a dog " * 40}

Cli = Callable[..., subprocess.CompletedProcess[str]]


def make_network(kind: str) -> Any:
    """Return a small network of the real architecture with random weights."""
    torch.manual_seed(0)
    if kind == "clip":
        return transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=24, eos_token_id=1, bos_token_id=2, pad_token_id=0,
            )
        )  # fmt: skip
    config = {"t5": transformers.T5Config, "umt5": transformers.UMT5Config}[kind]
    network = {"t5": transformers.T5EncoderModel, "umt5": transformers.UMT5EncoderModel}[kind]
    return network(config(vocab_size=len(WORDS), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2))


@pytest.fixture(scope="module", params=["t5", "umt5", "clip"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a text encoder and its tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", model_max_length=24
    ).save_pretrained(folder)
    make_network(request.param).save_pretrained(folder)
    return folder


@pytest.fixture
def work(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    for number, name in enumerate((*CAPTIONS, "none")):
        make_video(tmp_path / f"videos/{name}.mp4", num_frames=6 + number)
    write_list(tmp_path, CAPTIONS)
    return tmp_path


def write_list(work: Path, captions: dict[str, str]) -> None:
    rows = [f"videos/{name}.mp4,{captions.get(name, '')}" for name in (*CAPTIONS, "none")]
    (work / "list.csv").write_text("\n".join(["path,caption", *rows]) + "\n")


def build(work: Path, model: Path | str, **params: Any) -> RunSummary:
    config = {"features": {"text": {"model": str(model), "dtype": "float32", **params}, "flow": None, "mel": None}}
    (work / "text.yaml").write_text(yaml.dump(config))
    return cc.build(
        work / "list.csv", work / "cache", tiers=["npz"], features=["text"], config=work / "text.yaml",
        jobs=Engine("inline"),
    )  # fmt: skip


def load(model: Path) -> Any:
    """Return the network of a folder."""
    kind = json.loads((model / "config.json").read_text())["model_type"]
    classes = {"t5": transformers.T5EncoderModel, "umt5": transformers.UMT5EncoderModel}
    return classes.get(kind, transformers.CLIPTextModel).from_pretrained(model).eval()


def direct(model: Path, caption: str, **padding: Any) -> np.ndarray:
    """Return the embedding of the valid tokens by transformers, with the padding of a training script."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokens = tokenizer([caption], truncation=True, max_length=24, return_tensors="pt", **padding)
    with torch.no_grad():
        states = load(model)(**tokens).last_hidden_state[0]
    return np.asarray(states[tokens["attention_mask"][0].bool()])


def by_path(cache: Path) -> dict[str, Any]:
    opened = cc.open_cache(cache)
    return {Path(video.path).stem: (opened, video) for video in opened}


def test_embeddings_are_those_of_transformers(work: Path, model: Path) -> None:
    assert build(work, model).num_done == 4
    cached = by_path(work / "cache")
    for name, caption in CAPTIONS.items():
        opened, video = cached[name]
        rows = opened.read(video, "text")
        assert rows.dtype == np.float32
        for padding in ({}, {"padding": "max_length"}):
            expected = direct(model, caption, **padding)
            assert rows.shape == expected.shape
            assert np.abs(rows - expected).max() <= 1e-5
    assert {name: video.feature("text").facts["num_tokens_left_out"] for name, (_, video) in cached.items()
            if name != "none"} == {"one": 0, "two": 0, "long": 80 + 1 - 24}  # fmt: skip
    opened, video = cached["none"]
    with pytest.raises(cc.NotFoundError, match="it has no caption"):
        opened.read(video, "text")


@pytest.mark.parametrize("model", ["t5"], indirect=True)
def test_other_weights_and_captions_make_it_again(work: Path, model: Path) -> None:
    build(work, model)
    assert build(work, model).num_up_to_date == 4
    write_list(work, {**CAPTIONS, "one": "a green hill"})
    assert build(work, model).num_done == 1
    opened, video = by_path(work / "cache")["one"]
    assert np.abs(opened.read(video, "text") - direct(model, "a green hill")).max() <= 1e-5
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")  # of the same size
    assert build(work, model).num_done == 4


@pytest.mark.parametrize("model", ["t5"], indirect=True)
def test_a_tokenizer_in_a_folder_of_its_own_and_names_on_the_hub(
    work: Path, tmp_path: Path, model: Path, run_cli: Cli
) -> None:
    """The folders of a generator's repository, as the Hub's client keeps them after a download."""
    repository = tmp_path / "hub/models--makers--generator"
    for folder in ("text_encoder", "tokenizer"):
        (repository / "snapshots/0123" / folder).mkdir(parents=True)
    for path in model.iterdir():
        is_of_tokenizer = path.name.startswith("tokenizer") or path.name == "special_tokens_map.json"
        shutil.copy(path, repository / "snapshots/0123" / ("tokenizer" if is_of_tokenizer else "text_encoder"))
    for file, text in {"refs/main": "0123", ".no_exist/0123/tokenizer/config.json": ""}.items():
        (repository / file).parent.mkdir(parents=True)
        (repository / file).write_text(text)

    def build_by_name(name: str) -> subprocess.CompletedProcess[str]:
        text = {"model": f"makers/{name}/text_encoder", "tokenizer": f"makers/{name}/tokenizer", "dtype": "float32"}
        (work / "text.yaml").write_text(yaml.dump({"features": {"text": text}}))
        return run_cli(
            "build", work / "list.csv", "-o", work / "cache", "-c", work / "text.yaml", "--tier", "npz",
            "--features", "text", env={"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    done = build_by_name("generator")
    assert done.returncode == 0, done.stderr
    assert "Loading weights" not in done.stderr
    opened, video = by_path(work / "cache")["one"]
    assert np.abs(opened.read(video, "text") - direct(model, CAPTIONS["one"])).max() <= 1e-5
    done = build_by_name("other")
    assert done.returncode == 2
    assert "got 'makers/other/text_encoder', expected a folder, or a name on the Hub (Loc" in done.stderr


def test_models_that_cannot_be_used(work: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"model_type": "bert"}')

    for name, message in {
        "nowhere": "expected a folder with the config.json of a model (FileNotFoundError)",
        "other": "of type 'bert', expected one of: clip, clip_text_model, llama, t5, umt5",
    }.items():
        with pytest.raises(cc.UsageError, match="^feature 'text': features.text.model: got '.*/" + name) as raised:
            build(work, tmp_path / name)
        assert message in str(raised.value)
    with pytest.raises(cc.UsageError, match=r"features\.text\.model: got no model, expected the folder of a model"):
        build(work, "")
    assert not (work / "cache").exists()
