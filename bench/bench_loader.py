"""Speed of the loaders, as ratios inside one run: part of ``make bench``.

Measured as in ``bench_spine``: interleaved, medians of pairwise ratios. The sources are copies of one real 720p H.264
clip, cached at short side 256; each sample is 16 random frames, 4 apart. The bare loop decodes the same records in the
same order into one batch that it uses again and again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import simplejpeg
from measure import repeat_video, report_all

import chordcache as cc
from chordcache.read.samplers import ClipRequest

BATCH_SIZE, NUM_VIDEOS, CLIPS_PER_VIDEO = 8, 3, 32
SAMPLER = cc.RandomClipSampler(num_frames=16, stride=4)


def make_cache(work: Path, clip: Path, codec: str) -> Path:
    """Build a cache of a few videos in one codec."""
    videos = work / "videos"
    if not videos.exists():
        videos.mkdir()
        for i in range(NUM_VIDEOS):
            repeat_video(clip, videos / f"{i}.mp4", 4)
    config = work / f"{codec}.yaml"
    config.write_text(f"frames: {{codec: {codec}}}\n")
    cc.build(cc.scan([videos]), work / codec, config=config)
    return work / codec


def dataset_of(cache: Path, size: tuple[int, int] | None = None) -> cc.ChordVideoDataset:
    """All clips of a cache."""
    return cc.ChordVideoDataset(cache, sampler=SAMPLER, size=size, clips_per_video=CLIPS_PER_VIDEO)


def epoch_of(loader: cc.ClipLoader) -> Callable[[], None]:
    """Run through one epoch, and count what comes."""

    def run() -> None:
        num_clips = sum(len(batch["frames"]) for batch in loader)
        assert num_clips == NUM_VIDEOS * CLIPS_PER_VIDEO, num_clips

    return run


def bare_loop(folder: Path) -> Callable[[], None]:
    """Decode the clips of the loaders' epoch without any of this package."""
    videos = list(cc.open_cache(folder))
    asked = []
    for epoch, index in cc.ChordSampler(len(videos) * CLIPS_PER_VIDEO):
        number, clip = divmod(index, CLIPS_PER_VIDEO)
        request = ClipRequest(epoch=epoch, index=index, clip=clip, num_clips=CLIPS_PER_VIDEO)
        asked.append((number, SAMPLER.frame_numbers(videos[number], request).tolist()))
    copies = []
    for video in videos:  # LMDB opens a file once per process: the bare loop has its own copies
        file = folder / str(video.feature("frames").file)
        copies.append(file.with_suffix(".bare"))
        copies[-1].write_bytes(file.read_bytes())
    environments = [lmdb.open(str(copy), subdir=False, readonly=True, lock=False) for copy in copies]
    batch = np.zeros((BATCH_SIZE, SAMPLER.num_frames, videos[0].height, videos[0].width, 3), np.uint8)

    def run() -> None:
        for place, (number, frames) in enumerate(asked):
            out = batch[place % BATCH_SIZE]
            with environments[number].begin(buffers=True) as transaction:
                for i, frame in enumerate(frames):
                    simplejpeg.decode_jpeg(transaction.get(frame.to_bytes(4, "big")), "RGB", buffer=out[i])

    return run


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each pair")
    options = parser.parse_args()
    clip = options.clips / "animation" / "bigbuckbunny.mp4"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        jpeg = make_cache(work, clip, "jpeg")
        one, two = (epoch_of(cc.ClipLoader(dataset_of(jpeg), BATCH_SIZE, num_threads=n)) for n in (1, 2))
        report_all(
            [
                ("bare JPEG loop / ClipLoader, 1 thread", ">= 0.9", one),
                ("bare JPEG loop / ClipLoader, 2 threads", ">= 1.53, that is 1.7 x 0.9", two),
            ],
            bare_loop(jpeg),
            options.runs,
        )
        cropped = epoch_of(cc.ClipLoader(dataset_of(jpeg, (224, 224)), BATCH_SIZE, num_threads=1))
        worker = epoch_of(cc.make_loader(dataset_of(jpeg), BATCH_SIZE, 1))
        raw = epoch_of(cc.ClipLoader(dataset_of(make_cache(work, clip, "raw")), BATCH_SIZE, num_threads=1))
        report_all(
            [
                ("ClipLoader, 1 thread / the same, scaled and cut to 224x224", "none", cropped),
                ("ClipLoader, 1 thread / make_loader, 1 worker", "none", worker),
                ("ClipLoader, 1 thread, JPEG / raw", ">= 4", raw),
            ],
            one,
            options.runs,
        )


if __name__ == "__main__":
    main()
