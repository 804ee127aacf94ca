"""Train a small 3D CNN on a cache for a few dozen steps: python scripts/train_demo.py CACHE.

A cache with two labels or more trains a classifier. Any other trains on time's direction: was the clip reversed?
``examples/train_multimodal.py`` adds flow, sound and captions, several processes, and going on after a kill.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator

import torch
from torch import nn

import chordcache as cc

NUM_FRAMES, STRIDE, SIZE = 8, 2, (112, 112)
NUM_CLIPS_AT_LEAST = 64
"""Clips in an epoch: a cache of few videos takes several of each."""


class SmallNet(nn.Sequential):
    """Three 3D convolutions and a linear layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(
            nn.Conv3d(3, 16, kernel_size=(1, 5, 5), stride=(1, 4, 4), padding=(0, 2, 2)),
            nn.ReLU(),
            nn.Conv3d(16, 32, kernel_size=3, stride=(1, 2, 2), padding=1),
            nn.BatchNorm3d(32),
            nn.ReLU(),
            nn.Conv3d(32, 64, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm3d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d((2, 1, 1)),  # not 1: a mean over all of time does not show its direction
            nn.Flatten(),
            nn.Linear(128, num_classes),
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Turn frames (B, T, C, H, W) uint8 into scores (B, num_classes)."""
        return super().forward(frames.transpose(1, 2).float() / 127.5 - 1)


def reversed_half(frames: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn half of the clips back to front, on average; the second tensor says which, as classes 0 and 1."""
    backwards = torch.rand(len(frames), generator=generator) < 0.5
    mask = backwards.view(-1, 1, 1, 1, 1)
    return torch.where(mask, frames.flip(1), frames), backwards.long()


def make_dataset(path: str, seed: int) -> tuple[cc.ChordVideoDataset, bool]:
    """Open the cache, and say whether its labels can be learned."""
    cache = cc.open_cache(path)
    has_labels = len(cache.labels()) >= 2
    videos = [video.key for video in cache if video.label is not None] if has_labels else cache.keys()
    dataset = cc.ChordVideoDataset(
        cache,
        clip_sampler=cc.RandomClipSampler(num_frames=NUM_FRAMES, stride=STRIDE),
        size=SIZE,
        videos=videos,
        clips_per_video=-(-NUM_CLIPS_AT_LEAST // len(videos)),
        seed=seed,
    )
    return dataset, has_labels


def train(dataset: cc.ChordVideoDataset, has_labels: bool, args: argparse.Namespace) -> None:
    """Run the steps, and print how they went."""
    loader = cc.make_loader(
        dataset,
        args.batch_size,
        args.workers,
        sampler=cc.ChordSampler(dataset, seed=args.seed, batch_size=args.batch_size),
        drop_last=len(dataset) > args.batch_size,  # batch normalization wants no batch of one
    )
    generator = torch.Generator().manual_seed(args.seed)
    model = SmallNet(len(dataset.classes) if has_labels else 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    waits: list[float] = []
    batch_times: list[float] = []

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for epoch in itertools.count():
            loader.sampler.set_epoch(epoch)
            yield from loader

    start = time.perf_counter()
    for step, batch in enumerate(itertools.islice(batches(), args.steps), start=1):
        arrived = time.perf_counter()
        frames, target = (batch["frames"], batch["label"]) if has_labels else reversed_half(batch["frames"], generator)
        loss = nn.functional.cross_entropy(model(frames), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.perf_counter()
        losses.append(loss.item())
        waits.append(arrived - start)
        batch_times.append(end - start)
        if step % 10 == 0 or step == 1:
            print(f"step {step:4d}  loss {statistics.mean(losses[-10:]):.3f}  waited {1000 * waits[-1]:.0f} ms")
        start = end
    report(losses, waits, batch_times, args.batch_size)


def report(losses: list[float], waits: list[float], batch_times: list[float], batch_size: int) -> None:
    """Print the last line. The first step, in which the workers start, does not count for time."""
    waits, batch_times = waits[1:] or waits, batch_times[1:] or batch_times
    tenth = max(1, len(losses) // 10)
    print(
        f"batch {1000 * statistics.median(batch_times):.0f} ms (median), "
        f"{batch_size * len(batch_times) / sum(batch_times):.1f} samples/s, "
        f"{sum(waits) / sum(batch_times):.0%} of the time waiting for data, "
        f"loss {statistics.mean(losses[:tenth]):.3f} at first, {statistics.mean(losses[-tenth:]):.3f} at last"
    )


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", help="a folder that 'chordcache build' made")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2, help="processes that read; 0 reads in this one")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if min(args.steps, args.batch_size) < 1 or args.workers < 0:
        parser.error("--steps and --batch-size must be at least 1, --workers at least 0")
    torch.manual_seed(args.seed)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - args.workers))  # the workers need processors too
    try:
        dataset, has_labels = make_dataset(args.cache, args.seed)
    except cc.ChordcacheError as error:
        parser.exit(error.exit_code, f"train_demo: error: {error}\n")
    task = f"{len(dataset.classes)} classes" if has_labels else "time's direction"
    print(f"{len(dataset)} clips an epoch, learning {task}")
    train(dataset, has_labels, args)


if __name__ == "__main__":
    main()
