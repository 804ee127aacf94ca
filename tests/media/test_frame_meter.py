"""Facts about frames: black and frozen stretches against ffmpeg's detectors, copies and digests by construction."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg

from chordcache.media.probe import probe
from chordcache.records import FrameFacts

MakeVideo = Callable[..., Path]
Planes = tuple[np.ndarray, np.ndarray, np.ndarray]


def facts_of(path: Path) -> FrameFacts:
    record = probe(str(path), root="v", relative_path=path.name, level="frames")
    assert record.error is None
    assert record.content is not None
    assert record.frames is not None
    return record.frames


def detected(path: Path, filters: str) -> list[tuple[float, float]]:
    """Start and end of each stretch of 2 s or more that a filter of ffmpeg finds, if it ends before the video."""
    lines = ffmpeg("-i", path, "-vf", f"{filters},metadata=print:file=-", "-f", "null", "-").decode()
    starts, ends = (map(float, re.findall(rf"{side}=([\d.]+)", lines)) for side in ("_start", "_end"))
    return [(start, end) for start, end in zip(starts, ends, strict=False) if end - start >= 2]


def black(width: int, height: int) -> Planes:
    chroma = np.full((height // 2, width // 2), 128, np.uint8)
    return np.full((height, width), 16, np.uint8), chroma, chroma


@pytest.fixture(scope="module")
def planes(frame_planes: Callable[[int, int, int], Planes]) -> Callable[[int, int, int], Planes]:
    """A video that stands still from 1.2 to 4 s, is black from 5.2 to 8 s, and both for a shorter time at its end."""

    def planes_of(number: int, width: int, height: int) -> Planes:
        if 130 <= number < 200 or 215 <= number < 240:
            return black(width, height)
        number += 20 if number >= 200 else 0  # frames whose background is not dark
        return frame_planes(45 if 30 <= number < 100 else number, width, height)

    return planes_of


@pytest.mark.parametrize(
    ("suffix", "codec", "pixel_format"),
    [(".mp4", "libx264", "yuv420p"), (".mkv", "libx265", "yuv420p10le"), (".mkv", "ffv1", "gray"),
     (".avi", "mpeg4", "yuv420p")],
)  # fmt: skip
def test_stretches_are_those_of_ffmpeg(
    tmp_path: Path, make_video: MakeVideo, planes: Any, suffix: str, codec: str, pixel_format: str
) -> None:
    path = make_video(
        tmp_path / f"a{suffix}", num_frames=245, codec=codec, pixel_format=pixel_format, size=(320, 180), planes=planes
    )
    facts = facts_of(path)
    assert facts.num_frames == 245
    for stretches, filters, wanted in (
        (facts.black_seconds, "blackdetect", [(5.2, 8.0)]),
        (facts.frozen_seconds, "freezedetect", [(1.2, 4.0), (5.2, 8.0)]),
    ):
        assert np.array(stretches) == pytest.approx(np.array(wanted), abs=0.002)
        assert np.array(detected(path, filters)) == pytest.approx(np.array(wanted), abs=0.002)


def test_stretches_may_end_with_the_video(tmp_path: Path, make_video: MakeVideo) -> None:
    path = make_video(tmp_path / "a.mp4", num_frames=75, planes=lambda number, *size: black(*size))
    assert facts_of(path).black_seconds == facts_of(path).frozen_seconds == ((0.0, 3.0),)


def test_a_stretch_that_is_too_short_does_not_count(tmp_path: Path, make_video: MakeVideo) -> None:
    path = make_video(tmp_path / "a.mp4", num_frames=49, planes=lambda number, *size: black(*size))
    facts = facts_of(path)
    assert facts.black_seconds == facts.frozen_seconds == ()
    assert facts.num_repeated == 0  # a picture that is still for longer than four frames


def test_real_clips_have_nothing(clips: Path) -> None:
    for path in sorted(clips.rglob("*.mp4")):
        facts = facts_of(path)
        assert (path.name, facts.black_seconds, facts.frozen_seconds) == (path.name, (), ())
        assert facts.num_repeated <= 0.02 * facts.num_frames


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_repeated_frames_are_counted(
    tmp_path: Path, make_video: MakeVideo, frame_planes: Callable[[int, int, int], Planes], copies: int
) -> None:
    path = make_video(
        tmp_path / "a.mkv",
        num_frames=60,
        codec="ffv1",
        planes=lambda number, *size: frame_planes(number // copies, *size),
    )
    assert facts_of(path).num_repeated == 60 - 60 // copies


def test_the_digest_is_that_of_the_pictures(tmp_path: Path, make_video: MakeVideo) -> None:
    path = make_video(tmp_path / "a.mp4", size=(72, 52), audio=True)
    ffmpeg("-i", path, "-c", "copy", tmp_path / "b.mkv")
    other = make_video(tmp_path / "c.mp4", size=(72, 52), options={"crf": "40"})
    digest = facts_of(path).digest
    assert facts_of(tmp_path / "b.mkv").digest == digest
    assert facts_of(other).digest != digest


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_the_sound_has_its_place(tmp_path: Path, make_video: MakeVideo, suffix: str) -> None:
    path = make_video(tmp_path / f"a{suffix}", num_frames=50, audio=True)
    ffmpeg("-i", path, "-itsoffset", "0.8", "-i", path, "-map", "0:v", "-map", "1:a", "-c", "copy",
           tmp_path / f"late{suffix}")  # fmt: skip
    silent = make_video(tmp_path / f"silent{suffix}")
    for name, start in ((path, 0.0), (tmp_path / f"late{suffix}", 0.8)):
        facts = facts_of(name)
        assert facts.sound_start_seconds == pytest.approx(start, abs=0.15)
        assert facts.sound_end_seconds == pytest.approx(start + 2.0, abs=0.15)
        assert facts.sound_seconds == pytest.approx(2.0, abs=0.15)
    assert (facts_of(silent).sound_start_seconds, facts_of(silent).sound_seconds) == (None, 0.0)
