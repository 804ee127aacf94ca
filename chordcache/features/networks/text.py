"""The feature "text": the embedding of the caption, made by the text encoder of a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from chordcache.features.base import Rows, VideoInfo
from chordcache.features.networks.extractor import PretrainedExtractor, stored
from chordcache.features.networks.pretrained import (
    check_files,
    hash_of_files,
    kind_of_model,
    load_network,
    location,
    missing_package,
    problem_of_model,
)

if TYPE_CHECKING:
    from chordcache.config.picture import PictureConfig

ENCODERS: Mapping[str, str] = {
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "clip": "CLIPTextModel",
    "clip_text_model": "CLIPTextModel",
}
"""``model_type`` in a model's config.json to its class in transformers"""

_KEY = "features.text.model"


class _Encoder(NamedTuple):
    """The result of ``setup``."""

    tokenizer: Any
    network: Any
    max_tokens: int


class TextExtractor(PretrainedExtractor):
    """Embedding of each token of the caption, by a T5, UMT5 or CLIP text encoder.

    Arrays
    ------
    ``name`` [shape=(L, D), dtype=float32 or float16]
        Last hidden states of the L tokens, without padding. The rows belong to the whole video.

    Parameters
    ----------
    model, dtype, files
        See ``PretrainedExtractor``.
    tokenizer : str or None
        Folder or name of the tokenizer. None means that it is with the model.
    max_tokens : int or None
        Largest number of tokens. The end of a longer caption is left out, and ``facts`` say how many tokens. None means
        that of the tokenizer.

    Notes
    -----
    Source: ``transformers``, with one caption at a time, so that a row does not depend on the padding of a batch.
    """

    uses: ClassVar[tuple[str, ...]] = ("caption",)

    def __init__(
        self,
        name: str,
        *,
        model: str,
        tokenizer: str | None = None,
        max_tokens: int | None = None,
        dtype: str = "float16",
        files: str = "",
    ) -> None:
        super().__init__(name)
        self._dtype = np.dtype(dtype)
        self._caption = ""

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the section, and the hash of the files of local folders."""
        return {**asdict(section), "files": hash_of_files(section.model, section.tokenizer or section.model)}

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return default settings, since pictures do not matter."""
        return type(picture)()

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs transformers, or the problem of the model's folder."""
        return missing_package("torch", "transformers") or problem_of_model(_KEY, arguments, "model_type", ENCODERS)

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Load tokenizer and weights, in float32. Raise ``UsageError`` if they are of another kind."""
        import transformers  # takes seconds, and few builds need it

        kind = kind_of_model(_KEY, arguments["model"], "model_type", ENCODERS)
        model = arguments["model"]
        check_files(arguments["files"], model, arguments.get("tokenizer") or model)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**location(arguments.get("tokenizer") or model))
        network = load_network(ENCODERS[kind], model)
        positions = getattr(network.config, "max_position_embeddings", None)
        limits = (arguments.get("max_tokens"), positions, tokenizer.model_max_length)
        return _Encoder(tokenizer, network.to(device), min(limit for limit in limits if limit is not None))

    def begin(self, video: VideoInfo) -> str | None:
        """Keep the caption."""
        self._caption = video.fields["caption"] or ""
        return None if self._caption else "it has no caption"

    @classmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Return the embedding of each caption, and the number of its tokens that were left out."""
        import torch

        tokenizer, network, max_tokens = model
        outputs = []
        for caption in inputs:
            whole = tokenizer(caption, truncation=False, verbose=False)["input_ids"]
            tokens = tokenizer(caption, truncation=True, max_length=max_tokens, return_tensors="pt")
            with torch.inference_mode():
                states = network(**tokens.to(network.device)).last_hidden_state[0].float().cpu().numpy()
            outputs.append((states, max(0, len(whole) - len(states))))
        return outputs

    def last_inputs(self) -> Sequence[Any]:
        """Return the caption."""
        return (self._caption,)

    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        """Return the embedding of the caption."""
        ((rows, num_left_out),) = outputs
        self.facts.update(is_of_video=True, num_tokens_left_out=num_left_out)
        return {self.name: stored(rows, self._dtype)}

    def num_rows(self, num_frames: int) -> int | None:
        """Return None: the rows belong to the whole video."""
        return None
