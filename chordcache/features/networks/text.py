"""The feature "text": the embedding of the caption, made by the text encoder of a generator."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from chordcache.digests import hex64
from chordcache.errors import UsageError, printable
from chordcache.features.base import Rows, VideoInfo
from chordcache.features.networks.extractor import NetworkExtractor
from chordcache.features.read_side import Arrays, Clip, ReadSide
from chordcache.records import FeatureInfo

if TYPE_CHECKING:
    from chordcache.config.frames import PictureConfig

ENCODERS: Mapping[str, str] = {
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "clip": "CLIPTextModel",
    "clip_text_model": "CLIPTextModel",
}
"""``model_type`` in a model's config.json to its class in transformers"""

_MAX_HASHED_BYTES = 1 << 20
"""Size up to which a file of a model is hashed by its content [bytes]. Those of weights are hashed by name and size"""


class _Encoder(NamedTuple):
    """The result of ``setup``."""

    tokenizer: Any
    network: Any
    max_tokens: int


class TextExtractor(NetworkExtractor):
    """Embedding of each token of the caption, by a T5, UMT5 or CLIP text encoder.

    Arrays
    ------
    ``name`` [shape=(L, D), dtype=float32 or float16]
        Last hidden states of the L tokens, without padding. The rows belong to the whole video.

    Parameters
    ----------
    name : str
        Name of the feature.
    model : str
        Folder of the model, with a tokenizer, or its name on the Hugging Face Hub. A ``subfolder`` is part of the path.
    max_tokens : int or None
        Largest number of tokens. The end of a longer caption is left out, and ``facts`` say how many tokens. None means
        that of the tokenizer.
    dtype : str
        "float16" or "float32", as stored. The network computes in float32.
    files : str
        Hash of the files of a local folder, so that other weights give another fingerprint.

    Notes
    -----
    Source: ``transformers``, with one caption at a time, so that a row does not depend on the padding of a batch.
    """

    uses: ClassVar[tuple[str, ...]] = ("caption",)

    def __init__(
        self, name: str, *, model: str, max_tokens: int | None = None, dtype: str = "float16", files: str = ""
    ) -> None:
        super().__init__(name)
        self._dtype = np.dtype(dtype)
        self._caption = ""

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the section, and the hash of the files of a local model."""
        return {**asdict(section), "files": _hash_of(Path(section.model))}

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return default settings, since pictures do not matter."""
        return type(picture)()

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs transformers, or the problem of the model's folder."""
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                return f"needs the package {package}; run: pip install 'chordcache[models]'"
        model = str(arguments["model"])
        if not model:
            return "needs features.text.model, the folder or the name of a text encoder"
        if not _is_folder(model):
            return None  # a name on the Hub
        return _problem_of(Path(model))

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Load tokenizer and weights, in float32. Raise ``UsageError`` if they are of another kind."""
        import torch  # takes seconds, and few builds need it
        import transformers

        model = arguments["model"]
        kind = transformers.AutoConfig.from_pretrained(model).model_type
        if kind not in ENCODERS:
            raise UsageError(f"features.text.model: got '{printable(model)}' of type '{kind}', expected {_KINDS}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        network = getattr(transformers, ENCODERS[kind]).from_pretrained(model, dtype=torch.float32)
        positions = getattr(network.config, "max_position_embeddings", None)
        limits = (arguments.get("max_tokens"), positions, tokenizer.model_max_length)
        return _Encoder(tokenizer, network.to(device).eval(), min(each for each in limits if each is not None))

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
                found = network(**tokens.to(network.device)).last_hidden_state[0].float().cpu().numpy()
            outputs.append((found, max(0, len(whole) - len(found))))
        return outputs

    def last_inputs(self) -> Sequence[Any]:
        """Return the caption."""
        return (self._caption,)

    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        """Return the embedding of the caption."""
        ((found, num_left_out),) = outputs
        if not np.isfinite(found).all():
            raise ValueError("the network returned values that are not finite")
        self.facts.update(is_of_video=True, num_tokens_left_out=num_left_out)
        with np.errstate(over="ignore"):
            rows = found.astype(self._dtype)
        if not np.isfinite(rows).all():
            raise ValueError(f"values up to {np.abs(found).max():.3g} do not fit into {self._dtype}; use float32")
        return {self.name: rows}

    def num_rows(self, num_frames: int) -> int | None:
        """Return None: the rows belong to the whole video."""
        return None


class TextReadSide(ReadSide):
    """The read side of text: all rows, for any clip."""

    def zeros(self, clip: Clip, info: FeatureInfo) -> Arrays | None:
        """Return None: the width of an embedding is not known where it is absent."""
        return None


_KINDS = ", ".join(sorted(ENCODERS))


def _is_folder(model: str) -> bool:
    return os.path.isdir(model) or model.startswith(("/", "./", "../", "~"))


def _problem_of(folder: Path) -> str | None:
    """Return the reason why a folder is not a text encoder, or None."""
    name = printable(folder)
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"features.text.model: got '{name}', which has no config.json of a model ({type(error).__name__})"
    if kind not in ENCODERS:
        return f"features.text.model: got '{name}' of type '{kind}', expected {_KINDS}"
    return None


def _hash_of(folder: Path) -> str:
    """Return a hash of the names, sizes and small files of a folder, or "" for a name on the Hub."""
    if not folder.is_dir():
        return ""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_file():
            size = path.stat().st_size
            found.append([path.name, size, hex64(path.read_bytes()) if size <= _MAX_HASHED_BYTES else ""])
    return hex64(json.dumps(found).encode())
