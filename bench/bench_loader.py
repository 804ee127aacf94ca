"""Speed of the loaders, as ratios inside one run: part of ``make bench-loader``.

Measured as in ``bench_spine``: interleaved, medians of pairwise ratios. The sources are 720p H.264 with a keyframe in
250 frames, cached at short side 224; each sample is 16 random frames, 4 apart, cut to 224x224. Crops are compared on a
cache of short side 256, the default.

The bare loop decodes the same records in the same order into one batch that it uses again and again, and cuts nothing.
LitData holds the same JPEGs as ready-made clips, which is what suits it best, and decodes them with the same library.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from measure import NUM_LOOPS, Records, cache_of_loops, epoch_of, report_all

import chordcache as cc
from chordcache.media.cropping import CropBox
from chordcache.tools.bench.readers import opencv_frames
from chordcache.train.samplers.clip_request import ClipRequest

BATCH_SIZE, CLIPS_PER_VIDEO = 8, 32
SAMPLER = cc.RandomClipSampler(num_frames=16, stride=4)
CROP = (224, 224)
OPENCV_CLIPS = 2


class Cut:
    """A crop in the middle that is not scaled."""

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        """Choose the crop. See ``SpatialTransform``."""
        return CropBox((height - CROP[0]) // 2, (width - CROP[1]) // 2, *CROP, CROP)


def dataset_of(cache: Path, crop: Any = None, size: tuple[int, int] | None = CROP) -> cc.ChordVideoDataset:
    """All clips of a cache, at a size or through a crop."""
    how = {"crop": crop} if crop else {"size": size}
    return cc.ChordVideoDataset(cache, clip_sampler=SAMPLER, clips_per_video=CLIPS_PER_VIDEO, **how)


def epoch(loader: Any) -> Callable[[], None]:
    """Run through one epoch, and count what comes."""
    return epoch_of(loader, NUM_LOOPS * CLIPS_PER_VIDEO)


def clips_of_epoch(folder: Path) -> list[tuple[cc.Video, list[int]]]:
    """Video and frame numbers of each clip of the loaders' epoch, in their order."""
    videos = list(cc.open_cache(folder))
    clips = []
    for epoch, index in cc.ChordSampler(len(videos) * CLIPS_PER_VIDEO):
        number, clip = divmod(index, CLIPS_PER_VIDEO)
        request = ClipRequest(epoch=epoch, index=index, clip=clip, num_clips=CLIPS_PER_VIDEO)
        clips.append((videos[number], SAMPLER.frame_numbers(videos[number], request).tolist()))
    return clips


def bare_loop(folder: Path, records: Records) -> Callable[[], None]:
    """Decode the clips of the loaders' epoch without any of this package."""
    clips = clips_of_epoch(folder)
    video = clips[0][0]
    batch = np.zeros((BATCH_SIZE, SAMPLER.num_frames, video.height, video.width, 3), np.uint8)

    def run() -> None:
        for place, (video, frames) in enumerate(clips):
            records.decode(video.key, frames, batch[place % BATCH_SIZE])

    return run


def litdata_epoch(folder: Path, records: Records, work: Path) -> Callable[[], None]:
    """The clips of the loaders' epoch in LitData, in batches that one worker of its loader decodes."""
    from litdata import StreamingDataLoader, StreamingDataset, optimize

    clips = [records.jpegs(video.key, frames) for video, frames in clips_of_epoch(folder)]
    target = work / "litdata"
    optimize(fn=_itself, inputs=clips, output_dir=str(target), chunk_bytes="64MB", num_workers=1)
    dataset = StreamingDataset(str(target), shuffle=True, transform=_decoded_and_cut)
    return epoch(StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=1, persistent_workers=True))


def _itself(jpegs: list[bytes]) -> list[bytes]:
    return jpegs


