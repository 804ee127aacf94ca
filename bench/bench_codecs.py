"""Size, quality and speed of the codecs of frames, as ratios to JPEG inside one run: part of ``make bench``.

Every codec caches the same clips at short side 256. A read decodes a clip and copies a 224x224 cut of each frame
into a batch. Its cost is the CPU time of the thread. Rounds are interleaved. The ratios are medians over them.

    python bench/bench_codecs.py CLIP [CLIP ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from measure import in_turn, spread_of, timed_in_turn

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.features.feed import decode_whole
from chordcache.features.packet_frames import PACKET_CODECS, iter_planes
from chordcache.media.cropping import Rectangle
from chordcache.media.decoding import DecodedFrame
from chordcache.media.demux import Media
from chordcache.media.planes import split
from chordcache.media.scaling import FrameMaker
from chordcache.storage.artefacts.open_files import forget, open_artefact

CONFIGS: Mapping[str, Mapping[str, object]] = {
    "jpeg 90": {},
    "yuv420": {"codec": "yuv420"},
    "mpeg4": {"codec": "mpeg4"},
    "h264": {"codec": "h264"},
    "h264 crf 20": {"codec": "h264", "crf": 20},
    "mpeg4, stride 4, gop 4": {"codec": "mpeg4", "stride": 4, "gop": 4},
    "h264, stride 4, gop 4": {"codec": "h264", "stride": 4, "gop": 4},
}
CLIPS = {"16 x 1": (16, 1), "16 x 2": (16, 2), "15 x 4": (15, 4), "32 x 1": (32, 1), "1 frame": (1, 1)}
"""Name of each kind of clip to its number of frames and its stride"""

CROP = 224
ROUNDS, BUILD_ROUNDS = 9, 3


class Luma:
    """The full-range luma of every frame of a source, as it is given to JPEG."""

    needs_sound = needs_motion_vectors = False

    def __init__(self) -> None:
        self.planes: list[np.ndarray] = []

    def begin(self, media: Media) -> None:
        """Prepare for the first frame."""
        self._maker = FrameMaker(config_from_json({}).picture, media.require_video().sample_aspect_ratio)

    def add_frame(self, decoded: DecodedFrame) -> None:
        """Keep the luma of the next frame."""
        self.planes.append(self._maker.frame(decoded).planes()[0].copy())

    def add_sound(self, sound: object) -> None:
        """Nothing: no sound is asked for."""

    def finish(self, media: Media, sounds: object = ()) -> list[np.ndarray]:
        """Return all planes."""
        return self.planes


def cpu_seconds() -> float:
    """CPU time of the worker processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def build(work: Path, name: str, settings: Mapping[str, object]) -> float:
    """Build a cache of the videos. Return its CPU time [seconds]."""
    shutil.rmtree(work / name, ignore_errors=True)
    config = config_from_json({"frames": settings, "features": {"flow": None, "motion": None, "mel": None}})
    before = cpu_seconds()
    summary = cc.build(cc.scan([work / "videos"]), work / name, tiers=("lmdb",), config=config, jobs=1)
    assert summary.num_failed == 0, summary
    return cpu_seconds() - before


