"""The feature "text": the embedding of the caption, made by the text encoder of a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from chordcache.config.config import Config
from chordcache.config.picture import PictureConfig
from chordcache.errors import UsageError, printable
from chordcache.features.base import Rows, VideoInfo, missing_package
from chordcache.features.item_fields import all_captions
from chordcache.features.networks.extractor import PretrainedExtractor, stored
from chordcache.features.networks.pretrained import (
    check_files,
    hash_of_files,
    kind_of_model,
    load_network,
    location,
    problem_of_model,
)
from chordcache.features.networks.text_encoder import (
    ENCODERS,
    POOLED_ENCODERS,
    Encoder,
    Encoding,
    Pooler,
    check_limits,
)
from chordcache.features.read_side import Arrays, Clip, ReadSide
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.feature_info import FeatureInfo

_KEY = "features.text.model"
_POOLED_KEY = "features.text.pooled_model"

_POOLED = "text.pooled"
"""Name of the array of pooled embeddings"""


class TextExtractor(PretrainedExtractor):
    """Embedding of each token of the caption, by a T5, UMT5, CLIP or Llama text encoder.

    Arrays
    ------
    ``name`` [shape=(L, D), or (N, L, D) with padding, all captions or ``pooled_model``, dtype=float32 or float16]
        Hidden states of the L tokens, or for each of N captions those of its tokens, then those of padding or zeros.
        The fact ``num_tokens`` has the number of tokens of each caption. The rows belong to the whole video.
    ``name.pooled`` [shape=(N, D), dtype=float32 or float16]
        With ``pooled_model``: its pooled output for each caption, without ``template`` and ``clean``.

    The parameters are ``files``, see ``PretrainedExtractor``, and the settings of ``TextConfig`` with the values of its
    preset. The end of a caption of more than ``max_tokens`` is left out, and ``facts`` say how many tokens. With the
    padding "zeros", readers add the zeros. The hidden state -1 is the one after the last normalization.

    Notes
    -----
    Source: ``transformers``, with one caption at a time, so that a row does not depend on the padding of a batch. The
    presets of the config are the steps of ``encode_prompt`` in the pipelines of diffusers 0.42.
    """

    uses: ClassVar[tuple[str, ...]] = ("caption",)

    def __init__(self, name: str, *, dtype: str, **arguments: Any) -> None:
        super().__init__(name)
        self._dtype = np.dtype(dtype)
        is_padded = arguments.get("padding", "none") != "none"
        self._is_one = not (is_padded or arguments.get("captions") == "all" or arguments.get("pooled_model"))
        self._captions: tuple[str, ...] = ()

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the section with its preset, and the hash of the files of local folders."""
        arguments = section.arguments()
        return {**arguments, "files": hash_of_files(*_places(arguments))}

    @classmethod
    def fields_used(cls, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields with the captions that are encoded."""
        return (*cls.uses, "captions") if arguments.get("captions") == "all" else cls.uses

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return default settings, since pictures do not matter."""
        return type(picture)()

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs transformers, or the problem of the model's folder."""
        problem = missing_package("models", "torch", "transformers") or problem_of_model(
            _KEY, arguments, "model_type", ENCODERS
        )
        if problem is None and arguments.get("pooled_model"):
            pooled = {"model": arguments["pooled_model"]}
            return problem_of_model(_POOLED_KEY, pooled, "model_type", POOLED_ENCODERS)
        return problem

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Load tokenizer and weights, in float32. Raise ``UsageError`` if they do not fit the arguments."""
        import transformers  # takes seconds, and few builds need it

        kind = kind_of_model(_KEY, arguments["model"], "model_type", ENCODERS)
        check_files(arguments["files"], *_places(arguments))
        model, named_tokenizer, *pooled = _places(arguments)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**location(named_tokenizer))
        network = load_network(ENCODERS[kind], model)
        pooler = None
        if pooled:
            pooled_tokenizer = transformers.AutoTokenizer.from_pretrained(**location(pooled[1]))
            pooler = Pooler(pooled_tokenizer, load_network("CLIPTextModel", pooled[0]).to(device))
        kept = ("mask", "hidden_state", "template", "skip_tokens", "clean")
        settings = {name: arguments[name] for name in kept if name in arguments}
        positions = getattr(network.config, "max_position_embeddings", None)
        max_tokens, skipped = arguments.get("max_tokens"), settings.get("skip_tokens", 0)
        if arguments.get("padding", "none") == "none":
            limits = [max_tokens and max_tokens + skipped, positions, tokenizer.model_max_length]
            longest = min(limit for limit in limits if limit is not None)
        else:  # as the pipelines do, which pass it whatever the tokenizer says
            longest = max_tokens + skipped
        encoder = Encoder(
            tokenizer,
            network.to(device),
            longest,
            is_padded=arguments.get("padding") == "max_length",
            pooler=pooler,
            **settings,
        )
        check_limits(encoder, positions)
        return encoder

    def begin(self, video: VideoInfo) -> str | None:
        """Keep the captions."""
        self._captions = all_captions(video.fields["caption"], video.fields.get("captions", ()))
        return None if self._captions else "it has no caption"

    @classmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Return the ``Encoding`` of each caption."""
        return [model.encode(caption) for caption in inputs]

    def last_inputs(self) -> Sequence[Any]:
        """Return the captions."""
        return self._captions

    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        """Return the embedding of the caption, or those of all captions with zeros after the shorter ones."""
        self.facts.update(is_of_video=True, num_tokens_left_out=sum(output.num_left_out for output in outputs))
        if self._is_one:
            return {self.name: stored(outputs[0].states, self._dtype)}
        self.facts["num_tokens"] = [output.num_tokens for output in outputs]
        rows = {self.name: stored(_stacked(outputs), self._dtype)}
        pooled = _pooled(outputs)
        return rows if pooled is None else {**rows, _POOLED: stored(pooled, self._dtype)}

    def num_rows(self, num_frames: int) -> int | None:
        """Return None: the rows belong to the whole video."""
        return None


def encode_captions(
    config: Config, captions: Sequence[str] = ("",), *, device: str = "cpu"
) -> tuple[np.ndarray, np.ndarray]:
    """Encode captions as a build with this config does, such as the empty one that training drops captions to.

    Parameters
    ----------
    config : Config
        A config with the section ``features.text``.
    captions : sequence of str
        Captions, by default the empty one.
    device : str
        Device of the network, such as "cuda:0".

    Returns
    -------
    embeddings : np.ndarray [shape=(N, L, D), dtype=float32 or float16]
        With zeros after the shorter ones. With a padding, L is ``max_tokens``.
    mask : np.ndarray [shape=(N, L), dtype=bool]
        True for tokens.

    Raises
    ------
    UsageError
        If ``captions`` is empty, the model cannot be used, or a package is missing.
    """
    arguments, outputs = _encoded(config, captions, device)
    is_padded = arguments.get("padding", "none") != "none"
    rows = _stacked(outputs, arguments["max_tokens"] if is_padded else 0)
    mask = np.arange(rows.shape[1]) < np.array([[output.num_tokens] for output in outputs])
    return stored(rows, np.dtype(arguments["dtype"])), mask


def encode_pooled(config: Config, captions: Sequence[str] = ("",), *, device: str = "cpu") -> np.ndarray:
    """Return the pooled embeddings of captions [shape=(N, D), dtype=float32 or float16], see ``encode_captions``.

    Raise ``UsageError`` as it does, and if the config does not have ``features.text.pooled_model``.
    """
    arguments, outputs = _encoded(config, captions, device)
    pooled = _pooled(outputs)
    if pooled is None:
        raise UsageError(f"{_POOLED_KEY}: got None, expected a model. Name it in the config.")
    return stored(pooled, np.dtype(arguments["dtype"]))


def _encoded(config: Config, captions: Sequence[str], device: str) -> tuple[Mapping[str, Any], Sequence[Encoding]]:
    """Return the arguments of the extractor of a config, and the encodings of captions."""
    from chordcache.features.registry import check_requirement, resolve  # readers of a cache do not need it

    if not captions:
        raise UsageError('captions: got none, expected at least one. Take [""] for the empty caption.')
    spec = resolve("text", config)
    check_requirement(spec)
    return spec.arguments, TextExtractor.infer(TextExtractor.setup(device, **spec.arguments), list(captions))


def _places(arguments: Mapping[str, Any]) -> list[str]:
    """Return where model and tokenizer are, and those of the second encoder if there is one."""
    model, pooled = arguments["model"], arguments.get("pooled_model")
    seconds = [pooled, arguments.get("pooled_tokenizer") or pooled] if pooled else []
    return [model, arguments.get("tokenizer") or model, *seconds]


def _pooled(outputs: Sequence[Encoding]) -> np.ndarray | None:
    """Return the pooled embeddings [shape=(N, D), dtype=float32], None without a second encoder."""
    rows = [output.pooled for output in outputs if output.pooled is not None]
    return np.stack(rows) if rows else None


def _stacked(outputs: Sequence[Encoding], length: int = 0) -> np.ndarray:
    """Return embeddings [shape=(N, L, D), dtype=float32] with zeros after each, of at least this length."""
    longest = max(length, *(len(output.states) for output in outputs))
    rows = np.zeros((len(outputs), longest, outputs[0].states.shape[1]), np.float32)
    for row, output in zip(rows, outputs, strict=True):
        row[: len(output.states)] = output.states
    return rows


class TextReadSide(ReadSide):
    """The read side of text: with padding, every caption has ``max_tokens`` rows."""

    padding: ClassVar[Mapping[str, float]] = {"text": 0, "text_mask": 0, "text_pooled": 0}

    def rows(
        self, artefact: Artefact, info: FeatureInfo, array: str, numbers: Sequence[int], out: np.ndarray | None
    ) -> np.ndarray:
        """Read embeddings, with zeros up to ``max_tokens`` if the config says so. See ``ReadSide``."""
        is_whole = info.params.get("padding", "none") == "none" or info.shape[1] == info.params["max_tokens"]
        if array != self.name or is_whole:
            return artefact.rows(array, numbers, out)
        stored_rows = artefact.rows(array, numbers)
        rows = artefact.memory_for(
            array, (len(stored_rows), info.params["max_tokens"], info.shape[2]), stored_rows.dtype, out
        )
        rows[:, : info.shape[1]], rows[:, info.shape[1] :] = stored_rows, 0
        return rows

    def read_clip(self, clip: Clip) -> Arrays:
        """Return ``text`` [shape=(L, D)] of the caption of the sample.

        With padding also ``text_mask`` [shape=(L,), dtype=bool], True for tokens. With ``pooled_model`` also
        ``text_pooled`` [shape=(D,)].
        """
        info, rows = clip.video.feature(self.name), clip.rows(self.name)
        if rows.ndim == 2:
            return {"text": rows}
        if clip.caption >= len(rows):
            raise UsageError(
                f"fields: got 'caption', which draws one of the captions of video '{printable(clip.video.key)}', "
                "expected text of all of them. Build with features.text.captions: all, or leave the field out."
            )
        num_tokens = info.facts["num_tokens"][clip.caption]
        arrays = {"text": rows[clip.caption].copy(), "text_mask": np.arange(rows.shape[1]) < num_tokens}
        if info.params.get("padding", "none") == "none":
            arrays = {"text": rows[clip.caption, :num_tokens].copy()}
        if _POOLED in info.num_rows:
            arrays["text_pooled"] = clip.rows(_POOLED)[clip.caption].copy()
        return arrays
