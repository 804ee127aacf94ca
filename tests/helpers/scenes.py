"""Drawn scenes: smooth random pictures that move, each unlike the others."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np


def scene(seed: int, num_frames: int, *, speed: float = 1.0, size: tuple[int, int] = (96, 64)) -> list[np.ndarray]:
    """Return gray pictures of a camera that moves over a random picture [shape=(H, W), dtype=uint8, 40 to 200]."""
    width, height = size
    blocks = np.random.default_rng(seed).uniform(40, 200, (12, 60)).astype(np.float32)
    wide = cv2.resize(blocks, (10 * width, 2 * height), interpolation=cv2.INTER_CUBIC).clip(40, 200)
    return [cv2.getRectSubPix(wide, size, (width + speed * i, height)).astype(np.uint8) for i in range(num_frames)]


def planes_of(pictures: Sequence[np.ndarray]) -> object:
    """Return the argument ``planes`` of ``make_video`` for gray pictures."""

    def planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        chroma = np.full((height // 2, width // 2), 128, np.uint8)
        return pictures[number], chroma, chroma

    return planes