def _decoded_and_cut(jpegs: list[Any]) -> dict[str, torch.Tensor]:
    frames = np.stack([simplejpeg.decode_jpeg(jpeg, "RGB") for jpeg in jpegs])
    top, left = ((have - want) // 2 for have, want in zip(frames.shape[1:3], CROP, strict=True))
    return {"frames": torch.from_numpy(frames[:, top : top + CROP[0], left : left + CROP[1]])}


def opencv_seeks(folder: Path, videos: Path) -> Callable[[], None]:
    """A few of the clips from the sources, each frame sought by ``CAP_PROP_POS_FRAMES``, scaled and cut."""
    clips = clips_of_epoch(folder)[:OPENCV_CLIPS]

    def run() -> None:
        for video, frames in clips:
            left = (video.width - CROP[1]) // 2
            for picture in opencv_frames(str(videos / video.path), frames):
                small = cv2.resize(picture, (video.width, video.height), interpolation=cv2.INTER_AREA)
                np.ascontiguousarray(small[:, left : left + CROP[1]])

    return run


def report_crops(folder: Path, runs: int) -> None:
    """Compare crops of a cache of short side 256 with decoding its pictures alone, by CPU time."""
    rivals = [
        ("cut to 224x224", "none", Cut()),
        ("size=(224, 224)", ">= 0.87, that is 1 / 1.15", cc.crops.CenterCrop(CROP)),
    ]
    rivals.append(("RandomResizedCrop", ">= 0.77, that is 1 / 1.3", cc.crops.RandomResizedCrop(CROP)))
    report_all(
        [
            (f"bare JPEG loop / ClipLoader, 1 thread, {name}", target, epoch(one_thread(dataset_of(folder, crop))))
            for name, target, crop in rivals
        ],
        bare_loop(folder, Records(folder)),
        runs,
        time.process_time,
    )


def one_thread(dataset: cc.ChordVideoDataset) -> cc.ClipLoader:
    """Read batches by one thread."""
    return cc.ClipLoader(dataset, BATCH_SIZE, num_threads=1)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each pair")
    options = parser.parse_args()
    clip = options.clips / "animation" / "bigbuckbunny.mp4"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        jpeg = cache_of_loops(work, clip, "jpeg", CROP[0])
        records = Records(jpeg)
        bare = bare_loop(jpeg, records)
        one, two = (epoch(cc.ClipLoader(dataset_of(jpeg), BATCH_SIZE, num_threads=n)) for n in (1, 2))
        whole = epoch(cc.ClipLoader(dataset_of(jpeg, size=None), BATCH_SIZE, num_threads=1))
        report_all(
            [
                ("bare JPEG loop / ClipLoader, 1 thread", ">= 0.9", one),
                ("bare JPEG loop / ClipLoader, 2 threads", ">= 1.53, that is 1.7 x 0.9", two),
                ("bare JPEG loop / ClipLoader, 1 thread, uncut frames", "none", whole),
            ],
            bare,
            options.runs,
        )
        report_crops(cache_of_loops(work, clip, "jpeg", 256), options.runs)
        worker = epoch(cc.make_loader(dataset_of(jpeg), BATCH_SIZE, 1))
        raw = epoch(cc.ClipLoader(dataset_of(cache_of_loops(work, clip, "raw", CROP[0])), BATCH_SIZE, num_threads=1))
        report_all(
            [
                ("ClipLoader, 1 thread / 2 threads", ">= 1.9", two),
                ("ClipLoader, 1 thread / make_loader, 1 worker", "none", worker),
                ("ClipLoader, 1 thread, JPEG / raw", ">= 4", raw),
            ],
            one,
            options.runs,
        )
        report_all(
            [
                ("LitData, 1 worker / ClipLoader, 1 thread", ">= 1.25", one),
                ("LitData, 1 worker / make_loader, 1 worker", "none", worker),
            ],
            litdata_epoch(jpeg, records, work),
            options.runs,
        )
        scale = NUM_LOOPS * CLIPS_PER_VIDEO / OPENCV_CLIPS
        report_all(
            [(f"{scale:g} x OpenCV seeking each frame / ClipLoader, 1 thread", f">= {300 / scale:g} x", one)],
            opencv_seeks(jpeg, work / "videos"),
            options.runs,
        )


if __name__ == "__main__":
    main()
