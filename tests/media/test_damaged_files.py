"""Files with damage at a known place: nothing of them is cached, and the cause and its place are reported."""

from __future__ import annotations

import random
from pathlib import Path

import av
import pytest
from helpers.ffmpeg import ffmpeg
from helpers.inline import HERE
from helpers.processes import quarantine

import chordcache as cc

NUM_FRAMES, GOP = 100, 20
_X264 = ("-c:v", "libx264", "-bf", "2", "-x264-params", f"keyint={GOP}:scenecut=0")
_X265 = ("-c:v", "libx265", "-x265-params", f"log-level=none:keyint={GOP}:bframes=3:scenecut=0")
_MPEG = ("-q:v", "4", "-bf", "2", "-g", str(GOP), "-sc_threshold", "1000000000")
FILMS = {
    "h264.mp4": _X264,
    "h264.mkv": _X264,
    "h264.ts": _X264,
    "open_gop.mp4": (*_X264[:-1], f"{_X264[-1]}:open-gop=1"),
    "hevc.mp4": _X265,
    "hevc.mkv": _X265,
    "mpeg2.ts": ("-c:v", "mpeg2video", *_MPEG),
    "mpeg2.mpg": ("-c:v", "mpeg2video", *_MPEG),
    "mpeg4.avi": ("-c:v", "mpeg4", *_MPEG),
    "theora.ogv": ("-c:v", "libtheora", "-q:v", "6", "-g", str(GOP)),
    "mjpeg.avi": ("-c:v", "mjpeg", "-q:v", "4", "-pix_fmt", "yuvj420p"),
}
LOCATED = [name for name in FILMS if not name.startswith("hevc")]
"""Films in which damage of a packet is always reported. HEVC's decoder may show a wrong picture in silence."""


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """One film in several codecs and containers, as ``NUM_FRAMES`` frames with a keyframe every ``GOP`` frames."""
    folder = tmp_path_factory.mktemp("films")
    noise = f"testsrc2=size=160x120:rate=25:duration={NUM_FRAMES / 25},noise=alls=12:allf=t"
    for name, options in FILMS.items():
        ffmpeg("-f", "lavfi", "-i", noise, "-pix_fmt", "yuv420p", *options, folder / name)
    return folder


def place_of(path: Path, number: int) -> tuple[int, int]:
    """Return position and size of a packet in its file [bytes]."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
    return packets[number].pos, packets[number].size


def damaged(source: Path, target: Path, number: int, num_bytes: int = 200) -> Path:
    """Copy a film, with random bytes in the middle of one of its packets."""
    data = bytearray(source.read_bytes())
    at, size = place_of(source, number)
    start = at + size // 2
    data[start : start + num_bytes] = random.Random(number).randbytes(num_bytes)
    target.parent.mkdir(parents=True)
    target.write_bytes(data)
    return target


@pytest.mark.parametrize("name", LOCATED)
def test_a_damaged_packet_puts_the_file_in_quarantine(films, tmp_path, name):
    damaged(films / name, tmp_path / "videos" / name, 50)
    assert failure_of(tmp_path)["cause"] == "decode"


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "h264.ts", "mpeg2.mpg", "mpeg4.avi"])
def test_a_truncated_file_is_in_quarantine(films, tmp_path, name):
    source = films / name
    if name.endswith(".mp4"):
        source = tmp_path / name
        ffmpeg("-i", films / name, "-c", "copy", "-movflags", "+faststart", source)
    at, size = place_of(source, 70)
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / name).write_bytes(source.read_bytes()[: at + size // 2])
    assert failure_of(tmp_path)["cause"] in ("truncated", "short")


def failure_of(folder: Path) -> dict[str, str]:
    """Build a cache of ``folder/videos``, of which nothing may be cached, and return the failure of its only file."""
    index = cc.scan([folder / "videos"], level="headers", output=folder / "index.json", jobs=HERE)
    assert cc.build(index, folder / "cache", jobs=HERE).num_failed == 1
    assert len(cc.open_cache(folder / "cache")) == 0
    (failure,) = quarantine(folder / "cache").values()
    assert failure["message"]
    return failure
