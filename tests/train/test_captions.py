"""Captions become the ids that the package tokenizers gives, once; batches of them are padded."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.utils.data import DataLoader

import chordcache as cc
from chordcache.errors import NotFoundError, UsageError

pytestmark = pytest.mark.usefixtures("inline")

CAPTIONS = ["a man walks his dog", "a dog", "", "ein Hund läuft — schnell! 犬が走る", "a man walks " * 30]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE as GPT-2's, with special tokens as BERT's, padded with 2, cut at 20 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    special = ["[CLS]", "[SEP]", "[PAD]"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CAPTIONS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 0), ("[SEP]", 1)])
    tokenizer.enable_padding(pad_id=2, pad_token="[PAD]")
    tokenizer.enable_truncation(20)
    path = tmp_path_factory.mktemp("text") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def ids_of(path: Path, caption: str) -> list[int]:
    return Tokenizer.from_file(str(path)).encode(caption).ids


def test_ids_are_those_of_tokenizers(path: Path) -> None:
    tokenizer = cc.CaptionTokenizer(path)
    for caption in CAPTIONS * 2:
        ids = tokenizer(caption)
        assert ids.dtype == np.int64
        assert ids.tolist() == ids_of(path, caption)
        if len(ids) < 20:
            assert Tokenizer.from_file(str(path)).decode(ids.tolist()).strip() == caption
    assert len(tokenizer(CAPTIONS[-1])) == 20
    assert tokenizer("").tolist() == [0, 1]


@pytest.mark.parametrize("length", [None, 6, 64])
def test_batch_is_padded_and_masked(path: Path, length: int | None) -> None:
    """The batch is that of the package tokenizers, padded and cut to the length."""
    tokenizer = pickle.loads(pickle.dumps(cc.CaptionTokenizer(path, length=length)))
    batch = cc.collate([{"caption": caption} for caption in CAPTIONS], tokenizer=tokenizer)
    direct = Tokenizer.from_file(str(path))  # which pads a batch by itself
    if length is not None:
        direct.enable_truncation(length)
        direct.enable_padding(pad_id=2, pad_token="[PAD]", length=length)
    encodings = direct.encode_batch(CAPTIONS)
    assert batch["caption_ids"].tolist() == [encoding.ids for encoding in encodings]
    assert batch["caption_mask"].int().tolist() == [encoding.attention_mask for encoding in encodings]
    assert (batch["caption_ids"].dtype, batch["caption_mask"].dtype) == (torch.int64, torch.bool)
    assert batch["caption"] == CAPTIONS
    if length is None:
        lengths = [sum(encoding.attention_mask) for encoding in encodings]
        assert batch["lengths"]["caption_ids"][:, 0].tolist() == lengths


def test_a_file_that_pads_by_itself(path: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_padding(pad_id=2, pad_token="[PAD]", length=16)
    tokenizer.save(str(tmp_path / "padded.json"))
    assert len(Tokenizer.from_file(str(tmp_path / "padded.json")).encode("a dog").ids) == 16
    assert cc.CaptionTokenizer(tmp_path / "padded.json")("a dog").tolist() == ids_of(path, "a dog")
    assert cc.CaptionTokenizer(tmp_path / "padded.json").pad_id == 2
    tokenizer.no_padding()
    tokenizer.save(str(tmp_path / "silent.json"))
    assert cc.CaptionTokenizer(tmp_path / "silent.json").pad_id == 0


def test_pickle_is_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    tokenizer = cc.CaptionTokenizer(path.name)
    size = len(pickle.dumps(tokenizer))
    for number in range(100):
        tokenizer(f"caption {number}")
    assert len(pickle.dumps(tokenizer)) == size < 500
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(tokenizer))("a dog").tolist() == ids_of(path, "a dog")


def test_threads(path: Path) -> None:
    tokenizer = cc.CaptionTokenizer(path)
    captions = [f"a man walks dog {number % 50}" for number in range(400)]
    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(tokenizer, captions))
    assert [ids.tolist() for ids in tokens] == [ids_of(path, caption) for caption in captions]


def test_a_length_cuts_where_the_file_says(path: Path, tmp_path: Path) -> None:
    direct = Tokenizer.from_file(str(path))
    direct.enable_truncation(20, direction="left")
    direct.save(str(tmp_path / "left.json"))
    long, (first, *_, last) = CAPTIONS[-1], ids_of(path, "")
    whole = [first, *ids_of(path, "a man walks " * 2)[1:-1]]
    tokens = cc.CaptionTokenizer(tmp_path / "left.json", length=6)(long).tolist()
    assert tokens == [first, *ids_of(tmp_path / "left.json", long)[-5:-1], last]
    assert cc.CaptionTokenizer(path, length=6)(long).tolist() == [*whole[:5], last]


def test_a_length_without_room_for_special_tokens(path: Path) -> None:
    assert cc.CaptionTokenizer(path, length=2)("a dog").tolist() == ids_of(path, "")
    with pytest.raises(UsageError, match="length: got 1, expected an integer of at least 2"):
        cc.CaptionTokenizer(path, length=1)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_in_a_loader(path: Path, tmp_path: Path, make_video: Callable[..., Path], method: str) -> None:
    for number in range(4):
        make_video(tmp_path / "videos" / f"{number}.mp4", num_frames=4)
    rows = [f'videos/{number}.mp4,"{CAPTIONS[number]}"' for number in range(4)]
    (tmp_path / "index.csv").write_text("\n".join(["path,caption", *rows]), encoding="utf-8")
    cc.build(tmp_path / "index.csv", tmp_path / "cache", tiers=["lmdb"], jobs=1)
    dataset = cc.ChordVideoDataset(tmp_path / "cache", clip_sampler=cc.RegularClipSampler(2, 1), size=(32, 32))
    tokenizer = cc.CaptionTokenizer(path)
    tokenizer("in use before the fork")
    loader = DataLoader(
        dataset,
        batch_size=2,
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=functools.partial(cc.collate, tokenizer=tokenizer),
    )
    captions = []
    for batch in loader:
        for caption, ids, mask in zip(batch["caption"], batch["caption_ids"], batch["caption_mask"], strict=True):
            assert ids[mask].tolist() == ids_of(path, caption)
            assert (ids[~mask] == 2).all()
            captions.append(caption)
    assert sorted(captions) == sorted(CAPTIONS[:4])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b"\xff\xfe\x00",
        b'{"model": {"type": "BPE"}}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_not_a_tokenizer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    match = rf"^tokenizer: got '{tmp_path / 'vocab.txt'}' \(.*\), expected a tokenizer.json$"
    with pytest.raises(UsageError, match=match) as error:
        cc.CaptionTokenizer(tmp_path / "vocab.txt")
    assert "\n" not in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="^cannot read tokenizer '.*/none.json': No such file or directory$"):
        cc.CaptionTokenizer(tmp_path / "none.json")
    with pytest.raises(NotFoundError, match="Is a directory"):
        cc.CaptionTokenizer(tmp_path)
