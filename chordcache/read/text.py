"""Captions as token ids, by a tokenizer file of Hugging Face's ``tokenizers``."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import tokenizers

from chordcache.errors import NotFoundError, UsageError
from chordcache.storage.layout import printable

_NUM_KEPT = 1 << 14
"""Captions whose ids are kept: some 10 MB. Later epochs, and several clips of one video, ask again."""


class CaptionTokenizer:
    """Turns captions into token ids, each caption once.

    Picklable as its path: each process reads the file for itself. Thread-safe.

    Parameters
    ----------
    path : str or Path
        A ``tokenizer.json``, as ``Tokenizer.save`` of the package ``tokenizers`` writes it. What it says of special
        tokens and truncation holds; padding is left to ``collate``.

    Raises
    ------
    NotFoundError
        If there is no such file.
    UsageError
        If it is not a tokenizer.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._tokenizer = _read(self.path)
        self.pad_id: int = (self._tokenizer.padding or {"pad_id": 0})["pad_id"]
        """What the tokenizer pads with, 0 if it does not say"""
        self._tokenizer.no_padding()
        self._ids = lru_cache(_NUM_KEPT)(self._encode)

    def __reduce__(self) -> tuple[type[CaptionTokenizer], tuple[Path]]:
        return CaptionTokenizer, (self.path,)

    def __repr__(self) -> str:
        return f"<CaptionTokenizer '{printable(self.path)}'>"

    def __call__(self, caption: str) -> np.ndarray:
        """Token ids of a caption [shape=(n,), dtype=int64], read-only; the special tokens are among them."""
        return self._ids(caption)

    def _encode(self, caption: str) -> np.ndarray:
        ids = np.array(self._tokenizer.encode(caption).ids, np.int64)
        ids.flags.writeable = False
        return ids


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except OSError as error:
        raise NotFoundError(f"cannot read tokenizer '{printable(path)}': {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"'{printable(path)}' is not a tokenizer: {error}; give a tokenizer.json") from None
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 # item boundary: the package raises nothing narrower
        raise UsageError(f"'{printable(path)}' is not a tokenizer: {error}; give a tokenizer.json") from None
