"""A training step on a GPU fed by each way of ``ClipLoader``, and a VAE in a build. Needs CUDA.

The step is a forward and a backward pass of an R3D-18 with random weights, on clips of 16 frames. The ways: JPEGs and
planes decoded on the CPU into pinned memory and copied on a side stream, both decoded on the GPU, also with
``BatchAugment`` there, and DataLoaders whose workers read the cache, or decode the sources with ``MP4Source`` or with
torchcodec. The ceiling is the step on one batch again and again. Rounds are interleaved. The figures are medians.
Before, pixels are compared with those of the CPU, and batches of many threads with those of one that waits for the GPU
after each.

    python bench/gpu.py CLIPS_FOLDER [--side 112] [--threads 1 2 4] [--rounds 5] [--vae]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import torch
from measure import in_turn, spread_of
from torch import nn
from torchcodec.decoders import VideoDecoder
from torchcodec.transforms import CenterCrop, Resize

import chordcache as cc
from chordcache.config.config import config_from_json

BATCH_SIZE, EPOCH_SECONDS = 16, 2.0
SAMPLER = cc.RandomClipSampler(num_frames=16, stride=2)
MANY = BATCH_SIZE * 2000
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


def make_cache(clips: Path, folder: Path, codec: str, side: int) -> Path:
    """Cache the clips at the short side from which a size is cut."""
    frames = {"short_side": side * 8 // 7, "codec": codec}
    config = config_from_json({"frames": frames, "features": dict.fromkeys(("flow", "motion", "mel"))})
    cc.build(cc.scan([clips]), folder, config=config)
    return folder


def epoch(batches: Iterator[torch.Tensor], trainer: Trainer) -> tuple[float, float]:
    """Train for some seconds. Return clips per second, and the utilization of the GPU [0 to 1], or nan without NVML."""
    for _ in range(4):  # warm up
        trainer.step(next(batches))
    torch.cuda.synchronize()
    started = time.perf_counter()
    num_batches = 0
    with Utilization() as utilization:
        while time.perf_counter() - started < EPOCH_SECONDS:
            trainer.step(next(batches))
            torch.cuda.synchronize() if num_batches % 8 == 7 else None  # so that few steps are queued at the end
            num_batches += 1
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    mean = float("nan") if utilization.mean is None else utilization.mean
    return BATCH_SIZE * num_batches / seconds, mean


def frames_of(batches: Any) -> Iterator[torch.Tensor]:
    """Yield the frames of batches on the GPU."""
    for batch in batches:
        yield batch["frames"].cuda(non_blocking=True)


def compare_pixels(cache: Path, codec: str, side: int) -> None:
    """Print the PSNR of the frames that the GPU decodes to those of the CPU, for a plain and for a scaled crop."""
    for crop in (cc.crops.CenterCrop((side, side)), cc.crops.RandomResizedCrop((side, side))):
        dataset = cc.ChordVideoDataset(cache, clip_sampler=SAMPLER, crop=crop, clips_per_video=64)
        pairs = zip(
            cc.ClipLoader(dataset, BATCH_SIZE, device="cuda"),
            cc.ClipLoader(dataset, BATCH_SIZE, device="cuda", decode="cuda"),
            strict=True,
        )
        errors = [torch.mean((a["frames"].float() - b["frames"].float()) ** 2).item() for a, b in pairs]
        worst = 10 * torch.log10(torch.tensor(255**2 / max(*errors, 1e-9)))
        print(f"pixels of {codec}, {type(crop).__name__}, GPU to CPU: worst of {len(errors)} batches {worst:.1f} dB")


def compare_threads(cache: Path, codec: str, side: int, decode: str, trainer: Trainer) -> None:
    """Print how many batches of eight threads, while the GPU trains, equal those of one thread that waits for it."""
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=SAMPLER, crop=cc.crops.RandomResizedCrop((side, side)), clips_per_video=480
    )
    alone = []
    for batch in cc.ClipLoader(dataset, BATCH_SIZE, num_threads=1, prefetch=0, device="cuda", decode=decode):
        torch.cuda.synchronize()
        alone.append(batch["frames"].cpu())
    num_equal = 0
    together = cc.ClipLoader(dataset, BATCH_SIZE, num_threads=8, prefetch=4, device="cuda", decode=decode)
    for expected, batch in zip(alone, together, strict=True):
        trainer.step(batch["frames"])
        num_equal += torch.equal(batch["frames"].cpu(), expected)
    print(f"{codec}, decode {decode}: {num_equal} of {len(alone)} batches of many threads equal those of one")


class TorchcodecClips(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random clips of the sources as a user of torchcodec writes them: files stay open, frames are asked for by number.

    The decoder scales to the short side and cuts the middle. One thread decodes, since there are workers.
    """

    def __init__(self, clips: Path, side: int) -> None:
        self.videos = sorted(clips.rglob("*.mp4"))
        self.side = side
        self.decoders: dict[int, VideoDecoder] = {}

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        number = index % len(self.videos)
        if number not in self.decoders:
            shown = VideoDecoder(self.videos[number]).metadata
            scale = self.side * 8 // 7 / min(shown.height, shown.width)
            transforms = [
                Resize((round(shown.height * scale), round(shown.width * scale))),
                CenterCrop((self.side, self.side)),
            ]
            self.decoders[number] = VideoDecoder(self.videos[number], num_ffmpeg_threads=1, transforms=transforms)
        decoder = self.decoders[number]
        first = random.randrange(len(decoder) - (SAMPLER.num_frames - 1) * SAMPLER.stride)
        numbers = range(first, first + SAMPLER.num_frames * SAMPLER.stride, SAMPLER.stride)
        return {"frames": decoder.get_frames_at(list(numbers)).data}


