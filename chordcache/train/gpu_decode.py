"""Decode of the JPEGs or planes of a batch on a GPU, and their crops there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np
import torch

from chordcache.errors import UsageError
from chordcache.features.read_side import EncodedFrames
from chordcache.media.cropping import CropBox, Rectangle, blacken_padding

DecodeJpegs: TypeAlias = Callable[[Sequence[bytes]], Sequence[torch.Tensor]]
"""Function from JPEGs to pictures [shape=(3, H, W), dtype=uint8, 0 to 255, RGB] on one device."""


def gpu_decoder(device: torch.device) -> FrameDecoder:
    """Make a decoder for a GPU. Raises ``UsageError`` if torch cannot use the device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        raise UsageError(
            f"decode: got 'cuda' with device '{device}', expected a GPU that torch can use. Take decode='cpu'."
        )
    return FrameDecoder(device, _decode_by_nvjpeg(device))


def _decode_by_nvjpeg(device: torch.device) -> DecodeJpegs:
    """Return a function that decodes JPEGs with torchvision and nvJPEG.

    It raises ``UsageError`` if torchvision is not installed, which planes do not need.
    """

    def decode(jpegs: Sequence[bytes]) -> Sequence[torch.Tensor]:
        if importlib.util.find_spec("torchvision") is None:
            what = "decode: got 'cuda' and frames of codec jpeg, expected torchvision to be installed"
            raise UsageError(f"{what}. Run: pip install torchvision")
        from torchvision.io import ImageReadMode, decode_jpeg

        data = [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]
        pictures: Sequence[torch.Tensor] = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
        return pictures

    return decode


class FrameDecoder:
    """A decoder of frames on one device. Several threads may use it.

    Parameters
    ----------
    device : torch.device
        The device.
    decode_jpegs : DecodeJpegs
        The decoder of JPEGs on it.
    """

    def __init__(self, device: torch.device, decode_jpegs: DecodeJpegs) -> None:
        self._device = device
        self._decode_jpegs = decode_jpegs
        self._jpeg_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def decode_clips(self, clips: Sequence[EncodedFrames]) -> list[torch.Tensor]:
        """Decode the frames of several clips at once, cut and scale them on the device.

        On a GPU, the work is queued on the current stream. The filter is that of Pillow's and torch's antialiased
        bilinear interpolation. ``ClipLoader`` without a GPU has one that is nearly the same, see
        ``media.cropping.resize_pictures``.

        Returns
        -------
        list of torch.Tensor [shape=(T, 3, h, w), dtype=uint8, 0 to 255, RGB]
            One for each clip. With several clips in a sample, [shape=(N, T, 3, h, w)]. Clips of one shape are
            consecutive in one tensor.
        """
        of_jpegs = [clip for clip in clips if isinstance(clip.pictures[0], bytes)]
        of_planes = [clip for clip in clips if not isinstance(clip.pictures[0], bytes)]
        decoded = dict(zip(map(id, of_jpegs), self._jpegs(of_jpegs), strict=True))
        decoded |= zip(map(id, of_planes), self._planes(of_planes), strict=True)
        memory: dict[tuple[int, ...], torch.Tensor] = {}
        shapes = [(*clip.shape[:-3], 3, *clip.shape[-3:-1]) for clip in clips]
        out = []
        for clip, shape in zip(clips, shapes, strict=True):
            if shape not in memory:
                memory[shape] = torch.empty((shapes.count(shape), *shape), dtype=torch.uint8, device=self._device)
            frames, memory[shape] = memory[shape][0], memory[shape][1:]
            frames.view(-1, *shape[-3:]).copy_(_cropped(*decoded[id(clip)]))
            out.append(frames)
        return out

    def _jpegs(self, clips: Sequence[EncodedFrames]) -> list[tuple[torch.Tensor, CropBox | None]]:
        """Decode JPEGs. Return the pictures of each clip [shape=(n, 3, H, W)], and its crop."""
        if not clips:
            return []
        pictures = list(self._on_jpeg_stream([jpeg for clip in clips for jpeg in clip.pictures]))
        stacked = []
        for clip in clips:
            of_clip, pictures = pictures[: len(clip.pictures)], pictures[len(clip.pictures) :]
            stacked.append((torch.stack(of_clip), clip.crop))
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
        context: AbstractContextManager[Any] = torch.cuda.stream(self._jpeg_stream)
        with context:
            pictures = self._decode_jpegs(jpegs)
        current.wait_stream(self._jpeg_stream)  # which torchvision made wait for nvJPEG
        for picture in pictures:
            picture.record_stream(current)
        return pictures

    def _planes(self, clips: Sequence[EncodedFrames]) -> list[tuple[torch.Tensor, CropBox | None]]:
        """Convert planes. Only the pixels in a clip's crop are sent. Return as ``_jpegs``."""
        from chordcache.media.planes import around, cut, split

        parts: list[list[np.ndarray]] = []
        crops = []
        for clip in clips:
            pictures: Any = clip.pictures
            size = pictures[0].shape[0] * 2 // 3, pictures[0].shape[1]
            visible = clip.crop.visible(size) if clip.crop else None
            part = around(visible) if visible else Rectangle(0, 0, *size)
            crops.append(clip.crop.within(part) if clip.crop else None)
            of_frames = [cut(split(picture), part) for picture in pictures]
            parts += map(list, zip(*of_frames, strict=True))
        planes = iter(self._sent(parts))
        return [(_to_rgb(next(planes), next(planes), next(planes)), crop) for crop in crops]

    def _sent(self, arrays: Sequence[Sequence[np.ndarray]]) -> list[torch.Tensor]:
        """Stack arrays of uint8, and copy all to the device at once. Return a tensor for each stack."""
        shapes = [(len(few), *few[0].shape) for few in arrays]
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        pinned = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        values = pinned.numpy()
        for few, shape, start, end in zip(arrays, shapes, ends, ends[1:], strict=False):
            np.stack(few, out=values[start:end].reshape(shape))
        sent = pinned.to(self._device, non_blocking=True)
        return [sent[start:end].view(shape) for shape, start, end in zip(shapes, ends, ends[1:], strict=False)]


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
