"""Decode of the JPEGs or planes of a batch on a GPU, and their crops there."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch

from chordcache.errors import UsageError
from chordcache.features.read_side import EncodedFrames
from chordcache.media.cropping import CropBox, Rectangle, blacken_padding
from chordcache.media.planes import around, cut, split

DecodeJpegs: TypeAlias = Callable[[Sequence[bytes]], Sequence[torch.Tensor]]
"""Function from JPEGs to pictures [shape=(3, H, W), dtype=uint8, 0 to 255, RGB] on one device."""

_Group: TypeAlias = Sequence[EncodedFrames]
"""Clips of one shape, with the same crop of pictures of one size, either all JPEGs or all planes"""

_Pictures: TypeAlias = tuple[torch.Tensor, CropBox | None]
"""The pictures of a group [shape=(n, 3, H, W), dtype=uint8, 0 to 255, RGB], and the crop to take of them"""


def gpu_decoder(device: torch.device) -> FrameDecoder:
    """Make a decoder for a GPU, with nvJPEG. Raises ``UsageError`` if torch cannot use the device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        raise UsageError(
            f"decode: got 'cuda' with device '{device}', expected a GPU that torch can use. Take decode='cpu'."
        )

    def decode(jpegs: Sequence[bytes]) -> Sequence[torch.Tensor]:
        if importlib.util.find_spec("torchvision") is None:  # planes do not need it
            what = "decode: got 'cuda' and frames of codec jpeg, expected torchvision to be installed"
            raise UsageError(f"{what}. Run: pip install torchvision")
        from torchvision.io import ImageReadMode, decode_jpeg

        data = [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]
        pictures: Sequence[torch.Tensor] = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
        return pictures

    return FrameDecoder(device, decode)


