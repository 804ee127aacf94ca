"""torchcodec's own benchmark of decoders with caches as further rows: ``make bench-public``.

The suite is ``benchmarks/decoders`` of torchcodec at a pinned commit, which the Makefile fetches and puts on the path.
Its functions make the videos with ffmpeg, choose the frames, and time each decoder. Its classes of torchcodec, decord
and OpenCV run as they are. This file adds two decoders, and the size and the time of the build of each cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import benchmark_decoders_library as suite
import numpy as np
import torch
from torchcodec.decoders import VideoDecoder

import chordcache as cc

CODECS = ("jpeg", "h264", "yuv420")
"""Codecs of the caches, at the size and with the frames of the videos"""


class CachedFrames(suite.AbstractDecoder):
    """Frames of a cache. It is opened for each call, as the decoders of the suite open the video."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def decode_frames(self, video_file: str, pts_list: Sequence[float]) -> torch.Tensor:
        """Return the frames shown at given times [shape=(T, 3, H, W), dtype=uint8]."""

        def shown_at(pts_seconds: np.ndarray) -> np.ndarray:
            return np.searchsorted(pts_seconds - pts_seconds[0], pts_list, side="right") - 1

        return self._read(video_file, shown_at)

    def decode_first_n_frames(self, video_file: str, n: int) -> torch.Tensor:
        """Return the first frames [shape=(n, 3, H, W), dtype=uint8]."""
        return self._read(video_file, lambda _: np.arange(n))

    def _read(self, video_file: str, choose: Callable[[np.ndarray], np.ndarray]) -> torch.Tensor:
        with cc.open_cache(self.cache) as cache:
            video = next(video for video in cache if video.path == Path(video_file).name)
            frames = cache.read(video, "frames", indices=choose(video.pts_seconds))
        return torch.from_numpy(frames).permute(0, 3, 1, 2)


class MappedFrames(suite.AbstractDecoder):
    """torchcodec with the frame mappings of ffprobe, which were written before. It has the threads of the suite."""

    def __init__(self, mappings: dict[str, str]) -> None:
        self.mappings = mappings

    def decode_frames(self, video_file: str, pts_list: Sequence[float]) -> torch.Tensor:
        """Return the frames shown at given times [shape=(T, 3, H, W), dtype=uint8]."""
        return self._open(video_file).get_frames_played_at(list(pts_list)).data

    def decode_first_n_frames(self, video_file: str, n: int) -> torch.Tensor:
        """Return the first frames [shape=(n, 3, H, W), dtype=uint8]."""
        return self._open(video_file).get_frames_in_range(0, n).data

    def _open(self, video_file: str) -> VideoDecoder:
        return VideoDecoder(video_file, num_ffmpeg_threads=0, custom_frame_mappings=self.mappings[video_file])


def mapping_of(video: Path) -> str:
    """Return the frame mappings of a video as torchcodec takes them."""
    command = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-of", "json", "-show_entries"]
    return subprocess.check_output([*command, "frame=pts,duration,pkt_duration,key_frame", str(video)], text=True)


def build_caches(videos: Path, work: Path) -> dict[str, tuple[Path, float, float]]:
    """Build a cache of each codec. Return its folder, MB, and the seconds of the build, which include a process."""
    caches = {}
    for codec in CODECS:
        config, cache = work / f"{codec}.yaml", work / codec
        config.write_text(json.dumps({"frames": {"codec": codec, "short_side": None}}))
        command = [sys.executable, "-m", "chordcache", "build", str(videos), "-o", str(cache), "-c", str(config)]
        started = time.perf_counter()
        subprocess.run([*command, "--quiet"], check=True)
        seconds = time.perf_counter() - started
        caches[codec] = cache, size_of(cache), seconds
    return caches


def size_of(folder: Path) -> float:
    """Return the bytes of all files of a folder, [MB]."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def psnr(frames: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the peak signal-to-noise ratio of frames, [dB]; infinite if they are equal."""
    squared = (frames.double() - truth.double()).square().mean().item()
    return float("inf") if squared == 0 else 10 * float(np.log10(255**2 / squared))


def frames_of(decoder: suite.AbstractDecoder, video: Path, seconds: float) -> torch.Tensor:
    """Return two frames of a video [shape=(2, 3, H, W), dtype=uint8]."""
    frames = decoder.decode_frames(str(video), [0.2 * seconds, 0.8 * seconds])
    frames = torch.stack(frames) if isinstance(frames, list) else getattr(frames, "data", frames)
    return frames.permute(0, 3, 1, 2) if frames.shape[-1] == 3 else frames


def report(
    results: list[dict[str, Any]], sizes: dict[str, tuple[float, float | None]], quality: dict[str, float]
) -> None:
    """Print a Markdown table for each video: frames a second of each kind of access, with the quartiles."""
    by_video: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for result in results:
        rate = f"{result['fps_median']:.0f} ({result['fps_p75']:.0f} to {result['fps_p25']:.0f})"
        by_video[result["video"]][result["decoder"]][result["description"]] = rate
    for video, rows in by_video.items():
        kinds = list(next(iter(rows.values())))
        print(f"\n{Path(video).name}, frames a second: median (quartiles)\n")
        print("| decoder | " + " | ".join(kinds) + " | MB of all videos | build, s | PSNR, dB |")
        print("|---|" + "---:|" * (len(kinds) + 3))
        for name, rates in rows.items():
            megabytes, seconds = sizes[name]
            columns = [
                *(rates[kind] for kind in kinds),
                f"{megabytes:.0f}",
                "" if seconds is None else f"{seconds:.1f}",
            ]
            print(f"| {name} | " + " | ".join(columns) + f" | {quality[name]:.1f} |")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1920x1080", help="size of the videos")
    parser.add_argument("--seconds", type=int, nargs="+", default=[10], help="lengths of the videos")
    parser.add_argument("--gop", type=int, nargs="+", default=[600, 60], help="frames from keyframe to keyframe")
    parser.add_argument("--runtime", type=float, default=10, help="seconds of each measurement at least")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        videos = Path(folder, "videos")
        videos.mkdir()
        suite.generate_videos(
            [options.size],
            ["libx264"],
            ["mandelbrot"],
            [60],
            options.gop,
            options.seconds,
            ["yuv420p"],
            "ffmpeg",
            str(videos),
        )
        files = sorted(videos.iterdir())
        caches = build_caches(videos, Path(folder))
        source = size_of(videos), None
        decoders = {
            "torchcodec, exact": suite.TorchCodecPublic(),
            "torchcodec, approximate": suite.TorchCodecPublic(seek_mode="approximate"),
            "torchcodec, mappings": MappedFrames({str(file): mapping_of(file) for file in files}),
            "decord": suite.DecordAccurateBatch(),
            "OpenCV": suite.OpenCVDecoder("FFMPEG"),
            **{f"chordcache, {codec}": CachedFrames(cache) for codec, (cache, _, _) in caches.items()},
        }
        sizes = dict.fromkeys(decoders, source)
        sizes |= {f"chordcache, {codec}": (megabytes, seconds) for codec, (_, megabytes, seconds) in caches.items()}
        frames = {name: frames_of(decoder, files[0], min(options.seconds)) for name, decoder in decoders.items()}
        quality = {name: psnr(own, frames["torchcodec, exact"]) for name, own in frames.items()}
        results = suite.run_benchmarks(decoders, files, 10, [100], options.runtime, False)
    report(results, sizes, quality)


if __name__ == "__main__":
    main()
