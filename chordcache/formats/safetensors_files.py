"""Latents and text embeddings of each item as safetensors files, also by the names and keys of two trainers.

Source: ``save_latent_cache_wan`` and ``save_text_encoder_output_cache_wan`` of musubi-tuner,
https://github.com/kohya-ss/musubi-tuner; ``PrecomputedDataset`` of LTX-Video-Trainer,
https://github.com/Lightricks/LTX-Video-Trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from chordcache.errors import UsageError
from chordcache.features.read_side import NORMALIZED_LATENTS
from chordcache.formats.item import ExportItem
from chordcache.formats.items import Items
from chordcache.read.clips import ClipReader, ClipView
from chordcache.storage.row_clock import FrameGroups

Files = Iterator[tuple[str, Callable[[Path], None]]]
"""Names of files, and functions that write them"""

Arrays = dict[str, np.ndarray]


def files(items: Items, item: ExportItem) -> Files:
    """Yield the file of an item, "NAME.safetensors", with the arrays that a sample of a dataset has.

    ``latents`` [shape=(C, t, h, w) or as the VAE's family has them], normalized; ``text`` [shape=(L, D)], ``text_mask``
    [shape=(L,), dtype=bool] and ``text_pooled`` [shape=(D,)], as far as the cache has them.
    """
    yield f"{item.name}.safetensors", lambda path: _save(path, _arrays(items, item, "latents", "text"))


def files_of_musubi_wan(items: Items, item: ExportItem) -> Files:
    """Yield the two files of an item in the cache folder of musubi-tuner for Wan.

    Latents are ``latents_FxHxW_float16`` [shape=(C, F, H, W)], the tokens of the caption without padding
    ``varlen_t5_float16`` [shape=(L, D)].
    """
    video = item.video
    key, start, num_frames = video.key, item.frames.start, len(item.frames)
    size = {"width": str(video.width), "height": str(video.height)}
    name = f"{key}_{start:05}-{num_frames:03}_{video.width:04}x{video.height:04}_wan.safetensors"
    head = {"architecture": "wan", "format_version": "1.0.1"}

    def latents(path: Path) -> None:
        values = _arrays(items, item, "latents")["latents"]
        shape = "x".join(map(str, values.shape[1:]))
        _save(path, {f"latents_{shape}_{values.dtype}": values}, {**head, **size, "frame_count": str(num_frames)})

    def text(path: Path) -> None:
        tokens = _tokens(_arrays(items, item, "text"))
        _save(path, {f"varlen_t5_{tokens.dtype}": tokens}, {**head, "caption1": video.caption or ""})

    yield name, latents
    if start == 0:  # the clips of a video share its caption
        yield f"{key}_wan_te.safetensors", text


def files_of_ltx(items: Items, item: ExportItem) -> Files:
    """Yield the two files of an item in the folders ``latents`` and ``conditions`` of LTX-Video-Trainer.

    The first has ``latents`` [shape=(C, F, H, W)], ``num_frames``, ``height`` and ``width`` of these latents, and
    ``fps``. The second has ``prompt_embeds`` [shape=(L, D)] and ``prompt_attention_mask`` [shape=(L,), dtype=bool].
    """

    def latents(path: Path) -> None:
        values = _arrays(items, item, "latents")["latents"]
        sizes = dict(zip(("num_frames", "height", "width"), map(np.asarray, values.shape[1:]), strict=True))
        times = item.video.pts_seconds[item.frames]
        fps = np.asarray((len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0)
        _save(path, {"latents": values, **sizes, "fps": fps})

    def conditions(path: Path) -> None:
        arrays = _arrays(items, item, "text")
        mask = arrays.get("text_mask", np.ones(len(arrays["text"]), bool))
        _save(path, {"prompt_embeds": arrays["text"], "prompt_attention_mask": mask})

    yield f"latents/{item.name}.safetensors", latents
    yield f"conditions/{item.name}.safetensors", conditions


def _tokens(arrays: Arrays) -> np.ndarray:
    """Return the rows of tokens without those of padding."""
    return arrays["text"][arrays["text_mask"]] if "text_mask" in arrays else arrays["text"]


def _arrays(items: Items, item: ExportItem, *features: str) -> Arrays:
    """Return the arrays of features of an item, as a dataset reads them. Latents are of whole clips."""
    infos = {name: item.video.sidecar.feature(name) for name in features}
    wanted, features = features, tuple(name for name, info in infos.items() if info and info.absent is None)
    if not features:
        raise UsageError(
            f"to: got a format of safetensors files, but video '{item.video.key}' has no {' and no '.join(wanted)}, "
            f"expected a cache with them. Run 'chordcache build -c CONFIG --features {','.join(wanted)}' with a config "
            "that names the models."
        )
    if "latents" in features:
        _check_clip(item)
    reader = ClipReader(features, None, "error", frozenset({NORMALIZED_LATENTS}))
    view = ClipView(np.asarray(item.frames, np.int64), None)
    (arrays,) = reader.read(items.cache, item.video, [view], one_thread=False)
    if "latents" in arrays:
        arrays["latents"] = arrays["latents"].astype(item.video.feature("latents").dtype)
    return arrays


def _check_clip(item: ExportItem) -> None:
    """Raise ``UsageError`` unless an item is one clip as the VAE encoded it."""
    groups = FrameGroups.of(item.video.feature("latents").facts)
    length = groups.num_in_clip if groups else None
    if length is not None and (item.frames.step > 1 or item.frames.start % length or len(item.frames) > length):
        raise UsageError(
            f"clip: got {len(item.frames)} frames of video '{item.video.key}', whose latents are of clips of {length}. "
            f"Add clip={length}."
        )


def _save(path: Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.asarray(values, order="C") for name, values in arrays.items()}, path, metadata)
