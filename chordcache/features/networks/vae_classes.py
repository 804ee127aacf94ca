"""The classes of VAEs of diffusers, and the form in which training scripts take the latents of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from chordcache.errors import UsageError


class VaeClass(NamedTuple):
    """A class of VAEs of diffusers, and the form in which training scripts take its latents."""

    compression: Callable[[Mapping[str, Any]], Sequence[Any]]
    """Function of config.json: numbers of frames, and of rows and columns of pixels, that become one in the latents"""
    axes: str = "cthw"
    """Order of the axes of a clip, such as (C, t, h, w)"""
    first_frame: Callable[[Mapping[str, Any]], str] = lambda config: "alone"
    """Function of config.json: how pipelines encode the first frame for image-to-video, see ``LatentsExtractor``"""


def _of_levels(config: Mapping[str, Any], default: Sequence[int]) -> int:
    return int(2 ** (len(config.get("block_out_channels", default)) - 1))


def _of_ltx(config: Mapping[str, Any]) -> Sequence[Any]:
    halvings = 2 ** sum(map(bool, config.get("spatio_temporal_scaling", (True, True, True, False))))
    frames, pixels = config.get("temporal_compression_ratio"), config.get("spatial_compression_ratio")
    return frames or config.get("patch_size_t", 1) * halvings, pixels or config.get("patch_size", 4) * halvings


VAES: Mapping[str, VaeClass] = {
    "AutoencoderKL": VaeClass(lambda config: (1, _of_levels(config, (64,))), "tchw"),
    "AutoencoderKLCogVideoX": VaeClass(
        lambda config: (config.get("temporal_compression_ratio", 4), _of_levels(config, (128, 256, 256, 512))), "tchw"
    ),
    "AutoencoderKLHunyuanVideo": VaeClass(
        lambda config: (config.get("temporal_compression_ratio", 4), config.get("spatial_compression_ratio", 8))
    ),
    "AutoencoderKLLTXVideo": VaeClass(_of_ltx),
    "AutoencoderKLMochi": VaeClass(
        lambda config: (
            math.prod(config.get("temporal_expansions", (1, 2, 3))),
            math.prod(config.get("spatial_expansions", (2, 2, 2))),
        )
    ),
    "AutoencoderKLWan": VaeClass(
        lambda config: (config.get("scale_factor_temporal", 4), config.get("scale_factor_spatial", 8)),
        first_frame=lambda config: "alone" if config.get("is_residual") else "before_gray",  # residual is Wan 2.2 TI2V
    ),
}
"""``_class_name`` in a model's config.json to the class. Settings that are not there have the defaults of diffusers"""


def compression_of(key: str, config: Mapping[str, Any]) -> list[int]:
    """Return how many frames, and how many rows and columns of pixels, become one in the latents."""
    try:
        factors = VAES[config["_class_name"]].compression(config)
    except TypeError:  # another type than diffusers writes
        factors = (None, None)
    if not all(type(number) in (int, float) and number in range(1, 65) for number in factors):
        raise UsageError(f"{key}: got a config.json that compresses by {factors}, expected whole numbers from 1 to 64")
    return [int(number) for number in factors]
