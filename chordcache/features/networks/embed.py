"""The feature "embed": an embedding of each frame, made by the image tower of CLIP, SigLIP or DINOv2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import UsageError, printable
from chordcache.features.base import Rows, missing_package
from chordcache.features.networks.extractor import PretrainedExtractor, stored
from chordcache.features.networks.pixels import Preprocessing, preprocessing_of
from chordcache.features.networks.pretrained import check_files, hash_of_files, kind_of_model, load_network
from chordcache.media.frame import Frame

_PROJECTING = dict.fromkeys(("clip", "clip_vision_model"), "CLIPVisionModelWithProjection")
"""``model_type`` in a model's config.json to its class in transformers, for the output "projected" """

_TOWERS: Mapping[str, str] = {
    **dict.fromkeys(_PROJECTING, "CLIPVisionModel"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "SiglipVisionModel"),
    "dinov2": "Dinov2Model",
}
"""The same for other outputs"""

OUTPUTS: Mapping[str, str] = {"pooled": "pooler_output", "projected": "image_embeds", "tokens": "last_hidden_state"}
"""Output to its name in transformers"""

_KEY = "features.embed.model"


class _Tower(NamedTuple):
    """The result of ``setup``."""

    network: Any
    preprocessing: Preprocessing
    output: str
    """Its name in transformers"""


class EmbedExtractor(PretrainedExtractor):
    """Embedding of each frame, by the image tower of a CLIP, SigLIP or DINOv2 model.

    Arrays
    ------
    ``name`` [shape=(T, D) or (T, N, D), dtype=float32 or float16]
        Row i is the embedding of frame i as it is cached, before JPEG. A crop of the frames in a sample does not change
        it. N is the number of tokens.

    The parameters are the settings of ``EmbedConfig``, ``files``, see ``PretrainedExtractor``, and ``pixels``, the
    fields of ``Preprocessing``.

    Notes
    -----
    Source: ``transformers``, with the image processor of the model.
    """

    def __init__(self, name: str, *, pixels: Mapping[str, Any], dtype: str, **_: Any) -> None:
        super().__init__(name)
        self._dtype = np.dtype(dtype)
        self._preprocessing = Preprocessing(**pixels)

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the section, the hash of the files of a local folder, and the steps before the network."""
        arguments = {**asdict(section), "files": hash_of_files(section.model)}
        is_usable = cls.missing_requirement(arguments) is None
        return {**arguments, "pixels": asdict(preprocessing_of(_KEY, section.model)) if is_usable else {}}

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs transformers, or the problem of the model's folder."""
        missing = missing_package("models", "torch", "transformers", "PIL")
        if missing is not None:
            return missing
        try:
            _class_of(arguments)
            preprocessing_of(_KEY, arguments["model"])
        except UsageError as error:
            return str(error)
        return None

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Load the weights, in float32. Raise ``UsageError`` if they are of another kind."""
        model, name = arguments["model"], _class_of(arguments)
        check_files(arguments["files"], model)
        network = load_network(name, model)
        tower = _Tower(network.to(device), Preprocessing(**arguments["pixels"]), OUTPUTS[arguments["output"]])
        height, width = tower.preprocessing.size
        side = network.config.image_size
        if name != "Dinov2Model" and (height, width) != (side, side):  # it takes pictures of any size
            raise UsageError(
                f"{_KEY}: got '{printable(model)}', whose image processor makes pictures of {width}x{height} pixels, "
                f"expected {side}x{side}"
            )
        try:
            cls.infer(tower, [np.zeros((height, width, 3), np.uint8)])
        except KeyError:
            raise UsageError(
                f"features.embed.output: got pooled, which '{printable(model)}' lacks, expected tokens"
            ) from None
        return tower

    def prepare(self, frame: Frame) -> np.ndarray:
        """Return the frame [shape=(h, w, 3), dtype=uint8, RGB] in the size that the network takes."""
        return self._preprocessing.crop(frame.rgb())

    @classmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Return the embedding of each frame."""
        import torch

        network, preprocessing, output = model
        with torch.inference_mode():
            pixels = preprocessing.normalize(torch.from_numpy(np.stack(inputs)).to(network.device))
            embeddings = network(pixel_values=pixels)[output]
        return list(embeddings.float().cpu().numpy())

    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        """Return the embeddings of the next frames."""
        return {self.name: stored(np.stack(outputs), self._dtype)}


def _class_of(arguments: Mapping[str, Any]) -> str:
    """Return the class of transformers that loads a model. Raise ``UsageError`` if the model is of another kind."""
    is_projected = arguments["output"] == "projected"
    towers = _PROJECTING if is_projected else _TOWERS
    key = f"{_KEY} with output: projected" if is_projected else _KEY
    return towers[kind_of_model(key, arguments["model"], "model_type", towers)]
