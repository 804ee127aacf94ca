"""Random clips from an object store: a cache read through a local folder, and a Lance dataset of the same JPEGs.

The server is that of ``bench_object_stores.py``. Lance has a row for each frame, and keeps nothing on the disk, so that
each epoch fetches its clips. Both readers have 64 clips on the way and two threads that decode. Each runs in a new
process with an empty folder in each round. obstore and pylance must be installed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lance
import numpy as np
import pyarrow
from bench_object_stores import BATCH_SIZE, NUM_FRAMES, loader_of, start_server
from bench_packs import many

import chordcache as cc
from chordcache.amounts import human_bytes
from chordcache.building.pack import pack
from chordcache.media.jpeg import decode_into
from chordcache.tools.bench.rounds import in_turn, spread_of

BATCHES_AHEAD, NUM_THREADS = 64 // BATCH_SIZE, 2
"""As in ``ClipLoader``, and in ``loader_of``"""

Value, Result = TypeVar("Value"), TypeVar("Result")


class Epoch(NamedTuple):
    """One pass over all videos."""

    wall_seconds: float
    cpu_seconds: float
    num_bytes: int
    """Bytes that the server sent"""


def write_lance(cache: Path, target: Path) -> None:
    """Write the JPEGs of all videos of a cache, in the order of the cache.

    The number of the video follows the end of each JPEG: the videos of ``many`` are equal, and Lance stores equal
    values once.
    """
    schema = pyarrow.schema([("jpeg", pyarrow.large_binary())])
    with cc.open_cache(cache) as opened:
        jpegs = opened.read_encoded(opened[0], range(opened[0].num_frames))
        batches = (
            pyarrow.record_batch([pyarrow.array([jpeg + b"%d" % i for jpeg in jpegs], pyarrow.large_binary())], schema)
            for i in range(len(opened))
        )
        lance.write_dataset(pyarrow.RecordBatchReader.from_batches(schema, batches), str(target))


def ahead(function: Callable[[Value], Result], values: Iterable[Value], num_ahead: int) -> Iterator[Result]:
    """Yield the results of a function in their order, while threads make the next ones."""
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_ahead) as pool:
        for value in values:
            pending.append(pool.submit(function, value))
            if len(pending) > num_ahead:
                yield pending.popleft().result()
        for future in pending:
            yield future.result()


def lance_reader(video_frames: int, frame_shape: tuple[int, ...]) -> Callable[[], Iterable[object]]:
    """Return a function that reads an epoch: a random clip of each video, in random order."""
    options = {"allow_http": "true", "aws_region": "us-east-1", "aws_skip_signature": "true"}
    dataset = lance.dataset(
        "s3://data/lance", storage_options=options | {"aws_endpoint": os.environ["AWS_ENDPOINT_URL"]}
    )
    buffers = cycle(np.empty((BATCH_SIZE * NUM_FRAMES, *frame_shape), np.uint8) for _ in range(NUM_THREADS + 2))

    def fetch(starts: list[int]) -> list[Any]:
        rows = [row for start in starts for row in range(start, start + NUM_FRAMES)]
        return [memoryview(jpeg.as_buffer()).cast("B") for jpeg in dataset.take(rows, columns=["jpeg"])["jpeg"]]

    def decode(batch: tuple[list[Any], np.ndarray]) -> np.ndarray:
        jpegs, frames = batch
        for jpeg, frame in zip(jpegs, frames, strict=False):
            decode_into(jpeg, frame)
        return frames[: len(jpegs)]

    def epoch() -> Iterable[object]:
        videos = range(0, dataset.count_rows(), video_frames)
        starts = [row + random.randrange(video_frames - NUM_FRAMES + 1) for row in random.sample(videos, len(videos))]
        batches = (starts[i : i + BATCH_SIZE] for i in range(0, len(starts), BATCH_SIZE))
        jpegs = ahead(fetch, batches, BATCHES_AHEAD)
        return ahead(decode, zip(jpegs, buffers, strict=False), NUM_THREADS)

    return epoch


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the one that fetches for it, [seconds]."""
    children = [int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    return time.process_time() + sum(time.clock_gettime(~pid << 3 | 2) for pid in children)


def two_epochs(
    name: str, local: Path, video: tuple[int, tuple[int, ...]], num_sent: Synchronized[int], pipe: Connection
) -> None:
    """Read two epochs of random clips, and send the times and bytes of each."""
    if name == "Lance":
        epoch = lance_reader(*video)
    else:
        epoch = partial(iter, loader_of(cc.open_cache(f"s3://data/{name}", local=local / "cache")))
    epochs = []
    for _ in range(2):
        wall, cpu, num_bytes = time.perf_counter(), cpu_seconds(), num_sent.value
        deque(epoch(), maxlen=0)
        epochs.append(Epoch(time.perf_counter() - wall, cpu_seconds() - cpu, num_sent.value - num_bytes))
    pipe.send(epochs)


def main() -> None:
    """Print the medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path, help="folder of fetch_clips.py")
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--short-side", type=int, default=224)
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--runs", type=int, default=5, help="interleaved rounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(f"frames: {{short_side: {options.short_side}, fps: 5}}\n")
        index = cc.scan([options.clips / "street"], output=folder / "index.jsonl")
        cc.build(index, folder / "loose", config=folder / "config.yaml", jobs=1)
        num_bytes = many(folder / "loose", options.videos)
        pack(folder / "loose", folder / "packed")
        write_lance(folder / "loose", folder / "lance")
        with cc.open_cache(folder / "loose") as cache:
            video = cache[0]
        server, num_sent = start_server(folder, options.latency_ms)
        context = multiprocessing.get_context("spawn")

        def measured(name: str) -> list[Epoch]:
            with tempfile.TemporaryDirectory(dir=folder) as local:
                ours, theirs = context.Pipe()
                shape = video.height, video.width, 3
                arguments = name, Path(local), (video.num_frames, shape), num_sent, theirs
                process = context.Process(target=two_epochs, args=arguments)
                process.start()
                theirs.close()
                epochs: list[Epoch] = ours.recv()
                process.join()
                return epochs

        rounds = in_turn({name: partial(measured, name) for name in ("loose", "packed", "Lance")}, options.runs)
        server.terminate()
    print(f"{options.videos} videos of {video.num_frames} frames, {human_bytes(num_bytes / options.videos)} each")
    print("| reader, epoch | clips/s | range | kB a clip | CPU ms a clip | range |\n|---|---:|---:|---:|---:|---:|")
    for name in rounds[0]:
        for number, label in enumerate(("first", "second")):
            epochs = [epochs[name][number] for epochs in rounds]
            rate = spread_of(options.videos / epoch.wall_seconds for epoch in epochs)
            cpu = spread_of(1000 * epoch.cpu_seconds / options.videos for epoch in epochs)
            size = spread_of(epoch.num_bytes / 1000 / options.videos for epoch in epochs).median
            print(
                f"| {name}, {label} | {rate.median:.1f} | {rate.least:.1f} to {rate.most:.1f} | {size:.0f} | "
                f"{cpu.median:.1f} | {cpu.least:.1f} to {cpu.most:.1f} |"
            )


if __name__ == "__main__":
    main()
