"""The antialiased bilinear filter of torch, which is that of Pillow, as the reference for scaled pictures."""

from __future__ import annotations

import numpy as np
import torch


def antialiased(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale a picture [shape=(H, W, C)] to a size (height, width) [shape=(h, w, C), dtype=uint8]."""
    channels_first = torch.from_numpy(np.array(picture, order="C")).permute(2, 0, 1)[None].float()
    scaled = torch.nn.functional.interpolate(channels_first, size=size, mode="bilinear", antialias=True)
    return np.ascontiguousarray(scaled[0].permute(1, 2, 0).round().byte().numpy())
