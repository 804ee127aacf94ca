"""Pictures of features: colors of directions, the scale of a video, and files that other readers open."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest

from chordcache.look import pictures
from chordcache.media.frame_numbers import evenly_spread
from chordcache.media.opencv import cv2


def test_positions_go_from_the_first_to_the_last_without_repeats():
    assert evenly_spread(100, 3).tolist() == [0, 50, 99]  # numpy rounds 49.5 to even
    assert evenly_spread(2, 6).tolist() == [0, 1]
    assert evenly_spread(1, 6).tolist() == [0]
    assert evenly_spread(0, 6).tolist() == []


@pytest.mark.parametrize("degrees", range(0, 360, 30))
def test_the_hue_is_the_direction(degrees):
    angle = np.radians(degrees)
    flow = np.full((4, 4, 2), 3 * np.array([np.cos(angle), np.sin(angle)]))
    red, green, blue = pictures.flow_colors(flow, 3.0)[0, 0] / 255
    assert colorsys.rgb_to_hsv(red, green, blue)[0] * 360 % 360 == pytest.approx(degrees, abs=3) or degrees == 0


def test_a_still_picture_is_white_and_longer_vectors_are_clipped():
    assert (pictures.flow_colors(np.zeros((2, 2, 2)), 1.0) == 255).all()
    long, full = (pictures.flow_colors(np.full((2, 2, 2), length), 1.0) for length in (50.0, 1.0))
    assert (long == full).all()


def test_the_scale_ignores_a_few_wrong_vectors_and_the_noise_of_still_pictures():
    flow = np.full((100, 100, 2), 3.0)
    flow[0, 0] = 1000
    assert pictures.flow_scale(flow) == pytest.approx(np.hypot(3, 3), rel=1e-3)
    assert pictures.flow_scale(np.zeros((9, 9, 2))) == pictures.MIN_FLOW_PX
    assert pictures.flow_scale(np.zeros((0, 9, 9, 2))) == pictures.MIN_FLOW_PX


def test_mel_has_the_lowest_band_at_the_bottom_and_black_at_80_dB_below_the_loudest():
    mel = np.full((50, 40), -90.0, np.float32)
    mel[:, 0] = -5
    colors = pictures.mel_colors(mel, 100, 80).astype(int).sum(-1)
    assert colors[-1].min() > colors[0].max()
    assert colors[0].max() < 20


def test_channels_of_mel_are_averaged():
    mel = np.random.default_rng(0).uniform(-80, 0, (50, 2, 40)).astype(np.float32)
    assert (pictures.mel_colors(mel, 60, 40) == pictures.mel_colors(mel.mean(1), 60, 40)).all()


def test_small_frames_have_one_height_and_a_bounded_width():
    shapes = [(90, 160, 3), (160, 90, 3), (10, 1000, 3), (1000, 3, 3)]
    small = [pictures.scaled_to_height(np.zeros(shape, np.uint8), 72) for shape in shapes]
    assert [picture.shape for picture in small] == [(72, 128, 3), (72, 40, 3), (72, 128, 3), (72, 8, 3)]


def test_files_keep_the_order_of_the_channels():
    picture = np.zeros((16, 16, 3), np.uint8)
    picture[...] = (200, 100, 50)
    for data in (pictures.png(picture), pictures.webp(picture, 90)):
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert np.abs(decoded[8, 8].astype(int) - (50, 100, 200)).max() <= 4


def test_the_wheel_is_white_outside_and_colored_at_its_edge():
    wheel = pictures.color_wheel(49)
    assert (wheel[0, 0] == 255).all()
    assert wheel[24, 47].tolist()[0] > 200  # to the right: red
    assert wheel[24, 47].tolist()[1] < 60
