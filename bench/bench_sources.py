"""Random keyframes of a long file with far keyframes: the mapped source against the usual ways to reach them.

Each way is measured in turn in every round, and the medians over the rounds of the time for a frame are compared.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from measure import GOP_FRAMES, encode_loop, in_turn, seconds, spread_of

import chordcache as cc
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.tools.bench.readers import DECODERS


def make_long(clip: Path, target: Path, num_bytes: int) -> None:
    """Encode a minute of a clip in a loop with far keyframes, and repeat its packets up to a size."""
    minute = target.with_name("minute.mp4")
    encode_loop(clip, minute, 60)
    times = max(1, round(num_bytes / minute.stat().st_size))
    command = ["ffmpeg", "-v", "error", "-y", "-stream_loop", str(times - 1), "-i", str(minute), "-c", "copy"]
    subprocess.run([*command, str(target)], check=True)
    minute.unlink()


def mapped(path: Path, frames: Sequence[int]) -> Iterator[np.ndarray]:
    """Opened once."""
    with MappedMP4Source().open(path) as source:
        for number in frames:
            yield source.get_frame(number)
        assert source.fallback_reason is None


def opened_per_frame(reader: str) -> Callable[[Path, Sequence[int]], Iterator[np.ndarray]]:
    """Opened for each frame, as ``chordcache bench`` opens a file for each clip."""

    def read(path: Path, frames: Sequence[int]) -> Iterator[np.ndarray]:
        for number in frames:
            yield from DECODERS[reader](str(path), [number])

    return read


def opencv(path: Path, frames: Sequence[int]) -> Iterator[np.ndarray]:
    """Opened once, ``CAP_PROP_POS_FRAMES`` and read."""
    return DECODERS["opencv"](str(path), frames)


def decoded(path: Path, frames: Sequence[int]) -> Iterator[np.ndarray]:
    """Opened once; that reads all packets."""
    with cc.MP4Source().open(path) as source:
        for number in frames:
            yield source.get_frame(number)


def decoded_each(path: Path, frames: Sequence[int]) -> Iterator[np.ndarray]:
    """Opened for each frame."""
    for number in frames:
        with cc.MP4Source().open(path) as source:
            yield source.get_frame(number)


WAYS: dict[str, tuple[Callable[[Path, Sequence[int]], Iterator[np.ndarray]], int, str]] = {
    "MappedMP4Source, opened once": (mapped, 100, ""),
    "MappedMP4Source, opened for each": (opened_per_frame("mapped_mp4"), 100, "none"),
    "OpenCV seek and read, opened once": (opencv, 20, ">= 14"),
    "bare PyAV, opened for each": (opened_per_frame("pyav"), 100, ">= 2"),
    "MP4Source, opened once": (decoded, 20, "none"),
    "MP4Source, opened for each": (decoded_each, 3, ">= 2"),
}
"""Name: function, how many of the frames it reads, target of the ratio to the first"""


def check_same(path: Path, frames: Sequence[int]) -> None:
    """All ways must show the same frames; OpenCV and PyAV convert colors a little differently."""
    expected = list(mapped(path, frames))
    for name, (read, _, _) in WAYS.items():
        for number, ours, theirs in zip(frames, expected, read(path, frames), strict=True):
            error = float(np.abs(ours.astype(int) - theirs).mean())
            assert error < 12, (name, number, error)


def seconds_a_frame(name: str, path: Path, frames: Sequence[int]) -> float:
    """Time of one way to read, over the number of frames that it reads."""
    read, num_frames, _ = WAYS[name]
    frames = frames[:num_frames]
    return seconds(lambda: sum(1 for _ in read(path, frames))) / len(frames)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the file that is made")
    parser.add_argument("--runs", type=int, default=5, help="interleaved rounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "long.mp4"
        make_long(options.clips / "animation" / "bigbuckbunny.mp4", path, int(options.gigabytes * 1e9))
        with MappedMP4Source().open(path) as source:
            num_frames, (height, width) = source.num_frames, source.get_frame(0).shape[:2]
        keys = random.Random(0).sample(range(0, num_frames, GOP_FRAMES), min(100, num_frames // GOP_FRAMES))
        print(
            f"{path.stat().st_size / 1e9:.2f} GB, {width}x{height}, {num_frames} frames, {len(keys)} random keyframes"
        )
        check_same(path, keys[:2])
        rounds = in_turn({name: partial(seconds_a_frame, name, path, keys) for name in WAYS}, options.runs)
        first = next(iter(WAYS))
        for name, (_, _, target) in WAYS.items():
            milliseconds = 1000 * spread_of(times[name] for times in rounds).median
            ratio = spread_of(times[name] / times[first] for times in rounds).median
            print(f"{name:40} {milliseconds:9.1f} ms a frame  {ratio:8.2f} x the first  (target {target or '-'})")


if __name__ == "__main__":
    main()
