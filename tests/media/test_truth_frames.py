"""Videos of which everything is known, because they are made here: do their pictures, sizes, colors and times arrive.

Every one is also compared with ffmpeg's decode. No corpus is needed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ffmpeg_reference

import chordcache as cc

pytestmark = pytest.mark.slow

CONFIGS = {"jpeg": "", "raw": "frames: {codec: raw}"}
"""For all media"""

MORE_CONFIGS = {
    "small": "frames: {short_side: 32}",
    "own_size": "frames: {short_side: null}",
    "fps_10": "frames: {fps: 10, short_side: 32}",
    "fps_15": "frames: {fps: 15, short_side: 32}",
    "fps_1000": "frames: {fps: 1000, short_side: 32}",
    "quality_50": "frames: {quality: 50, short_side: 32}",
}
"""For ``SOME``"""

SOME = re.compile(r"numbered|large|sar_|turned_and_sar|two_sizes|bigbuckbunny")
"""Files of which rate, size or quality are changed"""

MIN_PSNR_DB = 36.0
"""In the metric "planes" of ``truth``"""

MIN_RGB_PSNR_DB = 48.0
"""In the metric "RGB" of ``truth``"""


# Pictures


def slopes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Brighter to the right, redder downwards, bluer to the left, with a dark mark at the top left that moves down.

    No two of its eight orientations are alike, nor any two frames that are less than 20 apart.
    """
    y = np.tile(np.linspace(60, 220, width), (height, 1))
    row = height // 8 + number % 20 * height // 40
    y[row : row + height // 8, width // 8 : width // 3] = 30
    u = np.tile(np.linspace(160, 100, width // 2), (height // 2, 1))
    v = np.tile(np.linspace(90, 170, height // 2)[:, None], (1, width // 2))
    return y.astype(np.uint8), u.astype(np.uint8), v.astype(np.uint8)


def combs(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two fields of different moments: every second row has its bar 8 pixels further on."""
    y, u, v = slopes(number, width, height)
    for field in (0, 1):
        left = (16 * number + 8 * field) % (width - 24)
        y[field::2, left : left + 16] = 200
    return y, u, v


def thirty(**spec: Any) -> dict[str, Any]:
    return {"num_frames": 30, "size": (128, 96), "planes": slopes, "options": {"crf": "10"}, **spec}


VARIABLE = [0, 1000, 2000, 25000, 26000, 40000, 40500, 41000]
"""Presentation times of a video of variable frame rate, in 1/1000 of a frame at 25 per second"""

MEDIA: dict[str, dict[str, Any]] = {
    "b_frames.mp4": thirty(options={"crf": "10", "bf": "3", "x264-params": "b-adapt=0"}),
    "b_frames.mkv": thirty(options={"crf": "10", "bf": "3", "x264-params": "b-adapt=0"}),
    "open_gop.mp4": thirty(options={"crf": "10", "bf": "3", "x264-params": "b-adapt=0:open-gop=1:keyint=10"}),
    "b_frames.ts": thirty(options={"crf": "10", "bf": "3", "x264-params": "b-adapt=0"}),
    "fragmented.mp4": thirty(
        options={"crf": "10", "bf": "0"}, container_options={"movflags": "frag_keyframe+empty_moov"}
    ),
    "b_frames.mpg": thirty(codec="mpeg2video", options={"qscale": "2", "flags": "+qscale", "bf": "2"}),
    "vp9.webm": thirty(codec="libvpx-vp9", fps=30, options={"crf": "10", "b": "0", "deadline": "realtime"}),
    "vp8.webm": thirty(codec="libvpx", fps=30, options={"b": "2M", "deadline": "realtime"}),
    "mpeg4.avi": thirty(codec="mpeg4", options={"qscale": "2", "flags": "+qscale"}),
    "b_frames.avi": thirty(codec="mpeg4", options={"qscale": "2", "flags": "+qscale", "bf": "2"}),
    "raw.h264": thirty(options={"crf": "10", "bf": "0"}),
    "ntsc.mp4": thirty(fps=Fraction(30000, 1001)),
    "late.mp4": thirty(pts_ticks=[17500 + 1000 * i for i in range(30)]),
    "late.mkv": thirty(pts_ticks=[17500 + 1000 * i for i in range(30)]),
    "variable.mp4": thirty(num_frames=len(VARIABLE), pts_ticks=VARIABLE),
    "variable.mkv": thirty(num_frames=len(VARIABLE), pts_ticks=VARIABLE),
    "one_frame.mp4": thirty(num_frames=1),
    "one_frame.webm": thirty(num_frames=1, codec="libvpx-vp9", options={"crf": "10", "b": "0"}),
    "one_frame.avi": thirty(num_frames=1, codec="mpeg4"),
    "with_sound.mp4": thirty(audio=True),
    "ten_bits.mp4": thirty(pixel_format="yuv420p10le"),
    "yuv422.mkv": thirty(codec="ffv1", pixel_format="yuv422p", options={}),
    "yuv444.mp4": thirty(pixel_format="yuv444p"),
    "gray.mkv": thirty(codec="ffv1", pixel_format="gray", options={}),
    "alpha.mkv": thirty(codec="ffv1", pixel_format="yuva420p", options={}),
    "sar_4_3.mp4": thirty(sample_aspect_ratio=Fraction(4, 3)),
    "sar_1_2.mkv": thirty(sample_aspect_ratio=Fraction(1, 2)),
    "sar_16_11.ts": thirty(sample_aspect_ratio=Fraction(16, 11)),
    "interlaced.mp4": thirty(planes=combs, options={"crf": "10", "flags": "+ilme+ildct", "x264-params": "tff=1"}),
    "interlaced.mpg": thirty(planes=combs, codec="mpeg2video", options={"qscale": "2", "flags": "+ilme+ildct+qscale"}),
    "turned_90.mp4": thirty(rotation=90),
    "turned_180.mp4": thirty(rotation=180),
    "turned_270.mp4": thirty(rotation=270),
    "turned_and_sar.mp4": thirty(rotation=90, sample_aspect_ratio=Fraction(2)),
    "large.mp4": thirty(num_frames=10, size=(640, 360)),
    "large_upright.mp4": thirty(num_frames=10, size=(360, 640)),
    "large_turned.mp4": thirty(num_frames=10, size=(640, 360), rotation=90),
    "numbered_25.mp4": {"num_frames": 50},
    "numbered_30.webm": {"num_frames": 60, "fps": 30, "codec": "libvpx-vp9", "options": {"deadline": "realtime"}},
    "numbered_8.mp4": {"num_frames": 16, "fps": 8},
    "numbered_variable.mp4": {"num_frames": len(VARIABLE), "pts_ticks": VARIABLE},
}

ORIENTATIONS = {
    "plain": (1, 0, 0, 1),
    "turned_90": (0, 1, -1, 0),
    "turned_180": (-1, 0, 0, -1),
    "turned_270": (0, -1, 1, 0),
    "mirrored": (-1, 0, 0, 1),
    "upside_down": (1, 0, 0, -1),
    "transposed": (0, 1, 1, 0),
    "transposed_and_turned_180": (0, -1, -1, 0),
}
"""(a, b, c, d) of a display matrix: a stored point (p, q), q downwards, is shown at (a p + c q, b p + d q)"""


def set_display_matrix(path: Path, matrix: tuple[int, int, int, int]) -> None:
    """Write the matrix into the only track header of an MP4 (ISO/IEC 14496-12, 8.3.2, version 0)."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4
    assert data[at] == 0, "version"
    a, b, c, d = (65536 * value for value in matrix)
    data[at + 40 : at + 76] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


def shown(plane: np.ndarray, matrix: tuple[int, int, int, int]) -> np.ndarray:
    """Return what a player shows of a stored plane, point by point."""
    a, b, c, d = matrix
    rows, columns = np.indices(plane.shape)
    x, y = a * columns + c * rows, b * columns + d * rows
    x, y = x - x.min(), y - y.min()
    out = np.empty((y.max() + 1, x.max() + 1), plane.dtype)
    out[y, x] = plane
    return out


@dataclass(frozen=True)
class Made:
    """All media of this file, scanned once and cached with each config."""

    folder: Path
    records: dict[str, Any]
    caches: dict[str, cc.Cache]

    def source(self, name: str) -> Path:
        return self.folder / "media" / name

    def video(self, config: str, name: str) -> cc.Video:
        (video,) = (video for video in self.caches[config] if video.path == name)
        return video

    def file(self, config: str, name: str) -> Path:
        return self.caches[config].path / self.video(config, name).sidecar.features[0].file.name

    def compare(self, config: str, name: str) -> ffmpeg_reference.Comparison:
        video = self.video(config, name)
        codec = video.sidecar.features[0].params["codec"]
        size = (video.width, video.height)
        return ffmpeg_reference.compare(self.source(name), self.file(config, name), size, codec=codec)

    def rgb(self, config: str, name: str) -> np.ndarray:
        return self.caches[config].read(self.video(config, name), "frames")


@pytest.fixture(scope="module")
def films(make_video: Callable[..., Path], clips, run_cli, tmp_path_factory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    media = folder / "media"
    media.mkdir()
    for name, spec in MEDIA.items():
        make_video(media / name, **spec)
    for name, matrix in ORIENTATIONS.items():
        set_display_matrix(make_video(media / f"matrix_{name}.mp4", **thirty(num_frames=4)), matrix)
    part = thirty(num_frames=10, options={"crf": "10", "bf": "0"})
    first = make_video(folder / "first.ts", **{**part, "size": (96, 64)})
    second = make_video(folder / "second.ts", **part, pts_ticks=[1000 * i for i in range(10, 20)])
    (media / "two_sizes.ts").write_bytes(first.read_bytes() + second.read_bytes())
    (media / "joined.ts").write_bytes(first.read_bytes() * 2)
    for clip in sorted(clips.rglob("*.mp4")):
        (media / clip.name).symlink_to(clip)
    done = run_cli("scan", "media", "--follow-symlinks", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    some = [path.name for path in sorted(media.iterdir()) if SOME.match(path.name)]
    (media / "some.csv").write_text("path\n" + "".join(f"{name}\n" for name in some))
    for name, text in {**CONFIGS, **MORE_CONFIGS}.items():
        (folder / f"{name}.yaml").write_text(text + "\n")
        index = "index.json" if name in CONFIGS else media / "some.csv"
        done = run_cli("build", index, "--follow-symlinks", "-c", f"{name}.yaml", "-o", name, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
    caches = {name: cc.open_cache(folder / name) for name in (*CONFIGS, *MORE_CONFIGS)}
    return Made(folder, {record.path: record for record in cc.read_index(folder / "index.json")}, caches)


CLIPS = ["bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4", "carphone_distorted.mp4"]
ALL = [*MEDIA, "two_sizes.ts", "joined.ts", *(f"matrix_{name}.mp4" for name in ORIENTATIONS), *CLIPS]


# Beside ffmpeg


@pytest.mark.parametrize("name", ALL)
def test_every_frame_is_what_ffmpeg_shows_when_it_shows_it(films, name):
    comparison = films.compare("jpeg", name)
    num_frames = films.records[name].packets.num_frames
    assert comparison.num_cached == comparison.num_decoded == films.video("jpeg", name).num_frames == num_frames
    assert comparison.errors == []
    assert comparison.min_psnr_db >= MIN_PSNR_DB
    if films.video("jpeg", name).sidecar.timestamp_source == "pts":
        times = np.array(comparison.times, float)
        if name == "joined.ts":  # its second recording has the clock of the first, and continues one frame later
            assert times[10] == times[0]
            times[10:] += times[9] + 0.04 - times[10]
        assert films.video("jpeg", name).pts_seconds == pytest.approx(times.tolist(), abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_raw_frames_are_ffmpegs_rgb(films, name):
    comparison = films.compare("raw", name)
    assert comparison.num_cached == comparison.num_decoded > 0
    assert comparison.min_psnr_db >= MIN_RGB_PSNR_DB


MPEG_PS = ["b_frames.mpg", "interlaced.mpg"]
"""A program stream leaves out times that follow from those before: its packets do not say enough"""


@pytest.mark.parametrize("name", [name for name in ALL if name not in MPEG_PS])
def test_scan_agrees_with_ffprobe_on_packets(films, name):
    facts = ffmpeg_reference.probe(films.source(name), packets=True)
    packets = films.records[name].packets
    frames = facts.shown()
    assert (packets.num_packets, packets.num_frames) == (len(facts.video_packets), len(frames))
    assert packets.timestamp_source == facts.timestamp_source
    assert packets.start_seconds == pytest.approx(float(frames[0][0]))
    assert packets.keyframe_numbers == tuple(n for n, (_, is_key) in enumerate(frames) if is_key)
    assert packets.keyframe_pts_seconds == pytest.approx([float(time) for time, is_key in frames if is_key])


@pytest.mark.parametrize("name", MPEG_PS)
def test_scan_of_packets_without_times(films, name):
    facts, packets = ffmpeg_reference.probe(films.source(name), packets=True), films.records[name].packets
    decoded = ffmpeg_reference.Decoded(films.source(name), facts.video["index"], (64, 64), "rgb24")
    assert sum(1 for _ in decoded) == 30
    frames = list(zip(decoded.times, decoded.keys, strict=True))
    assert packets.num_packets == len(facts.video_packets) == 30
    assert packets.num_frames == len(frames) == 30
    assert packets.start_seconds == pytest.approx(float(frames[0][0]))
    assert packets.duration_seconds == pytest.approx(float(frames[-1][0] - frames[0][0]) + 0.04)
    assert packets.keyframe_numbers == tuple(n for n, (_, is_key) in enumerate(frames) if is_key)
    assert packets.keyframe_pts_seconds == pytest.approx([float(time) for time, is_key in frames if is_key])
    assert not packets.variable_frame_rate


# Times


@pytest.mark.parametrize(
    ("name", "times"),
    [
        *((name, [n / 25 for n in range(30)]) for name in ["b_frames.mp4", "raw.h264", "mpeg4.avi", "b_frames.avi"]),
        ("ntsc.mp4", [n * 1001 / 30000 for n in range(30)]),
        ("late.mkv", [0.7 + n / 25 for n in range(30)]),
        ("variable.mp4", [ticks / 25000 for ticks in VARIABLE]),
        ("one_frame.avi", [0.0]),
    ],
)
def test_times_are_those_that_were_written(films, name, times):
    video = films.video("jpeg", name)
    assert video.pts_seconds == pytest.approx(times, abs=1e-6)
    assert video.source_frames.tolist() == list(range(len(times)))
    assert video.start_seconds == video.pts_seconds[0]


# Which frames


def luma_of_background(number: int) -> float:
    """Luma of frame ``number`` of a made video, in full range."""
    return (7 * number % 200) * 255 / 219


@pytest.mark.parametrize(
    ("config", "name", "kept"),
    [
        ("small", "numbered_25.mp4", range(50)),
        ("fps_10", "numbered_25.mp4", [(5 * tick + 1) // 2 for tick in range(20)]),
        ("fps_15", "numbered_25.mp4", [-(-5 * tick // 3) for tick in range(30)]),
        ("fps_1000", "numbered_25.mp4", range(50)),
        ("fps_10", "numbered_30.webm", range(0, 60, 3)),
        ("fps_15", "numbered_30.webm", range(0, 60, 2)),
        ("fps_10", "numbered_8.mp4", range(16)),
        ("fps_10", "numbered_variable.mp4", [0, 3, 5]),
        ("fps_15", "numbered_variable.mp4", [0, 2, 3, 5]),
        ("fps_1000", "numbered_variable.mp4", range(8)),
    ],
)
def test_frames_per_second(films, config, name, kept):
    """The first frame at or after each tick; the pictures are those of the frames that are named."""
    video = films.video(config, name)
    times = films.video("small", name).pts_seconds
    assert video.source_frames.tolist() == list(kept)
    assert video.pts_seconds.tolist() == times[list(kept)].tolist()
    for number, record in zip(kept, ffmpeg_reference.records(films.file(config, name)), strict=True):
        luma = ffmpeg_reference.jpeg_planes(record)[: video.width * video.height].reshape(video.height, video.width)
        assert np.median(luma) == pytest.approx(luma_of_background(number), abs=3)


# Sizes


@pytest.mark.parametrize(
    ("config", "name", "size"),
    [
        ("jpeg", "numbered_25.mp4", (64, 48)),
        ("small", "numbered_25.mp4", (42, 32)),
        ("jpeg", "large.mp4", (456, 256)),
        ("jpeg", "large_upright.mp4", (256, 456)),
        ("jpeg", "large_turned.mp4", (256, 456)),
        ("own_size", "large_turned.mp4", (360, 640)),
        ("small", "large.mp4", (56, 32)),
        ("own_size", "bigbuckbunny.mp4", (1280, 720)),
        ("own_size", "sar_4_3.mp4", (170, 96)),
        ("own_size", "sar_1_2.mkv", (64, 96)),
        ("own_size", "sar_16_11.ts", (186, 96)),
        ("own_size", "turned_and_sar.mp4", (96, 256)),
        ("small", "sar_4_3.mp4", (56, 32)),
        ("small", "sar_1_2.mkv", (32, 48)),
        ("small", "turned_and_sar.mp4", (32, 86)),
        ("own_size", "two_sizes.ts", (96, 64)),
        ("small", "two_sizes.ts", (48, 32)),
    ],
)
def test_size(films, config, name, size):
    """Short side 256 (or 32, or as it is), never enlarged, even, with square pixels, upright."""
    video = films.video(config, name)
    assert (video.width, video.height) == size
    assert films.rgb(config, name).shape == (video.num_frames, size[1], size[0], 3)


def test_a_change_of_size_is_noted(films):
    assert films.video("jpeg", "two_sizes.ts").num_frames == 20
    assert films.video("jpeg", "two_sizes.ts").sidecar.notes == ("10 frames of another size scaled to the first one's",)


# What is stored


def luma_quantiser(data: bytes) -> int:
    """The first number of a JPEG's first quantisation table (ITU-T T.81, B.2.4.1)."""
    return data[data.index(b"\xff\xdb") + 5]


@pytest.mark.parametrize(("config", "expected"), [("small", 3), ("quality_50", 16)])
def test_quality(films, config, expected):
    """libjpeg scales the table of T.81 K.1, which begins with 16, by 2 - quality / 50."""
    data = next(ffmpeg_reference.records(films.file(config, "large.mp4")))
    assert luma_quantiser(data) == expected


# Orientation


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_orientation(films, name):
    """The cached picture is what the display matrix says, and so is what ``scan`` says in words."""
    matrix = ORIENTATIONS[name]
    y, _, _ = slopes(0, 128, 96)
    expected = shown(y, matrix)
    height, width = expected.shape
    video = films.video("jpeg", f"matrix_{name}.mp4")
    assert (video.width, video.height) == (width, height)
    samples = ffmpeg_reference.jpeg_planes(next(ffmpeg_reference.records(films.file("jpeg", f"matrix_{name}.mp4"))))
    luma = samples[: width * height].reshape(height, width)
    full_range = np.rint((expected.astype(float) - 16) * 255 / 219).astype(np.uint8)
    assert ffmpeg_reference.psnr_db(luma, full_range) > 34
    header = films.records[f"matrix_{name}.mp4"].header
    said = y[:, ::-1] if header.mirrored else y
    assert (np.rot90(said, -header.rotation // 90) == expected).all()
    assert (header.display_width, header.display_height) == (width, height)
