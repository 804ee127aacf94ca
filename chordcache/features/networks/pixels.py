"""The pixels that an image network takes: pictures scaled, cut and normalized as the model's image processor says.

The processors of CLIP, SigLIP and DINOv2 are the same five steps with other numbers. The steps are made here, because
importing transformers takes each worker seconds and hundreds of megabytes. Scaling and cutting keep 8 bits, so that
they run in the workers, and normalizing runs where the network is.

Source: ``PilBackend`` of ``transformers.image_processing_backends``. The results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chordcache.config.checks import check_choice, check_number
from chordcache.errors import UsageError, printable
from chordcache.features.networks.pretrained import config_of

PROCESSORS: Mapping[str, bool] = {
    "BitImageProcessor": True,
    "CLIPImageProcessor": True,
    "SiglipImageProcessor": False,
}
"""Class of an image processor to whether it cuts the middle out, if its file does not say"""

_USED = frozenset(
    "image_processor_type feature_extractor_type do_resize size resample do_center_crop crop_size do_rescale "
    "rescale_factor do_normalize image_mean image_std".split()
)

_WITHOUT_EFFECT = frozenset(
    "processor_class do_convert_rgb device disable_grouping return_tensors image_seq_length "
    "_valid_processor_keys".split()
)
"""Settings that do not change the pixels of an RGB picture"""

_OFF: Mapping[str, Any] = {
    "do_pad": False,
    "pad_size": None,
    "data_format": "channels_first",
    "input_data_format": None,
    "default_to_square": False,
    "use_square_size": False,
}
"""Settings of steps that do not exist here, to the value without effect. So has null"""

_MAX_SIDE = 4096
"""[pixels] Largest side, to fail before memory does"""


@dataclass(frozen=True)
class Preprocessing:
    """The steps from a picture to the pixels of a network, in the order of the fields. All fields are plain data."""

    short_side: int | None
    """[pixels] Length that the shorter side is scaled to, or None"""
    scaled: tuple[int, int] | None
    """(height, width) that the picture is scaled to, [pixels], or None"""
    resample: int
    """Filter of Pillow, such as 3 for bicubic"""
    cut: tuple[int, int] | None
    """(height, width) of the middle that is cut out, [pixels], with zeros around a smaller picture, or None"""
    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the result, [pixels]."""
        size = self.cut or self.scaled
        assert size is not None
        return size

    def crop(self, rgb: np.ndarray) -> np.ndarray:
        """Scale a picture [shape=(H, W, 3), dtype=uint8, RGB, C-contiguous], and cut it to ``size``."""
        from PIL import Image  # an optional package

        size = self._scaled_size(*rgb.shape[:2])
        if size is not None:
            scaled = Image.fromarray(rgb).resize((size[1], size[0]), Image.Resampling(self.resample))
            rgb = np.asarray(scaled)
        return np.ascontiguousarray(rgb if self.cut is None else _middle(rgb, self.cut))

    def normalize(self, pixels: Any) -> Any:
        """Normalize a tensor of results of ``crop`` [shape=(B, h, w, 3), dtype=uint8, RGB] on its device.

        The result has [shape=(B, 3, h, w), dtype=float32].
        """
        import torch  # an optional package

        mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (self.mean, self.std))
        scaled = (pixels.permute(0, 3, 1, 2).double() * self.factor).float().contiguous()
        return (scaled - mean) / std

    def _scaled_size(self, height: int, width: int) -> tuple[int, int] | None:
        if self.short_side is None:
            return self.scaled
        short, long = sorted((height, width))
        other = int(self.short_side * long / short)
        return (other, self.short_side) if width <= height else (self.short_side, other)


def preprocessing_of(key: str, model: str) -> Preprocessing:
    """Return the steps of the image processor of a model. ``key`` and ``model`` are as in ``config_of``.

    Raise ``UsageError`` if it has none, or one whose result would differ.
    """
    together = config_of(key, model, "processor_config.json", optional=True).get("image_processor")
    if together is not None and not isinstance(together, dict):
        raise UsageError(f"{key}: got '{printable(model)}', whose processor_config.json has no image processor")
    settings = config_of(key, model, "preprocessor_config.json") if together is None else together
    return _parsed(f"{key}: image processor of '{printable(model)}'", settings)