def stored_luma(cache: cc.Cache, video: cc.Video) -> list[np.ndarray]:
    """Return the full-range luma of every cached frame."""
    info = video.feature("frames")
    artefact = open_artefact(cache.path / info.file.name, info.file.num_bytes)
    if info.params["codec"] in PACKET_CODECS:
        pictures = iter_planes(artefact, info, range(video.num_frames))
        return [luma[0].astype(np.float32) for luma, _, _ in pictures]
    if info.params["codec"] == "yuv420":
        return list(split(artefact.rows("frames", range(video.num_frames)))[0].astype(np.float32))
    records = artefact.records("frames", range(video.num_frames))
    return [cv2.imdecode(np.frombuffer(r, np.uint8), cv2.IMREAD_GRAYSCALE).astype(np.float32) for r in records]


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """PSNR of two planes [dB], at most 60."""
    return min(60.0, float(10 * np.log10(255**2 / max(1e-9, np.mean(np.square(a - b))))))


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Mean SSIM of two planes with the usual window, a Gaussian of 1.5 pixels."""

    def blurred(plane: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(plane, (11, 11), 1.5)

    mean_a, mean_b = blurred(a), blurred(b)
    var_a, var_b = blurred(a * a) - mean_a**2, blurred(b * b) - mean_b**2
    both = blurred(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    per_pixel = (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(per_pixel.mean())


def qualities(cache: cc.Cache, sources: Mapping[str, list[np.ndarray]]) -> tuple[float, float]:
    """Return the means of PSNR [dB] and SSIM over the frames of all videos."""
    pairs = [
        (np.asarray(source, np.float32), stored)
        for video in cache
        for source, stored in zip(sources[video.path], stored_luma(cache, video), strict=True)
    ]
    return statistics.mean(psnr(*pair) for pair in pairs), statistics.mean(ssim(*pair) for pair in pairs)


def reader(cache: cc.Cache, num_frames: int, stride: int, starts: Mapping[str, Sequence[int]]) -> Callable[[], None]:
    """Return a function that reads clips of all videos into one batch."""
    out = np.empty((num_frames, CROP, CROP, 3), np.uint8)

    def read() -> None:
        for video in cache:
            for start in starts[video.path]:
                numbers = np.arange(start, start + num_frames * stride, stride)
                done = 0
                for frames in cache.iter_frames(video, numbers, part=Rectangle(16, 16, CROP, CROP)):
                    out[done : done + len(frames)] = frames
                    done += len(frames)

    return read


def read_ratios(caches: Mapping[str, cc.Cache], num_frames: int, stride: int) -> dict[str, float]:
    """Return the cost of clips relative to JPEG."""
    random = np.random.default_rng(0)
    starts = {
        video.path: random.integers(0, max(1, video.num_frames - num_frames * stride + 1), 2).tolist()
        for video in caches["jpeg 90"]
        if video.num_frames >= num_frames * stride
    }
    starts = {video.path: starts.get(video.path, []) for video in caches["jpeg 90"]}
    readers = {name: reader(cache, num_frames, stride, starts) for name, cache in caches.items()}
    rounds = timed_in_turn(readers, ROUNDS, time.thread_time)
    return {name: spread_of(times[name] / times["jpeg 90"] for times in rounds).median for name in caches}


def num_differences(cache: cc.Cache) -> int:
    """Return the number of frames that differ between a read of all in order and one in random order."""
    num_different = 0
    for video in cache:
        frames = cache.read(video)
        order = np.random.default_rng(1).permutation(video.num_frames)
        again = (frame for block in cache.iter_frames(video, order) for frame in block)
        num_different += sum(not np.array_equal(frame, frames[i]) for i, frame in zip(order, again, strict=True))
    return num_different


def cold(cache: cc.Cache) -> tuple[int, float]:
    """Drop the files from the page cache, and read a clip of each video. Return bytes from the disk, and seconds."""
    infos = [video.feature("frames") for video in cache]
    for info in infos:
        forget(cache.path / info.file.name)
        with open(cache.path / info.file.name, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before, started = bytes_read(), time.perf_counter()
    for video in cache:
        start = (video.num_frames - 16) // 2
        cache.read(video, "frames", start, start + 16)
    return bytes_read() - before, time.perf_counter() - started


def bytes_read() -> int:
    """Bytes that this process made the kernel read from a disk."""
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    clips = parser.parse_args().clips
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "videos").mkdir()
        for number, clip in enumerate(clips):
            shutil.copy(clip, work / "videos" / f"{number}{clip.suffix}")
        rounds = in_turn({name: partial(build, work, name, config) for name, config in CONFIGS.items()}, BUILD_ROUNDS)
        caches = {name: cc.open_cache(work / name) for name in CONFIGS}
        num_frames = int(caches["jpeg 90"].num_frames.sum())
        print(f"{len(clips)} clips, {num_frames} frames")
        sources = {video.path: decode_whole(str(work / "videos" / video.path), Luma()) for video in caches["jpeg 90"]}
        for name, cache in caches.items():
            num_bytes = sum(video.feature("frames").file.num_bytes for video in cache)
            ratio = spread_of(times[name] / times["jpeg 90"] for times in rounds).median
            first = sum(video.feature("frames").file.num_bytes for video in caches["jpeg 90"])
            dB, similarity = qualities(cache, sources)
            print(
                f"{name:24} {num_bytes / num_frames:8.0f} bytes a frame  {num_bytes / first:5.3f} of JPEG  "
                f"PSNR-Y {dB:.2f} dB  SSIM {similarity:.4f}  build {ratio:.2f}  differences {num_differences(cache)}",
                flush=True,
            )
        for kind, (length, stride) in CLIPS.items():
            ratios = read_ratios(caches, length, stride)
            print(f"{kind:10}" + "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()), flush=True)
        for name, cache in caches.items():
            size, seconds = (spread_of(c).median for c in zip(*(cold(cache) for _ in range(5)), strict=True))
            print(f"cold {name:24} {size / 1e6:.1f} MB  {seconds:.3f} s", flush=True)


if __name__ == "__main__":
    main()
