"""Episodes of a robot as LeRobot stores them, and random samples of 8 frames from each format: ``make bench-public``.

Episodes of ``gym-pusht`` are recorded with random pushes, 96x96 at 10 frames a second. MP4 is encoded as LeRobot does
by default (AV1, a keyframe every 2 frames, CRF 30). JPEGs have the quality of chordcache's. All formats read the same
samples in turn in each round, in one process, with one thread. Files and tables stay open, except single JPEGs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gymnasium
import lance
import numpy as np
import pyarrow
import simplejpeg
import torch
from measure import spread_of, timed_in_turn
from public_suite import size_of
from torchcodec.decoders import VideoDecoder

import chordcache as cc

FPS, SAMPLE_FRAMES, QUALITY = 10, 8, 90

Sample = tuple[int, int]
"""Number of the episode, and of its first frame"""


def record(num_episodes: int, num_frames: int) -> list[np.ndarray]:
    """Return episodes [each shape=(T, 96, 96, 3), dtype=uint8]. The pusher follows a random walk."""
    import gym_pusht  # noqa: F401 -- registers the environment

    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="pixels", max_episode_steps=num_frames + 1)
    generator = np.random.default_rng(0)
    episodes = []
    for episode in range(num_episodes):
        frame, _ = env.reset(seed=episode)
        target, frames = generator.uniform(0, 512, 2), [frame]
        while len(frames) < num_frames:
            target = np.clip(target + generator.normal(0, 40, 2), 0, 512)
            frames.append(env.step(target.astype(np.float32))[0])
        episodes.append(np.stack(frames))
    return episodes


def encode(frames: np.ndarray, path: Path) -> None:
    """Write an episode with the options that LeRobot gives to its encoder."""
    command = ["ffmpeg", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "96x96", "-r", str(FPS), "-i", "-"]
    command += ["-c:v", "libsvtav1", "-g", "2", "-crf", "30", "-pix_fmt", "yuv420p", str(path)]
    subprocess.run(command, input=frames.tobytes(), check=True, stderr=subprocess.DEVNULL)


def write_formats(episodes: list[np.ndarray], work: Path) -> dict[str, float]:
    """Write all episodes in each format. Return the seconds, by the name of the folder."""
    seconds = {}

    def timed(name: str, write: Callable[[Path], object]) -> None:
        started = time.perf_counter()
        write(work / name)
        seconds[name] = time.perf_counter() - started

    def videos(folder: Path) -> None:
        folder.mkdir()
        for number, frames in enumerate(episodes):
            encode(frames, folder / f"episode_{number:06}.mp4")

    def jpegs(folder: Path) -> None:
        for number, frames in enumerate(episodes):
            (folder / str(number)).mkdir(parents=True)
            for i, frame in enumerate(frames):
                (folder / str(number) / f"{i:06}.jpg").write_bytes(simplejpeg.encode_jpeg(frame, QUALITY, "RGB", "420"))

    def table(folder: Path) -> None:
        records = [simplejpeg.encode_jpeg(frame, QUALITY, "RGB", "420") for frames in episodes for frame in frames]
        lance.write_dataset(pyarrow.table({"jpeg": pyarrow.array(records, pyarrow.large_binary())}), str(folder))

    def cache(codec: str, folder: Path) -> None:
        config = work / f"{codec}.yaml"
        config.write_text(json.dumps({"frames": {"codec": codec}}))
        cc.build(cc.scan([work / "mp4"]), folder, config=config)

    timed("mp4", videos)
    timed("jpeg", jpegs)
    timed("lance", table)
    for codec in ("jpeg", "mpeg4"):
        timed(f"chordcache-{codec}", partial(cache, codec))
    return seconds


def readers(work: Path, num_frames: int) -> dict[str, Callable[[Sample], np.ndarray]]:
    """Return a function for each format that reads the frames of a sample [shape=(8, 96, 96, 3), dtype=uint8]."""
    decoders = [VideoDecoder(path, dimension_order="NHWC") for path in sorted((work / "mp4").iterdir())]
    dataset = lance.dataset(str(work / "lance"))

    def of_video(sample: Sample) -> np.ndarray:
        times = [(sample[1] + i) / FPS for i in range(SAMPLE_FRAMES)]
        return decoders[sample[0]].get_frames_played_at(times).data.numpy()

    def of_jpegs(sample: Sample) -> np.ndarray:
        paths = [work / "jpeg" / str(sample[0]) / f"{sample[1] + i:06}.jpg" for i in range(SAMPLE_FRAMES)]
        return np.stack([simplejpeg.decode_jpeg(path.read_bytes(), "RGB") for path in paths])

    def of_table(sample: Sample) -> np.ndarray:
        first = sample[0] * num_frames + sample[1]
        column = dataset.take(list(range(first, first + SAMPLE_FRAMES)), columns=["jpeg"])["jpeg"]
        return np.stack([simplejpeg.decode_jpeg(bytes(jpeg.as_buffer()), "RGB") for jpeg in column])

    def of_cache(cache: cc.Cache, sample: Sample) -> np.ndarray:
        return cache.read(sample[0], "frames", sample[1], sample[1] + SAMPLE_FRAMES)

    caches = {name: cc.open_cache(work / name) for name in ("chordcache-jpeg", "chordcache-mpeg4")}
    return {
        "mp4": of_video,
        "jpeg": of_jpegs,
        "lance": of_table,
        **{name: partial(of_cache, cache) for name, cache in caches.items()},
    }


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--frames", type=int, default=120, help="frames of an episode")
    parser.add_argument("--samples", type=int, default=500, help="random samples of a round")
    parser.add_argument("--runs", type=int, default=5, help="interleaved rounds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    episodes = record(options.episodes, options.frames)
    drawn = random.Random(0)
    starts = range(options.frames - SAMPLE_FRAMES)
    samples = [(drawn.randrange(options.episodes), drawn.choice(starts)) for _ in range(options.samples)]

    def read_all(read: Callable[[Sample], np.ndarray], samples: Sequence[Sample]) -> None:
        for sample in samples:
            read(sample)

    with tempfile.TemporaryDirectory() as folder:
        seconds = write_formats(episodes, Path(folder))
        by_format = readers(Path(folder), options.frames)
        rounds = timed_in_turn(
            {name: partial(read_all, read, samples) for name, read in by_format.items()}, options.runs
        )
        print("| format | MB | written in, s | frames a second | range | PSNR to the recording, dB |")
        print("|---|---:|---:|---:|---:|---:|")
        for name, read in by_format.items():
            rate = spread_of(SAMPLE_FRAMES * len(samples) / times[name] for times in rounds)
            squares = [
                np.square(read(s) - episodes[s[0]][s[1] : s[1] + SAMPLE_FRAMES].astype(float)) for s in samples[:50]
            ]
            decibels = 10 * np.log10(255**2 / np.mean(squares))
            row = f"| {name} | {size_of(Path(folder, name)):.1f} | {seconds[name]:.1f} | {rate.median:.0f} "
            print(f"{row}| {rate.least:.0f} to {rate.most:.0f} | {decibels:.1f} |")


if __name__ == "__main__":
    main()
