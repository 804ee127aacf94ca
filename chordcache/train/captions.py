"""Captions as token ids, made by a tokenizer file of Hugging Face's ``tokenizers``."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from chordcache.arguments import check_at_least, names_arguments
from chordcache.errors import NotFoundError, UsageError, printable

_NUM_KEPT = 1 << 14
"""Captions whose ids are kept: about 10 MB. Later epochs, and several clips of one video, request them again."""


@names_arguments
class CaptionTokenizer:
    """A tokenizer that turns captions into token ids, each caption once.

    It pickles as its path, and each process reads the file itself. Thread-safe.

    Parameters
    ----------
    path : str or Path
        A ``tokenizer.json``, as ``Tokenizer.save`` of the package ``tokenizers`` writes it. Its settings for special
        tokens and truncation are used. ``collate`` does the padding.
    length : int, optional
        Number of ids of every caption in a batch: longer ones are cut, and ``collate`` pads shorter ones to it. By
        default, captions are padded to the longest of their batch.

    Raises
    ------
    NotFoundError, UsageError
        If the file does not exist, or is not a tokenizer, or ``length`` has no room for its special tokens.
    """

    def __init__(self, path: str | Path, *, length: int | None = None) -> None:
        self.length = length
        self.path = Path(path).absolute()
        self._tokenizer = _read(self.path)
        self.pad_id: int = (self._tokenizer.padding or {"pad_id": 0})["pad_id"]
        """Token id for padding, 0 if the tokenizer does not define one"""
        self._tokenizer.no_padding()
        if length is not None:
            check_at_least(max(1, self._tokenizer.num_special_tokens_to_add(is_pair=False)), length=length)
            settings = self._tokenizer.truncation or {"direction": "right"}
            self._tokenizer.enable_truncation(length, direction=settings["direction"])
        self._ids = lru_cache(_NUM_KEPT)(self._encode)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return partial(CaptionTokenizer, length=self.length), (self.path,)

    def __repr__(self) -> str:
        return f"<CaptionTokenizer '{printable(self.path)}'>"

    def __call__(self, caption: str) -> np.ndarray:
        """Return the token ids of a caption, including special tokens [shape=(n,), dtype=int64], read-only."""
        return self._ids(caption)

    def _encode(self, caption: str) -> np.ndarray:
        ids = np.array(self._tokenizer.encode(caption).ids, np.int64)
        ids.flags.writeable = False
        return ids


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"cannot read tokenizer '{printable(path)}': {error.strerror}") from None
    try:
        json.loads(data)
        return tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # noqa: BLE001 # item boundary: the package raises nothing narrower
        raise UsageError(f"tokenizer: got '{printable(path)}' ({error}), expected a tokenizer.json") from None
