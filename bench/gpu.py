"""A training step on a GPU fed by each way of ``ClipLoader``: utilization, clips per second, pixels. Needs CUDA.

The step is a forward and a backward pass of an R3D-18 with random weights, on clips of 16 frames of 112x112. The ways:
JPEGs decoded on the CPU into pinned memory and copied on a side stream, the same with ``BatchAugment`` on the GPU, and
JPEGs decoded on the GPU. Rounds are interleaved. The figures are medians.

    python bench/gpu.py CLIPS_FOLDER [--threads 8]
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.tools.bench.rounds import in_turn, spread_of

BATCH_SIZE, NUM_BATCHES, ROUNDS = 16, 40, 5
SAMPLER = cc.RandomClipSampler(num_frames=16, stride=2)
SIZE = (112, 112)
SAMPLE_SECONDS = 0.1
"""Interval between two looks at the GPU's utilization [seconds]"""


class Rates(ctypes.Structure):
    """Rates that NVML returns, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Utilization:
    """The mean utilization of the first GPU inside a ``with`` block, by NVML. ``mean`` is None without NVML."""

    def __init__(self) -> None:
        self.mean: float | None = None
        """Mean [0 to 1], after the block"""
        self._values: list[int] = []
        self._end = threading.Event()
        self._nvml: Any = None
        self._device = ctypes.c_void_p()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Utilization:
        with suppress(OSError):
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if self._nvml is not None and (
            self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device))
        ):
            self._nvml = None
        if self._nvml is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._nvml is None:
            return
        self._thread.join()
        self._nvml.nvmlShutdown()
        if self._values:
            self.mean = sum(self._values) / len(self._values) / 100

    def _sample(self) -> None:
        rates = Rates()
        while not self._end.wait(SAMPLE_SECONDS):
            if not self._nvml.nvmlDeviceGetUtilizationRates(self._device, ctypes.byref(rates)):
                self._values.append(rates.gpu)


class Block(nn.Module):
    """Two 3D convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm3d(outputs), nn.ReLU(inplace=True),
            nn.Conv3d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm3d(outputs),
        )  # fmt: skip
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv3d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of the next layer."""
        return torch.relu(self.body(x) + self.shortcut(x))


def network() -> nn.Module:
    """Return an R3D-18 with random weights."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    stem = nn.Sequential(
        nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU(inplace=True)
    )
    blocks = [Block(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400))


class Trainer:
    """One training step after the other."""

    def __init__(self) -> None:
        self._network = network().cuda().train()
        self._optimizer = torch.optim.SGD(self._network.parameters(), 1e-3)

    def step(self, frames: torch.Tensor) -> None:
        """Train on a batch [shape=(B, T, 3, h, w), dtype=uint8, or float32 in 0 to 1]."""
        clips = frames.transpose(1, 2)
        clips = clips.float() / 255 if clips.dtype == torch.uint8 else clips
        with torch.autocast("cuda", torch.bfloat16):
            loss = self._network(clips).float().logsumexp(1).mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()


def make_cache(clips: Path, work: Path) -> Path:
    """Cache the clips at short side 128."""
    config = config_from_json({"frames": {"short_side": 128}, "features": dict.fromkeys(("flow", "motion", "mel"))})
    cc.build(cc.scan([clips]), work, config=config)
    return work


def epoch(loader: cc.ClipLoader, trainer: Trainer) -> tuple[float, float]:
    """Run some steps. Return clips per second, and the utilization of the GPU [0 to 1], or nan without NVML."""
    batches = iter(loader)
    for _ in range(3):  # warm up
        trainer.step(next(batches)["frames"])
    torch.cuda.synchronize()
    started = time.perf_counter()
    with Utilization() as utilization:
        for _ in range(NUM_BATCHES):
            trainer.step(next(batches)["frames"])
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    mean = float("nan") if utilization.mean is None else utilization.mean
    return BATCH_SIZE * NUM_BATCHES / seconds, mean


def compare_pixels(dataset: cc.ChordVideoDataset) -> None:
    """Print the PSNR of the frames that the GPU decodes to those of the CPU."""
    pairs = zip(
        cc.ClipLoader(dataset, BATCH_SIZE, device="cuda"),
        cc.ClipLoader(dataset, BATCH_SIZE, device="cuda", decode="cuda"),
        strict=True,
    )
    errors = [torch.mean((a["frames"].float() - b["frames"].float()) ** 2).item() for a, b in pairs]
    print(f"pixels, GPU to CPU: worst batch {10 * torch.log10(torch.tensor(255**2 / max(*errors, 1e-9))):.1f} dB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("--threads", type=int, default=8)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/gpu.py: no GPU that torch can use; not run")
    print(torch.cuda.get_device_name(), torch.__version__)
    with tempfile.TemporaryDirectory() as folder:
        dataset = cc.ChordVideoDataset(
            make_cache(arguments.clips, Path(folder)),
            clip_sampler=SAMPLER,
            size=SIZE,
            clips_per_video=BATCH_SIZE * (NUM_BATCHES + 4),
        )
        compare_pixels(cc.ChordVideoDataset(folder, clip_sampler=SAMPLER, size=SIZE, clips_per_video=8))
        augment = cc.BatchAugment(policy="rand", features=("frames",))
        ways: Mapping[str, Mapping[str, object]] = {
            "CPU decode, side stream": {},
            "the same, BatchAugment": {"augment": augment},
            "GPU decode": {"decode": "cuda"},
            "GPU decode, BatchAugment": {"decode": "cuda", "augment": augment},
        }
        trainer = Trainer()

        def run(options: Mapping[str, Any]) -> tuple[float, float]:
            loader = cc.ClipLoader(dataset, BATCH_SIZE, num_threads=arguments.threads, device="cuda", **options)
            return epoch(loader, trainer)

        rounds = in_turn({name: partial(run, options) for name, options in ways.items()}, ROUNDS)
        for name in ways:
            rate, used = (spread_of(column).median for column in zip(*(row[name] for row in rounds), strict=True))
            print(f"{name:26} {rate:8.0f} clips/s  GPU busy {used:.0%}")


if __name__ == "__main__":
    main()
