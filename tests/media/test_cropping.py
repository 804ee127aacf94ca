"""Scaled pictures against the antialiased filter of torch, and the padding beside them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")
from helpers.antialiased import antialiased
from helpers.ffmpeg_reference import psnr_db
from helpers.scaled import frames as frames_of

from chordcache.media.cropping import _TAPS, CropBox, blacken_padding, resize, resize_pictures

SHRINKS = [1.05, 1.143, 1.2, 1.3, 1.4, 1.5, 1.7, 1.9, 2, 2.2, 2.5, 3, 3.4, 4, 4.3, 5, 6, 8]


def scaled(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    out = np.empty((1, *size, 3), np.uint8)
    resize_pictures(picture[None], out, False)
    return out[0]


def zone_plate(side: int) -> np.ndarray:
    """Rings that are as fine as pixels can show at the middle of each border."""
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    rings = 127.5 + 127.5 * np.cos(np.pi * (x**2 + y**2) / side)
    return np.repeat(rings.round().astype(np.uint8)[..., None], 3, axis=2)


@pytest.mark.parametrize("clip", ["animation/bigbuckbunny.mp4", "street/bikes.mp4", "people/carphone_pristine.mp4"])
@pytest.mark.parametrize("short_side", [256, None])
def test_natural_frames_are_those_of_the_reference(clips: Path, clip: str, short_side: int | None) -> None:
    picture = frames_of(clips / clip, 30, short_side=short_side)[-1].rgb()
    height, width = picture.shape[:2]
    for shrink in SHRINKS:
        for across in {shrink, 1, 0.8, 1 + shrink / 4}:  # the same for both sides, or not
            size = round(height / shrink), round(width / across)
            assert psnr_db(scaled(picture, size), antialiased(picture, size)) > 40, (shrink, across)


@pytest.mark.parametrize("side", [160, 128, 110, 96, 80, 64, 43, 30])
def test_fine_patterns_are_not_aliased(side: int) -> None:
    """At shrinks from 2.4 to 13, where linear interpolation alone makes new rings."""
    picture, size = zone_plate(384), (side, side)
    expected = antialiased(picture, size)
    assert psnr_db(scaled(picture, size), expected) > 36
    assert psnr_db(cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR), expected) < 20


@pytest.mark.parametrize("level", [0, 1, 100, 127, 200, 254, 255])
def test_plain_areas_keep_their_level(level: int) -> None:
    for side in (600, 256, 250, 200, 170, 128, 101, 85, 64, 50, 33, 7, 1):
        assert (scaled(np.full((256, 256, 3), level, np.uint8), (side, 2 * side)) == level).all()


def test_strided_pictures() -> None:
    picture = zone_plate(300)
    part = picture[20:, 30:230]
    np.testing.assert_array_equal(scaled(part, (100, 90)), scaled(part.copy(), (100, 90)))


@pytest.mark.parametrize("shrink", [shrink for shrink in _TAPS if shrink > 1])
def test_taps_are_the_nearest_to_a_triangle(shrink: float) -> None:
    """Least squares over places between pixels, for a signal whose neighbors correlate by 0.95."""
    num_taps = 1 if shrink <= 2 else 2
    x = np.arange(-10, 11)
    correlation = 0.95 ** np.abs(x[:, None] - x)
    left, right = np.zeros((num_taps, num_taps)), np.zeros(num_taps)
    for place in (np.arange(64) + 0.5) / 64 - 0.5:
        triangle = np.maximum(0, 1 - np.abs(x - place) / shrink)
        linear = [np.maximum(0, 1 - np.abs(x - place - shift)) for shift in range(-num_taps, num_taps + 1)]
        middle = linear[num_taps]
        pairs = np.stack([linear[num_taps - n] + linear[num_taps + n] - 2 * middle for n in range(1, num_taps + 1)])
        left += pairs @ correlation @ pairs.T
        right += pairs @ correlation @ (triangle / triangle.sum() - middle)
    np.testing.assert_allclose(_TAPS[shrink][:num_taps], np.linalg.solve(left, right), atol=0.0001)
    assert not any(_TAPS[shrink][num_taps:])


def test_padding_is_black() -> None:
    """Rows that show a part of the picture stay, all others become zero, also with nothing of the picture in sight."""
    for crop, rows, columns in [
        (CropBox(-100, 0, 456, 456, (128, 128)), (28, 100), (0, 128)),
        (CropBox(10, -5, 30, 40, (60, 80)), (0, 30), (10, 70)),
        (CropBox(-3, -3, 256, 456, (256, 456)), (3, 256), (3, 456)),
        (CropBox(5, 5, 9, 9, (3, 3)), (0, 3), (0, 3)),
    ]:
        picture = (25, 30) if crop.top == 10 else (256, 456)
        out = np.ones((2, *crop.size, 3), np.uint8)
        blacken_padding(out, crop, picture)
        expected = np.zeros_like(out)
        expected[:, slice(*rows), slice(*columns)] = 1
        np.testing.assert_array_equal(out, expected)
    for top, left in ((-50, 0), (300, 0), (0, -60), (0, 460)):
        out = np.ones((1, 20, 20, 3), np.uint8)
        blacken_padding(out, CropBox(top, left, 40, 40, (20, 20)), (256, 456))
        assert not out.any()


def test_values_are_not_smoothed() -> None:
    """Flow and other values are means of areas, as before."""
    flow = np.random.default_rng(0).normal(size=(1, 60, 80, 2)).astype(np.float32)
    out = np.empty((1, 30, 40, 2), np.float32)
    resize(flow, out, False)
    np.testing.assert_allclose(out[0], flow[0].reshape(30, 2, 40, 2, 2).mean((1, 3)), atol=1e-6)
