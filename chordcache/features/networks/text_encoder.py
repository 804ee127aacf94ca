"""The text encoders of generators: how a tokenizer and a model of transformers embed one caption."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from chordcache.errors import UsageError

ENCODERS: Mapping[str, str] = {
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "clip": "CLIPTextModel",
    "clip_text_model": "CLIPTextModel",
    "llama": "LlamaModel",
}
"""``model_type`` in a model's config.json to its class in transformers"""

POOLED_ENCODERS = ("clip", "clip_text_model")
"""Keys of ``ENCODERS`` that have a pooled output"""


class Encoding(NamedTuple):
    """The embedding of one caption."""

    states: np.ndarray
    """[shape=(L, D), dtype=float32] of tokens, and of padding with ``padding: max_length``"""
    num_tokens: int
    """Number of the first states that are not of padding"""
    num_left_out: int
    """Number of tokens after the last one that fits"""
    pooled: np.ndarray | None
    """[shape=(D,), dtype=float32] output of the second encoder, if there is one"""


class Pooler(NamedTuple):
    """A second encoder, of which only the pooled output is used."""

    tokenizer: Any
    network: Any

    def encode(self, caption: str) -> np.ndarray:
        """Return the pooled output [shape=(D,), dtype=float32], as the pipelines do: padded, and without a mask."""
        import torch

        length = self.network.config.max_position_embeddings
        tokens = self.tokenizer(caption, truncation=True, max_length=length, padding="max_length", return_tensors="pt")
        with torch.inference_mode():
            pooled = self.network(tokens["input_ids"].to(self.network.device)).pooler_output
        return np.asarray(pooled[0].float().cpu().numpy())


@dataclass(frozen=True)
class Encoder:
    """The result of ``setup``: a model, and how it gets captions. See ``TextExtractor``."""

    tokenizer: Any
    network: Any
    max_tokens: int
    """Largest number of tokens, with those that are skipped"""
    is_padded: bool = False
    mask: bool = True
    hidden_state: int = -1
    template: str = "{}"
    skip_tokens: int = 0
    clean: bool = False
    pooler: Pooler | None = None

    def encode(self, caption: str) -> Encoding:
        """Return the embedding of a caption."""
        import torch

        text = self.template.replace("{}", _cleaned(caption) if self.clean else caption)
        num_whole = len(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])
        padding = "max_length" if self.is_padded else False
        tokens = self.tokenizer(
            text, truncation=True, max_length=self.max_tokens, padding=padding, return_tensors="pt"
        ).to(self.network.device)
        num_tokens = int(tokens["attention_mask"].sum())
        if not self.mask:
            del tokens["attention_mask"]
        with torch.inference_mode():
            if self.hidden_state == -1:
                states = self.network(**tokens).last_hidden_state
            else:
                states = self.network(**tokens, output_hidden_states=True).hidden_states[self.hidden_state]
        rows = states[0, self.skip_tokens :].float().cpu().numpy()
        pooled = None if self.pooler is None else self.pooler.encode(caption)
        return Encoding(rows, max(0, num_tokens - self.skip_tokens), max(0, num_whole - self.max_tokens), pooled)


def check_limits(encoder: Encoder, positions: int | None) -> None:
    """Raise ``UsageError`` if a model cannot encode as its arguments say."""
    if positions is not None and encoder.max_tokens > positions:
        raise UsageError(
            f"features.text.max_tokens: got {encoder.max_tokens} with skip_tokens, expected at most {positions}, the "
            "positions of the model. Take fewer tokens."
        )
    num_states = encoder.network.config.num_hidden_layers + 1
    if encoder.hidden_state < -num_states:
        raise UsageError(
            f"features.text.hidden_state: got {encoder.hidden_state}, expected -{num_states} to -1, the hidden states "
            "of the model. Take one of them."
        )
    side = encoder.tokenizer.padding_side
    if encoder.is_padded and (side != "right" or encoder.tokenizer.pad_token is None):
        got = f"padding on the {side}" if encoder.tokenizer.pad_token else "no token for padding"
        raise UsageError(
            f"features.text.tokenizer: got {got}, expected a tokenizer that pads on the right. Take that of the "
            "generator."
        )


def _cleaned(caption: str) -> str:
    """Return a caption as ``prompt_clean`` of Wan's pipeline does without the package ftfy.

    Examples
    --------
    >>> _cleaned(" cats &amp;amp; dogs\\n run ")
    'cats & dogs run'
    """
    return " ".join(html.unescape(html.unescape(caption)).split())