def ways_of(caches: dict[str, Path], clips: Path, side: int) -> dict[str, Callable[[int], Any]]:
    """Return each way as a function from a number of threads to its batches."""
    ways: dict[str, Callable[[int], Any]] = {}
    for codec, cache in caches.items():
        dataset = cc.ChordVideoDataset(cache, clip_sampler=SAMPLER, size=(side, side), clips_per_video=MANY)
        for decode in ("cpu", "cuda"):
            load = partial(cc.ClipLoader, dataset, BATCH_SIZE, device="cuda", decode=decode)
            ways[f"{codec}, {decode}"] = lambda threads, load=load: load(num_threads=threads)  # type: ignore[misc]
        ways[f"{codec}, workers"] = partial(cc.make_loader, dataset, BATCH_SIZE)
    pictures = config_from_json({"frames": {"short_side": side * 8 // 7}}).picture
    source = cc.videos.from_files(cc.MP4Source(pictures), clips)
    sources = cc.ChordVideoDataset(source, clip_sampler=SAMPLER, size=(side, side), clips_per_video=MANY)
    ways["sources, workers"] = partial(cc.make_loader, sources, BATCH_SIZE)
    ways["torchcodec, workers"] = lambda workers: torch.utils.data.DataLoader(
        TorchcodecClips(clips, side), BATCH_SIZE, num_workers=workers, pin_memory=True
    )
    return ways


def measure(ways: dict[str, Callable[[int], Any]], threads: Sequence[int], rounds: int, trainer: Trainer) -> None:
    """Print clips per second and the utilization of the GPU, for each way and number of threads."""
    batch = next(frames_of(ways["jpeg, cpu"](4)))
    runs: dict[str, Callable[[], tuple[float, float]]] = {
        "ceiling: one batch again": lambda: epoch(repeat(batch), trainer)
    }
    for num_threads in threads:
        for name, load in ways.items():
            runs[f"{name}, {num_threads}"] = lambda load=load, num=num_threads: epoch(  # type: ignore[misc]
                frames_of(load(num)), trainer
            )
    figures = in_turn(runs, rounds)
    ceiling = spread_of([row["ceiling: one batch again"][0] for row in figures]).median
    for name in runs:
        rate, used = (spread_of(column).median for column in zip(*(row[name] for row in figures), strict=True))
        print(f"{name:26} {rate:8.0f} clips/s  {rate / ceiling:5.0%} of the ceiling  GPU busy {used:.0%}")


def encode_latents(clips: Path, work: Path) -> None:
    """Build the latents of an AutoencoderKL of the size of Stable Diffusion's, with random weights."""
    import diffusers

    kind: Any = diffusers.AutoencoderKL
    model = kind(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=256,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    model.save_pretrained(work / "vae")
    index = cc.scan([clips])
    for device in ("cuda", "cpu"):
        section = {"model": str(work / "vae"), "device": device, "batch_size": 16}
        config = config_from_json({"frames": {"fps": 5 if device == "cpu" else None}, "features": {"latents": section}})
        started = time.perf_counter()
        with Utilization() as utilization:
            cc.build(index, work / device, config=config, features=["latents"])
        seconds = time.perf_counter() - started
        num_frames = sum(video.num_frames for video in cc.open_cache(work / device))
        used = "" if utilization.mean is None else f", GPU busy {utilization.mean:.0%}"
        print(f"latents on {device}: {num_frames} frames in {seconds:.1f} s with the start of the network{used}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("--side", type=int, default=112, help="height and width of the clips, pixels")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vae", action="store_true", help="also build latents")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/gpu.py: no GPU that torch can use; not run")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(os.sched_getaffinity(0))} processors")
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            codec: make_cache(arguments.clips, Path(folder, codec), codec, arguments.side)
            for codec in ("jpeg", "yuv420")
        }
        trainer = Trainer()
        for codec, cache in caches.items():
            compare_pixels(cache, codec, arguments.side)
            for decode in ("cpu", "cuda"):
                compare_threads(cache, codec, arguments.side, decode, trainer)
        ways = ways_of(caches, arguments.clips, arguments.side)
        measure(ways, arguments.threads, arguments.rounds, trainer)
        if arguments.vae:
            encode_latents(arguments.clips, Path(folder))


if __name__ == "__main__":
    main()
