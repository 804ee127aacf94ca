"""CPU time of the stages of a cached batch, in one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from chordcache.media.opencv import cv2
from chordcache.read.clips import ClipReader
from chordcache.read.crops import CenterCrop
from chordcache.read.video import Video, open_feature
from chordcache.tools.bench.options import NUM_ROUNDS
from chordcache.tools.bench.readers import TierCache, clip_sampler_of
from chordcache.tools.bench.setup import RowSetup
from chordcache.train.batch_memory import FrameMemory, allocate
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.collate import collate
from chordcache.train.samplers.clip_request import ClipRequest


@dataclass(frozen=True)
class _Clip:
    index: int
    """Index of the sample"""
    video: Video
    numbers: np.ndarray


def stages_of(setup: RowSetup, dataset: ClipDataset) -> dict[str, float]:
    """Measure a batch with more and more of the stages, and return the differences.

    Returns
    -------
    dict of str to float
        Stage to its CPU time for a batch, [milliseconds]. "read" is left out of records that are not one for each
        frame, and "decode" then includes it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    cache = TierCache(setup.cache, str(setup.tier))
    clips = _clips_of(setup, cache)
    crop = CenterCrop((setup.size, setup.size))
    reader = ClipReader(("frames",), crop, "error")
    out = np.empty((setup.num_frames, setup.size, setup.size, 3), np.uint8)
    whole: dict[tuple[int, ...], np.ndarray] = {}

    def decode(clip: _Clip) -> None:
        shape = (setup.num_frames, clip.video.height, clip.video.width, 3)
        cache.read(clip.video, indices=clip.numbers, out=whole.setdefault(shape, np.empty(shape, np.uint8)))

    def cut(clip: _Clip) -> None:
        box = crop.choose(clip.video.height, clip.video.width, np.random.default_rng(0))
        reader.read(cache, clip.video, clip.numbers, box, one_thread=True, frames_out=out)

    indices = [(0, clip.index) for clip in clips]
    samples: list[dict[str, Any]] = dataset.__getitems__(indices)
    batch = collate(samples)
    memory = FrameMemory(len(clips), allocate)
    memory.clip(0, out.shape)

    def read_samples() -> None:
        for i, index in enumerate(indices):
            dataset.read_sample(index, partial(memory.clip, i))

    def each(function: Callable[[_Clip], object]) -> Callable[[], object]:
        return lambda: list(map(function, clips))

    steps: dict[str, Callable[[], object]] = {
        "read": each(partial(_read_records, cache)),
        "decode": each(decode),
        "crop": each(cut),
        "choose frames, make tensors": read_samples,
        "collate": lambda: collate(samples),
        "copy": lambda: _copied(batch["frames"]),
    }
    if not all(_has_records(cache, clip.video) for clip in clips):
        del steps["read"]
    times = _medians(steps)
    torch.set_num_threads(threads)
    return _differences(times, ("read", "decode", "crop", "choose frames, make tensors"))


def _clips_of(setup: RowSetup, cache: TierCache) -> list[_Clip]:
    """Choose the clips of one batch, from several videos."""
    sampler = clip_sampler_of(setup)
    clips = []
    for i in range(setup.batch_size):
        place = i % len(setup.keys)
        index = place * setup.clips_per_video + i
        video = cache[setup.keys[place]]
        request = ClipRequest(index=index, clip=index % setup.clips_per_video, num_clips=setup.clips_per_video)
        clips.append(_Clip(index, video, sampler.frame_numbers(video, request)))
    return clips


def _has_records(cache: TierCache, video: Video) -> bool:
    """Return whether there is one encoded record for each frame."""
    info = video.feature("frames")
    with open_feature(cache.path, info) as artefact:
        layout = artefact.layout("frames")
        return layout.dtype is None and layout.num_rows == video.num_frames


def _read_records(cache: TierCache, clip: _Clip) -> int:
    """Read and check the records of a clip, and decode nothing. Return their size."""
    info = clip.video.feature("frames")
    with open_feature(cache.path, info) as artefact:
        numbers: Sequence[int] = clip.numbers.tolist()
        return sum(len(record) for record in artefact.records("frames", numbers))


def _copied(frames: torch.Tensor) -> None:
    """Copy a batch to where a network takes it: to the GPU, or into memory with the channels first."""
    if torch.cuda.is_available():
        frames.to("cuda").contiguous()
        torch.cuda.synchronize()
    else:
        frames.contiguous()


def _medians(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median CPU time of each function [milliseconds], all measured in turn in each round."""
    for function in steps.values():
        function()
    rounds: list[dict[str, float]] = []
    for _ in range(NUM_ROUNDS):
        times = {}
        for name, function in steps.items():
            started = time.thread_time()
            function()
            times[name] = 1000 * (time.thread_time() - started)
        rounds.append(times)
    return {name: statistics.median(times[name] for times in rounds) for name in steps}


def _differences(times: dict[str, float], nested: Sequence[str]) -> dict[str, float]:
    """Return times of which each of ``nested`` has the one before it taken away."""
    out = dict(times)
    before = 0.0
    for name in nested:
        if name in times:
            out[name] = max(0.0, times[name] - before)
            before = times[name]
    return out