class FrameDecoder:
    """A decoder of frames on one device. Several threads may use it."""

    def __init__(self, device: torch.device, decode_jpegs: DecodeJpegs) -> None:
        self._device = device
        self._decode_jpegs = decode_jpegs
        # Of another priority, so that no SideStream is the same: torch gives out 32 of each priority in turn
        is_cuda = device.type == "cuda"
        self._jpeg_stream = torch.cuda.Stream(device, priority=-1) if is_cuda else None  # type: ignore[no-untyped-call]

    def decode_clips(self, clips: Sequence[EncodedFrames]) -> list[torch.Tensor]:
        """Decode the frames of several clips [shape=(T, 3, h, w), dtype=uint8], cut and scaled on the device.

        On a GPU, the work is queued on the current stream. The filter is that of Pillow's and torch's antialiased
        bilinear interpolation. That of the CPU is nearly the same, see ``media.cropping.resize_pictures``. Clips of one
        shape lie one after the other in one tensor. As on a CPU, the channels of a pixel lie side by side in memory,
        which convolutions are fastest with.
        """
        alike: dict[Any, list[int]] = {}
        for position, clip in enumerate(clips):
            alike.setdefault((_is_jpeg(clip), clip.shape, clip.picture, clip.crop), []).append(position)
        groups = [[clips[position] for position in positions] for positions in alike.values()]
        jpegs = iter(self._decode_jpeg_groups([group for group in groups if _is_jpeg(group[0])]))
        planes = iter(self._convert_groups([group for group in groups if not _is_jpeg(group[0])]))
        memory: dict[tuple[int, ...], Iterator[torch.Tensor]] = {}
        for shape, count in Counter(clip.shape for clip in clips).items():
            memory[shape] = iter(torch.empty((count, *shape), dtype=torch.uint8, device=self._device))
        frames = [next(memory[clip.shape]) for clip in clips]
        for group, positions in zip(groups, alike.values(), strict=True):
            pictures, crop = next(jpegs if _is_jpeg(group[0]) else planes)
            cropped = _cropped(pictures, crop).view(len(group), *group[0].shape)
            for position, of_clip in zip(positions, cropped, strict=True):
                frames[position].copy_(of_clip)
        return [of_clip.transpose(-1, -2).transpose(-2, -3) for of_clip in frames]

    def _decode_jpeg_groups(self, groups: Sequence[_Group]) -> list[_Pictures]:
        """Decode the JPEGs of all groups at once."""
        jpegs = [[jpeg for clip in group for jpeg in clip.stored] for group in groups]
        pictures = list(self._on_jpeg_stream([jpeg for of_group in jpegs for jpeg in of_group])) if jpegs else []
        stacked = []
        for group, of_group in zip(groups, jpegs, strict=True):
            stacked.append((torch.stack(pictures[: len(of_group)]), group[0].crop))
            del pictures[: len(of_group)]
        return stacked

    def _on_jpeg_stream(self, jpegs: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Decode JPEGs into memory that no queued work uses.

        nvJPEG writes on a stream of its own, without waiting for the current one (torchvision 0.26). Memory that was
        released on the current stream may have readers that are still queued there. Only these pictures get the memory
        of ``_jpeg_stream``, and torch reuses it when the work that was queued before their release is done.
        """
        if self._jpeg_stream is None:
            return self._decode_jpegs(jpegs)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._jpeg_stream):
            pictures = self._decode_jpegs(jpegs)
        current.wait_stream(self._jpeg_stream)  # which torchvision made wait for nvJPEG
        for picture in pictures:
            picture.record_stream(current)
        return pictures

    def _convert_groups(self, groups: Sequence[_Group]) -> list[_Pictures]:
        """Convert planes. Only the pixels in a crop are sent, and the few around them that share their chroma."""
        parts: list[tuple[np.ndarray, ...]] = []
        crops = []
        for group in groups:
            crop, picture = group[0].crop, group[0].picture
            visible = crop.visible(picture) if crop else None
            part = around(visible) if visible else Rectangle(0, 0, *picture)
            crops.append(crop.within(part) if crop else None)
            stored: list[Any] = [clip.stored for clip in group]
            parts += zip(*(cut(split(planes), part) for planes in stored), strict=True)
        planes = iter(self._sent(parts))
        return [(_to_rgb(next(planes), next(planes), next(planes)), crop) for crop in crops]

    def _sent(self, arrays: Sequence[Sequence[np.ndarray]]) -> list[torch.Tensor]:
        """Join arrays of uint8 along their first axis, and copy all to the device at once."""
        shapes = [(sum(map(len, few)), *few[0].shape[1:]) for few in arrays]
        ends = [0, *accumulate(map(math.prod, shapes))]
        pinned = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        values = pinned.numpy()
        for few, shape, start, end in zip(arrays, shapes, ends[:-1], ends[1:], strict=True):
            np.concatenate(few, out=values[start:end].reshape(shape))
        sent = pinned.to(self._device, non_blocking=True)
        return [sent[start:end].view(shape) for shape, start, end in zip(shapes, ends[:-1], ends[1:], strict=True)]


def _is_jpeg(clip: EncodedFrames) -> bool:
    return isinstance(clip.stored, list)


def _to_rgb(y: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Convert planes of full-range BT.601 to pictures [shape=(n, 3, H, W), dtype=uint8].

    ``y`` is [shape=(n, H, W), dtype=uint8], ``u`` and ``v`` have half the height and half the width.
    """
    num, height, width = y.shape
    blue, red = u.float() - 128, v.float() - 128
    chroma = torch.stack((1.402 * red, -0.344136 * blue - 0.714136 * red, 1.772 * blue), 1)
    luma = y.view(num, 1, height // 2, 2, width // 2, 2)
    pictures = luma + chroma[:, :, :, None, :, None]
    return pictures.round_().clamp_(0, 255).to(torch.uint8).view(num, 3, height, width)


def _cropped(pictures: torch.Tensor, crop: CropBox | None) -> torch.Tensor:
    """Cut, scale and mirror pictures [shape=(n, 3, H, W), dtype=uint8].

    The result [shape=(n, h, w, 3), 0 to 255, whole numbers] is a view of any layout, in uint8 or float32.
    """
    if crop is None:
        return pictures.permute(0, 2, 3, 1)
    part = _cut(pictures, crop)
    is_scaled = part.shape[-2:] != crop.size
    if is_scaled:
        rows, columns = (_weights(*sides, pictures.device) for sides in zip(part.shape[-2:], crop.size, strict=True))
        part = (rows @ (part.float() @ columns.T)).round_().clamp_(0, 255)
    out: Any = part.permute(0, 2, 3, 1)
    if is_scaled:
        blacken_padding(out, crop, (pictures.shape[-2], pictures.shape[-1]))
    shown: torch.Tensor = out.flip(2) if crop.flip else out
    return shown


@lru_cache(maxsize=256)
def _weights(source: int, target: int, device: torch.device) -> torch.Tensor:
    """Return what scales one side, by a product of matrices [shape=(target, source), dtype=float32].

    The filter is a triangle as wide as the shrink. torch's own kernel for it takes much longer on a GPU.
    """
    shrink = source / target
    centers = (np.arange(target) + 0.5) * shrink
    distances = np.abs(np.arange(source) + 0.5 - centers[:, None])
    weights = np.maximum(0, 1 - distances / max(1.0, shrink))
    weights /= weights.sum(1, keepdims=True)
    return torch.from_numpy(weights.astype(np.float32)).to(device)  # waits for the copy: any stream may use it


def _cut(pictures: torch.Tensor, crop: CropBox) -> torch.Tensor:
    """Return the part of pictures in a crop, zero beyond their border."""
    top, left = max(0, crop.top), max(0, crop.left)
    part = pictures[..., top : max(0, crop.top + crop.height), left : max(0, crop.left + crop.width)]
    if part.shape[-2:] == (crop.height, crop.width):
        return part
    padded = pictures.new_zeros((*pictures.shape[:-2], crop.height, crop.width))
    padded[..., top - crop.top :, left - crop.left :][..., : part.shape[-2], : part.shape[-1]] = part
    return padded
