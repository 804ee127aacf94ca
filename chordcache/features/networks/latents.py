"""The feature "latents": pictures or clips as the variational autoencoder (VAE) of a generator encodes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import UsageError
from chordcache.features.base import Rows, missing_package
from chordcache.features.networks.extractor import PretrainedExtractor, stored
from chordcache.features.networks.pretrained import check_files, config_of, hash_of_files, load_vae, problem_of_model
from chordcache.features.read_side import FIRST_FRAME_LATENTS
from chordcache.media.frame import Frame

_KEY = "features.latents.model"

_NORMALIZATION = ("scaling_factor", "shift_factor", "latents_mean", "latents_std")
"""Settings of a VAE with which a training normalizes its latents"""


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


def _compression_of(key: str, config: Mapping[str, Any]) -> list[int]:
    """Return how many frames, and how many rows and columns of pixels, become one in the latents."""
    try:
        factors = VAES[config["_class_name"]].compression(config)
    except TypeError:  # another type than diffusers writes
        factors = (None, None)
    if not all(type(number) in (int, float) and number in range(1, 65) for number in factors):
        raise UsageError(f"{key}: got a config.json that compresses by {factors}, expected whole numbers from 1 to 64")
    return [int(number) for number in factors]


class _Vae(NamedTuple):
    """The result of ``setup``."""

    network: Any
    takes_clips: bool
    first_frame: str | None

    def condition(self, pixels: Any) -> Any:
        """Return latents of the first frames of clips [shape=(n, C, t, h, w)], for pixels [shape=(n, 3, T, H, W)]."""
        import torch

        first, others = pixels[:, :, :1], pixels[:, :, 1:]
        if self.first_frame == "before_gray":
            return self.network.encode(torch.cat([first, torch.zeros_like(others)], dim=2)).latent_dist.mode()
        return self.network.encode(first).latent_dist.mode()


class LatentsExtractor(PretrainedExtractor):
    """Latents of a VAE: of each picture, or of clips if the VAE compresses time too.

    Arrays
    ------
    ``name`` [shape=(T, C, h, w), dtype=float32 or float16]
        Mean of the posterior, not normalized. A VAE of pictures has a row for each frame. One that compresses time by 4
        has a row for the first frame of each clip, and one for each 4 frames after it.
    ``name.logvar`` [shape=(T, C, h, w), dtype=float32 or float16]
        With ``moments``: logarithm of the variance of the posterior, -30 to 20.
    ``name.first_frame`` [shape=(T, C, h, w), dtype=float32 or float16]
        With ``first_frame``: mean of the posterior of the first frame of each clip, in the first row of the clip. The
        other rows are zero, or with "before_gray" those of gray frames after it.

    ``facts["normalization"]`` holds the settings of ``normalization`` that are in the weights, as those of LTX.

    A video of more than ``clip_frames`` is encoded as several clips, each without the frames before it. A VAE of
    pictures ignores this. "pad" repeats the last rows, columns and frames of what the VAE cannot take.

    The parameters are the settings of ``LatentsConfig``, ``files``, see ``PretrainedExtractor``, and what config.json
    says: ``compression`` is the number of frames, and of rows and columns of pixels, that become one in the latents.
    ``normalization`` has ``scaling_factor``, ``shift_factor``, ``latents_mean`` and ``latents_std``, as far as the VAE
    has them. ``axes`` is the order of the axes in which training scripts take a clip, such as "cthw". Latents are
    stored in "tchw". ``first_frame`` is "alone" or "before_gray", to also encode the first frame of each clip: as a
    clip of one frame, or with all other frames of the clip gray, which are zero for the VAE.

    Notes
    -----
    Source: ``diffusers``, ``vae.encode(pixels / 127.5 - 1).latent_dist``, its ``mode()`` and ``logvar``.
    """

    units: ClassVar[Mapping[str, str]] = {
        "": "mean of the posterior of the VAE",
        "logvar": "logarithm of the variance of the posterior",
        "first_frame": "mean of the posterior of the first frame of each clip",
    }

    def __init__(self, name: str, **arguments: Any) -> None:
        super().__init__(name)
        self._dtype = np.dtype(arguments["dtype"])
        self._pads = arguments["fit"] == "pad"
        self._moments, self._first_frame = "moments" in arguments, "first_frame" in arguments
        self._per_row, self._per_pixel = arguments["compression"]
        self._clip_frames: int = arguments["clip_frames"]
        self._clip: list[np.ndarray] = []
        self._num_frames = 0

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the section, the hash of the files of a local model, and what config.json says about latents."""
        arguments = {**asdict(section), "files": hash_of_files(section.model)}
        for name in ("moments", "first_frame"):
            if not arguments[name]:  # fingerprints do not depend on it, as before there was a choice
                del arguments[name]
        if problem_of_model(_KEY, arguments, "_class_name", VAES):
            return arguments  # ``missing_requirement`` says so
        config = config_of(_KEY, section.model)
        per_row, per_pixel = _compression_of(_KEY, config)
        if per_row > 1 and (section.clip_frames - 1) % per_row:
            raise UsageError(
                f"features.latents.clip_frames: got {section.clip_frames}, expected 1 plus a multiple of {per_row}, "
                f"such as {1 + section.clip_frames // per_row * per_row}"
            )
        clips = {"clip_frames": section.clip_frames} if per_row > 1 else {"clip_frames": 1}
        normalization = {name: config[name] for name in _NORMALIZATION if config.get(name) is not None}
        kind = VAES[config["_class_name"]]
        if section.first_frame:
            if per_row == 1:
                raise UsageError(
                    "features.latents.first_frame: got True for a VAE of pictures, expected one that compresses time. "
                    "Leave it out. Each row of latents is that of one frame."
                )
            arguments["first_frame"] = kind.first_frame(config)
            if config.get("invert_scale_latents"):
                normalization["invert_scale_latents"] = True
        compression = [per_row, per_pixel]
        return {**arguments, **clips, "compression": compression, "normalization": normalization, "axes": kind.axes}

    @classmethod
    def identity(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments without paths, and without the axes: these are not stored in this order."""
        return {name: value for name, value in super().identity(arguments).items() if name != "axes"}

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs diffusers, or the problem of the model's folder."""
        return missing_package("models", "torch", "diffusers") or problem_of_model(_KEY, arguments, "_class_name", VAES)

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Load the weights, in float32."""
        check_files(arguments["files"], arguments["model"])
        kind = str(config_of(_KEY, arguments["model"])["_class_name"])
        network = load_vae(kind, arguments["model"]).to(device)
        return _Vae(network, arguments["compression"][0] > 1, arguments.get("first_frame"))

    @classmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Return the moments of each picture or clip, and the normalization that is in the weights.

        The moments [shape=(2 or 3, t, C, h, w), dtype=float32] are the mean and the logarithm of the variance, and the
        mean of the first frame if it is encoded too.
        """
        import torch

        pixels = torch.from_numpy(np.stack(inputs)).to(model.network.device)
        # In the order of torch: with channels last, its kernels differ by up to 5e-4
        pixels = pixels.movedim(-1, 1).contiguous().float() / 127.5 - 1
        with torch.inference_mode():
            posterior = model.network.encode(pixels).latent_dist
            arrays = [posterior.mode(), posterior.logvar]
            if model.first_frame is not None:
                condition = torch.zeros_like(arrays[0])
                first = model.condition(pixels)
                condition[:, :, : first.shape[2]] = first
                arrays.append(condition)
        moments = torch.stack(arrays, dim=1)
        moments = moments.movedim(2, 3) if model.takes_clips else moments[:, :, None]
        buffers = dict(model.network.named_buffers())
        normalization = {name: buffers[name].tolist() for name in _NORMALIZATION if name in buffers}
        return [(array, normalization) for array in moments.float().cpu().numpy()]

    def prepare(self, frame: Frame) -> Any:
        """Return a picture, or the clip that is complete with it."""
        picture = self._fitted(frame.rgb())
        self._num_frames += 1
        if self._per_row == 1:
            return picture
        self._clip.append(picture)
        return self._taken_clip() if len(self._clip) == self._clip_frames else None

    def last_inputs(self) -> Sequence[Any]:
        """Return the rest of the frames as a clip."""
        if not self._clip:
            return ()
        num_missing = -(len(self._clip) - 1) % self._per_row
        if num_missing and not self._pads:
            raise ValueError(
                f"the last clip has {len(self._clip)} frames, expected 1 plus a multiple of {self._per_row}; take "
                "features.latents.fit: pad, or other segments or frames.buckets"
            )
        self._clip += [self._clip[-1]] * num_missing
        return (self._taken_clip(),)

    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        """Return the latents of the next pictures or clips."""
        if outputs[0][1]:
            self.facts["normalization"] = outputs[0][1]
        moments = np.concatenate([moments for moments, _ in outputs], axis=1)
        rows = {self.name: stored(moments[0], self._dtype)}
        if self._moments:
            rows[f"{self.name}.logvar"] = stored(moments[1], self._dtype)
        if self._first_frame:
            rows[FIRST_FRAME_LATENTS] = stored(moments[2], self._dtype)
        return rows

    def finish(self) -> Rows:
        """Return the remaining rows, and state the frames that a row covers."""
        rows = super().finish()
        if self._per_row > 1:
            self.facts.update(frames_per_row=self._per_row, frames_in_first_row=1)
            if self._num_frames > self._clip_frames:
                self.facts.update(frames_per_clip=self._clip_frames)
        return rows

    def num_rows(self, num_frames: int) -> int | None:
        """Return the number of frames, or None if a row covers several."""
        return num_frames if self._per_row == 1 else None

    def _taken_clip(self) -> np.ndarray:
        clip, self._clip = np.stack(self._clip), []
        return clip

    def _fitted(self, picture: np.ndarray) -> np.ndarray:
        """Return a picture whose sides are multiples of a latent's."""
        height, width = picture.shape[:2]
        bottom, right = -height % self._per_pixel, -width % self._per_pixel
        if not bottom and not right:
            return picture
        if not self._pads:
            raise ValueError(
                f"pictures have {width}x{height} pixels, expected multiples of {self._per_pixel}; take "
                "features.latents.fit: pad, or another frames.short_side or frames.buckets"
            )
        return np.pad(picture, ((0, bottom), (0, right), (0, 0)), mode="edge")