def _parsed(where: str, settings: Mapping[str, Any]) -> Preprocessing:
    given = {name: value for name, value in settings.items() if value is not None}
    cuts = _check_kind(where, given)
    for name in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
        check_choice(f"{where}: {name}", given.get(name, True), (True, False))
    short_side = scaled = cut = None
    resample, factor = given.get("resample", 0), given.get("rescale_factor", 1 / 255)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    if given.get("do_resize", True):
        short_side, scaled = _scaled(f"{where}: size", given.get("size"))
        check_number(f"{where}: resample", given.get("resample"), int, 0, 5)
    if given.get("do_center_crop", cuts):
        cut = _height_width(f"{where}: crop_size", given.get("crop_size"))
    if cut is None and scaled is None:
        raise UsageError(f"{where}: got pixels whose size depends on the video, expected do_center_crop: true")
    if given.get("do_rescale", True):
        check_number(f"{where}: rescale_factor", factor, (int, float), 1e-6, 1)
    else:
        factor = 1.0
    if given.get("do_normalize", True):
        mean = _three(f"{where}: image_mean", given.get("image_mean"), 0)
        std = _three(f"{where}: image_std", given.get("image_std"), 1e-6)
    return Preprocessing(short_side, scaled, resample, cut, factor, mean, std)


def _check_kind(where: str, given: Mapping[str, Any]) -> bool:
    """Check that the settings are those of a processor which is known. Return whether it cuts by default."""
    kind = str(given.get("image_processor_type", given.get("feature_extractor_type")))
    kind = kind.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")
    if kind not in PROCESSORS:
        raise UsageError(f"{where}: got '{printable(kind)}', expected one of: {', '.join(PROCESSORS)}")
    for name, value in given.items():
        is_known = name in _USED or name in _WITHOUT_EFFECT or (name in _OFF and value == _OFF[name])
        if not is_known:
            raise UsageError(
                f"{where}: got {printable(name)}: {printable(repr(value))}, which is not supported, expected only the "
                f"settings of {', '.join(PROCESSORS)}"
            )
    return PROCESSORS[kind]


def _scaled(where: str, size: Any) -> tuple[int | None, tuple[int, int] | None]:
    """Return the length of the shorter side, or (height, width)."""
    short_side = size["shortest_edge"] if isinstance(size, dict) and size.keys() == {"shortest_edge"} else size
    if isinstance(short_side, dict):
        return None, _height_width(where, short_side)
    check_number(where, short_side, int, 1, _MAX_SIDE)
    return short_side, None


def _height_width(where: str, size: Any) -> tuple[int, int]:
    if not isinstance(size, dict):
        size = {"height": size, "width": size}
    if size.keys() != {"height", "width"}:
        raise UsageError(f"{where}: got {printable(repr(size))}, expected height and width")
    for side in size.values():
        check_number(where, side, int, 1, _MAX_SIDE)
    return size["height"], size["width"]


def _three(where: str, values: Any, least: float) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != 3:
        raise UsageError(f"{where}: got {printable(repr(values))}, expected three numbers")
    for value in values:
        check_number(where, value, (int, float), least, 256)
    return tuple(map(float, values))


def _middle(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Cut the middle out. An odd pixel too many is cut at the end, and one too few is added at the start.

    Examples
    --------
    >>> line = np.arange(1, 6).reshape(5, 1, 1)
    >>> _middle(line, (2, 1)).ravel().tolist(), _middle(line, (8, 1)).ravel().tolist()
    ([2, 3], [0, 0, 1, 2, 3, 4, 5, 0])
    """
    starts = [(side - cut) // 2 for side, cut in zip(picture.shape, size, strict=False)]
    ends = [cut - side + start for start, side, cut in zip(starts, picture.shape, size, strict=False)]
    margins = [(max(0, -start), max(0, end)) for start, end in zip(starts, ends, strict=True)]
    top, left = (max(0, start) for start in starts)
    return np.pad(picture, [*margins, (0, 0)])[top : top + size[0], left : left + size[1]]
