"""Decode of the JPEGs of a batch on a GPU, and their crops there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from chordcache.errors import UsageError
from chordcache.features.read_side import EncodedFrames
from chordcache.media.cropping import CropBox, blacken_padding

DecodeJpegs: TypeAlias = Callable[[Sequence[bytes]], Sequence[torch.Tensor]]
"""Function from JPEGs to pictures [shape=(3, H, W), dtype=uint8, 0 to 255, RGB] on one device."""


def nvjpeg_decoder(device: torch.device) -> DecodeJpegs:
    """Return a function that decodes JPEGs on a GPU, with torchvision and nvJPEG.

    Raises ``UsageError`` if torch cannot use the device, or torchvision is not installed.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        raise UsageError(
            f"decode: got 'cuda' with device '{device}', expected a GPU that torch can use. Take decode='cpu'."
        )
    if importlib.util.find_spec("torchvision") is None:
        raise UsageError("decode: got 'cuda', expected torchvision to be installed. Run: pip install torchvision")
    from torchvision.io import ImageReadMode, decode_jpeg

    def decode(jpegs: Sequence[bytes]) -> Sequence[torch.Tensor]:
        data = [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]
        pictures: Sequence[torch.Tensor] = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
        return pictures

    return decode


def decode_clips(clips: Sequence[EncodedFrames], decode: DecodeJpegs) -> list[torch.Tensor]:
    """Decode the frames of several clips at once, cut and scale them on the device.

    The filter is that of Pillow's and torch's antialiased bilinear interpolation. ``ClipLoader`` without a GPU has one
    that is nearly the same, see ``media.cropping.resize_pictures``.

    Returns
    -------
    list of torch.Tensor [shape=(T, 3, h, w), dtype=uint8, 0 to 255, RGB]
        One for each clip. With several clips in a sample, [shape=(N, T, 3, h, w)]. Clips of one shape are consecutive
        in one tensor.
    """
    pictures = list(decode([jpeg for clip in clips for jpeg in clip.jpegs]))
    frames: dict[tuple[int, ...], torch.Tensor] = {}
    shapes = [(*clip.shape[:-3], 3, *clip.shape[-3:-1]) for clip in clips]
    out = []
    for clip, shape in zip(clips, shapes, strict=True):
        if shape not in frames:
            frames[shape] = torch.empty((shapes.count(shape), *shape), dtype=torch.uint8, device=pictures[0].device)
        memory, frames[shape] = frames[shape][0], frames[shape][1:]
        of_clip, pictures = pictures[: len(clip.jpegs)], pictures[len(clip.jpegs) :]
        memory.view(-1, *shape[-3:]).copy_(_cropped(torch.stack(of_clip), clip.crop))
        out.append(memory)
    return out


def _cropped(pictures: torch.Tensor, crop: CropBox | None) -> torch.Tensor:
    """Cut, scale and mirror pictures [shape=(n, 3, H, W), dtype=uint8]."""
    if crop is None:
        return pictures
    size = pictures.shape[-2], pictures.shape[-1]
    part = _cut(pictures, crop)
    if part.shape[-2:] != crop.size:
        scaled = torch.nn.functional.interpolate(
            part.float(), crop.size, mode="bilinear", align_corners=False, antialias=True
        )
        part = scaled.round_().clamp_(0, 255).to(torch.uint8)
        channels_last: Any = part.permute(0, 2, 3, 1)
        blacken_padding(channels_last, crop, size)
    return part.flip(-1) if crop.flip else part


def _cut(pictures: torch.Tensor, crop: CropBox) -> torch.Tensor:
    """Return the part of pictures in a crop, zero beyond their border."""
    top, left = max(0, crop.top), max(0, crop.left)
    part = pictures[..., top : max(0, crop.top + crop.height), left : max(0, crop.left + crop.width)]
    if part.shape[-2:] == (crop.height, crop.width):
        return part
    padded = pictures.new_zeros((*pictures.shape[:-2], crop.height, crop.width))
    padded[..., top - crop.top :, left - crop.left :][..., : part.shape[-2], : part.shape[-1]] = part
    return padded
