"""Speed and memory of scan, build and read, as ratios inside one run: ``make bench``.

Each pair is measured in turn, A B A B ..., and the median of the pairwise ratios is printed: a shared machine's mood
then falls on both sides alike. The sources are copies of one real 720p H.264 clip, made longer without re-encoding.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import av
import lmdb
import numpy as np
import simplejpeg
from measure import repeat_video, report, report_memory, spread_of, timed_in_turn

import chordcache as cc

CLIP_FRAMES, CLIP_STRIDE, NUM_CLIPS = 16, 4, 200


def decode_bare(path: Path) -> int:
    """Decode on one thread and throw the frames away."""
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return sum(1 for _ in container.decode(video=0))


def demux_bare(path: Path) -> int:
    """Read all video packets."""
    with av.open(str(path)) as container:
        return sum(1 for _ in container.demux(container.streams.video[0]))


def build_fresh(index: Path, folder: Path, jobs: int) -> None:
    """Build into a folder that is not there yet, and remove it."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        cc.build(index, cache, jobs=jobs)


def bench_build(work: Path, clip: Path, runs: int) -> None:
    """Build against bare decoding, and two workers against one."""
    videos = work / "build"
    videos.mkdir()
    for i in range(4):
        repeat_video(clip, videos / f"{i}.mp4", 10)
    index = work / "build.jsonl"
    cc.scan([videos], output=index)
    paths = sorted(videos.iterdir())
    bare = lambda: [decode_bare(path) for path in paths]  # noqa: E731
    one = lambda: build_fresh(index, work, 1)  # noqa: E731
    two = lambda: build_fresh(index, work, 2)  # noqa: E731
    report("bare decode / build, 720p to JPEG 256, 1 worker", ">= 0.70", bare, one, runs)
    report("build with 1 worker / with 2", ">= 1.8", one, two, runs)


def bench_scan(work: Path, clip: Path, runs: int) -> None:
    """Packet scan against bare demuxing."""
    videos = work / "scan"
    videos.mkdir()
    for i in range(400):
        repeat_video(clip, videos / f"{i:03}.mp4", 4)
    paths = sorted(videos.iterdir())
    bare = lambda: [demux_bare(path) for path in paths]  # noqa: E731
    report("bare demux / scan --level packets, 1 worker", ">= 0.8", bare, lambda: cc.scan([videos], jobs=1), runs)


def bench_read(work: Path, clips: Path, runs: int) -> None:
    """Random clips through the public API against a bare loop over the same records."""
    cache_folder = work / "read"
    index = cc.scan([clips])
    cc.build(index, cache_folder)
    cache = cc.open_cache(cache_folder)
    videos = [video for video in cache if video.num_frames > CLIP_FRAMES * CLIP_STRIDE]
    generator = np.random.default_rng(0)
    asked = []
    for video_number in generator.integers(len(videos), size=NUM_CLIPS).tolist():
        start = int(generator.integers(videos[video_number].num_frames - CLIP_FRAMES * CLIP_STRIDE))
        asked.append((video_number, range(start, start + CLIP_FRAMES * CLIP_STRIDE, CLIP_STRIDE)))
    files = [cache_folder / video.feature("frames").file.name for video in videos]
    outs = [np.empty((CLIP_FRAMES, video.height, video.width, 3), np.uint8) for video in videos]
    copies = []
    for file in files:  # LMDB opens a file once per process: the bare loop has its own copies
        copies.append(file.with_suffix(".bare"))
        copies[-1].write_bytes(file.read_bytes())
    environments = [lmdb.open(str(file), subdir=False, readonly=True, lock=False) for file in copies]

    def bare() -> None:
        for number, frames in asked:
            with environments[number].begin(buffers=True) as transaction:
                for i, frame in enumerate(frames):
                    record = transaction.get(frame.to_bytes(4, "big"))
                    simplejpeg.decode_jpeg(record, "RGB", buffer=outs[number][i])

    def ours() -> None:
        for number, frames in asked:
            cache.read(videos[number], indices=frames, out=outs[number])

    def ours_by_key() -> None:
        for number, frames in asked:
            cache.read(videos[number].key, indices=frames)

    report("bare JPEG loop / cache.read into a buffer, 16 frames", ">= 0.85", bare, ours, runs)
    report("bare JPEG loop / cache.read by key, fresh arrays", "none", bare, ours_by_key, runs)
    for environment in environments:
        environment.close()


def bench_help() -> None:
    """Start-up of the command line."""
    command = [sys.executable, "-m", "chordcache", "--help"]
    rounds = timed_in_turn({"": lambda: subprocess.run(command, check=True, capture_output=True)}, 5)
    median = spread_of(times[""] for times in rounds).median
    print(f"{'chordcache --help':58} {median:5.2f} s  (target < 0.3 s)", flush=True)


def bench_memory(work: Path, clip: Path) -> None:
    """Peak memory of a build worker against the length of its video."""
    report_memory("peak memory of a build worker", "< 400 MB", work, clip, [])


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--clip", type=Path, help="another 720p H.264 source for all but reading")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each pair")
    parser.add_argument("--no-memory", action="store_true", help="leave out the 20-minute video")
    options = parser.parse_args()
    clip = options.clip or options.clips / "animation" / "bigbuckbunny.mp4"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        bench_help()
        bench_build(work, clip, options.runs)
        bench_scan(work, clip, options.runs)
        bench_read(work, options.clips, options.runs)
        if not options.no_memory:
            bench_memory(work, clip)


if __name__ == "__main__":
    main()
