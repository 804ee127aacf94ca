"""The sheet of a video: each frame, keyframe and row of sound is at its time, and damage is named."""

from __future__ import annotations

import colorsys
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.ffmpeg import copy_start
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import UsageError
from chordcache.look import draw_sheet, pictures
from chordcache.look.draw_sheet import FramePlace, Sheet
from chordcache.look.pictures import MARK
from chordcache.media.frame_numbers import evenly_spread
from chordcache.read.video import Video

CONFIG = config_from_json({"features": {"flow": {"method": "dis", "preset": "ultrafast"}}})
IRREGULAR_TICKS = [0, 1000, 2000, 3000, 9000, 10000, 11000, 20000, 21000, 40000]
"""Times of ten frames, in thousandths of 1 / 25 s"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, clips: Path, make_video: Callable[..., Path]) -> cc.Cache:
    """Two seconds with sound, a clip without, an irregular one, and one of a single frame."""
    folder = tmp_path_factory.mktemp("sheet")
    copy_start(clips / "animation" / "bigbuckbunny.mp4", 2, folder / "videos" / "bunny.mp4")
    make_video(folder / "videos" / "quiet.mp4", num_frames=30, gop=7)
    make_video(folder / "videos" / "irregular.mkv", num_frames=10, gop=3, pts_ticks=IRREGULAR_TICKS)
    make_video(folder / "videos" / "one.mp4", num_frames=1)
    summary = cc.build(
        cc.scan([folder / "videos"], jobs=HERE), folder / "cache", tiers=["lmdb", "npz"], config=CONFIG, jobs=HERE
    )
    assert (summary.num_done, summary.num_failed) == (4, 0)
    return cc.open_cache(folder / "cache")


def named(cache: cc.Cache, stem: str) -> Video:
    (video,) = (video for video in cache if video.path.startswith(stem))
    return video


def cut_out(drawn: Sheet, place: FramePlace) -> np.ndarray:
    return drawn.picture[place.y : place.y + place.height, place.x : place.x + place.width]


@pytest.mark.parametrize("stem", ["bunny", "quiet", "irregular", "one"])
@pytest.mark.parametrize("num_frames", [1, 5, 12])
def test_each_frame_is_the_one_on_the_screen_in_the_middle_of_its_part_of_the_axis(cache, stem, num_frames):
    video = named(cache, stem)
    drawn = cc.show(video, num_frames=num_frames)
    count = min(num_frames, video.num_frames)
    assert len(drawn.frames) == count
    for number, place in enumerate(drawn.frames):
        middle = video.start_seconds + (number + 0.5) * video.duration_seconds / count
        on_screen = max(n for n, pts in enumerate(video.pts_seconds) if pts <= middle + 1e-6)
        assert place.number == on_screen
        assert place.seconds == video.pts_seconds[on_screen]
        assert abs(place.x + place.width / 2 - drawn.axis.x_of(middle)) <= 1.5
        frame = cache.read(video, "frames", indices=[on_screen])[0]
        scaled = cv2.resize(frame, (place.width, place.height), interpolation=cv2.INTER_AREA)
        assert np.array_equal(cut_out(drawn, place), scaled)


@pytest.mark.parametrize("stem", ["bunny", "quiet", "irregular"])
def test_keyframes_are_marked_at_their_times(cache, stem):
    video = named(cache, stem)
    drawn = cc.show(video)
    top, height = drawn.rows["keyframes"]
    marked = np.flatnonzero((drawn.picture[top : top + height] == MARK).all(-1).all(0))
    share = (video.pts_seconds[video.keyframes] - video.start_seconds) / video.duration_seconds
    assert np.abs(marked - (drawn.axis.left + share * drawn.axis.width)).max() <= 0.5 + 1e-9
    assert len(marked) == len(video.keyframes)


def test_a_part_of_the_axis_has_its_frames_only(cache):
    video = named(cache, "bunny")
    drawn = cc.show(video, num_frames=4, seconds=(0.5, 1.25))
    assert (drawn.axis.start_seconds, drawn.axis.stop_seconds) == (0.5, 1.25)
    for place in drawn.frames:
        assert 0.5 - 1 / 24 <= place.seconds < 1.25
    assert drawn.axis.x_of(0.5) == drawn.axis.left
    assert drawn.axis.x_of(1.25) == drawn.axis.left + drawn.axis.width


def test_sound_is_at_its_time(cache):
    """The row of the sheet is the spectrogram of the same seconds, cut from that of the whole video."""
    video = named(cache, "bunny")
    drawn = cc.show(video, seconds=(0.5, 1.5))
    top, height = drawn.rows["mel"]
    row = drawn.picture[top : top + height, drawn.axis.left : drawn.axis.left + drawn.axis.width]
    mel = cache.read(video, "mel")  # 10 ms in a row
    errors = {}
    for first in range(mel.shape[1] - 100):
        expected = pictures.mel_colors(mel[:, first : first + 100].T, row.shape[1], row.shape[0])
        errors[first] = float(np.abs(expected.astype(int) - row).mean())
    assert abs(min(errors, key=lambda first: errors[first]) - 50) <= 1
    assert not (row[:, :-2] == 255).all((0, 2)).any()  # from the first column to the last


def test_absent_features_are_named_with_their_reason(cache):
    drawn = cc.show(named(cache, "quiet"))
    assert drawn.absent == {"mel": "no audio track"}
    assert set(drawn.rows) == {"frames", "keyframes", "flow", "motion"}
    assert drawn.damage == {}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, clips) -> cc.Cache:
    """One HDF5 file with chains of packets, int8 flow of a smaller picture, and sound of two channels."""
    folder = tmp_path_factory.mktemp("mixed")
    config = {
        "frames": {"codec": "mpeg4"},
        "features": {"mel": {"mono": False}, "flow": {"method": "dis", "dtype": "int8", "short_side": 64}},
        "hdf5": {"features": ["frames", "flow", "mel", "motion"]},
    }
    copy_start(clips / "animation" / "bigbuckbunny.mp4", 1, folder / "videos" / "bunny.mp4")
    cc.build(
        cc.scan([folder / "videos"], jobs=HERE),
        folder / "cache",
        tiers=["hdf5"],
        config=config_from_json(config),
        jobs=HERE,
    )
    return cc.open_cache(folder / "cache")


def test_other_codecs_and_shapes_are_drawn(mixed):
    drawn = cc.show(mixed[0])
    assert (drawn.absent, drawn.damage) == ({}, {})
    assert set(drawn.rows) == {"frames", "keyframes", "flow", "motion", "mel"}
    for place in drawn.frames:
        frame = mixed.read(0, "frames", indices=[place.number])[0]
        scaled = cv2.resize(frame, (place.width, place.height), interpolation=cv2.INTER_AREA)
        assert np.array_equal(cut_out(drawn, place), scaled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_frames": 0}, "num_frames: got 0, expected a number from 1 to 48"),
        ({"num_frames": 49}, "num_frames: got 49"),
        ({"num_frames": True}, "num_frames: got True"),
        ({"seconds": (50.0, None)}, "seconds: got 50 to "),
        ({"seconds": (1.0, 1.0)}, "seconds: got 1 to 1, expected a part of"),
        ({"seconds": (None, -1.0)}, "seconds: got 0 to -1"),
        ({"seconds": (None, math.nan)}, "seconds: got 0 to nan"),
        ({"seconds": (math.inf, None)}, "seconds: got inf to "),
    ],
)
def test_wrong_arguments(cache, arguments, message):
    with pytest.raises(UsageError, match=message):
        cc.show(named(cache, "bunny"), **arguments)


def test_times_outside_of_the_video_are_cut_to_it(cache):
    video = named(cache, "bunny")
    assert cc.show(video, seconds=(-3, 99)).axis == cc.show(video).axis


def flipped(cache: cc.Cache, folder: Path, pattern: str) -> cc.Cache:
    copy = Path(shutil.copytree(cache.path, folder / "cache"))
    (file,) = copy.glob(pattern)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    return cc.open_cache(copy)


def test_one_damaged_frame_leaves_the_others(cache, tmp_path):
    damaged = flipped(cache, tmp_path, "lmdb/*/bunny-*")
    video = named(damaged, "bunny")
    drawn, whole = (cc.show(shown, num_frames=48) for shown in (video, named(cache, "bunny")))
    same = [np.array_equal(cut_out(drawn, area), cut_out(whole, area)) for area in drawn.frames]
    assert sum(same) >= 46


def test_a_cut_file_gives_a_sheet_that_names_it(cache, tmp_path):
    copy = Path(shutil.copytree(cache.path, tmp_path / "cache"))
    (file,) = copy.glob("lmdb/*/bunny-*")
    os.truncate(file, 100)
    drawn = cc.show(named(cc.open_cache(copy), "bunny"))
    assert "got 100 bytes" in drawn.damage["frames"]
    assert "flow" in drawn.rows


def test_without_frames_the_other_rows_are_drawn(tmp_path, make_video):
    make_video(tmp_path / "videos" / "a.mp4", num_frames=20, audio=True)
    cc.build(cc.scan([tmp_path / "videos"], jobs=HERE), tmp_path / "cache", tiers=["npz"], config=CONFIG, jobs=HERE)
    with cc.open_cache(tmp_path / "cache") as cache:
        drawn = cc.show(cache[0])
    assert drawn.absent == {}  # no build was asked for frames
    assert set(drawn.rows) == {"flow", "motion", "mel"}


def test_landmarks_are_drawn_over_the_frames(cache, monkeypatch):
    video = named(cache, "quiet")
    plain = cc.show(video, num_frames=3)
    landmarks = np.full((video.num_frames, 33, 4), np.nan, np.float32)
    landmarks[:, 11] = 0, 0, 0, 1
    landmarks[:, 12] = video.width, video.height, 0, 1
    monkeypatch.setattr(draw_sheet._Drawing, "_poses", lambda self: {n: landmarks[n] for n in self.numbers})
    drawn = cc.show(video, num_frames=3)
    for place in drawn.frames:
        changed = (cut_out(plain, place) != cut_out(drawn, place)).any(-1)
        assert changed[place.height // 2, place.width // 2]
        assert not changed[0, -1]
    landmarks[:, 12, 3] = 0.2
    assert np.array_equal(cc.show(video, num_frames=3).picture, plain.picture)


def test_files_are_whole_and_read_by_others(cache, tmp_path):
    drawn = cc.show(named(cache, "bunny"))
    path = drawn.save(tmp_path / "sheet.png")
    assert np.array_equal(cv2.imread(os.fspath(path))[..., ::-1], drawn.picture)
    assert [file.name for file in tmp_path.iterdir()] == ["sheet.png"]
    assert drawn._repr_png_() == path.read_bytes()
    with pytest.raises(UsageError, match="cannot write the picture '.*/nowhere/sheet.png': No such file"):
        drawn.save(tmp_path / "nowhere" / "sheet.png")
    with pytest.raises(UsageError, match="cannot write the picture"):
        drawn.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["sheet.png"]


@pytest.mark.parametrize("degrees", range(0, 360, 30))
def test_the_hue_is_the_direction(degrees):
    angle = np.radians(degrees)
    flow = np.full((4, 4, 2), 3 * np.array([np.cos(angle), np.sin(angle)]))
    red, green, blue = pictures.flow_colors(flow, 3.0)[0, 0] / 255
    assert colorsys.rgb_to_hsv(red, green, blue)[0] * 360 % 360 == pytest.approx(degrees, abs=3) or degrees == 0


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


def test_positions_go_from_the_first_to_the_last_without_repeats():
    assert evenly_spread(100, 3).tolist() == [0, 50, 99]  # numpy rounds 49.5 to even
    assert evenly_spread(2, 6).tolist() == [0, 1]
    assert evenly_spread(1, 6).tolist() == [0]
    assert evenly_spread(0, 6).tolist() == []
