"""The reader of samples: combines a sampler, a clip reader and annotations, and returns tensors.

It decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from chordcache.errors import UsageError
from chordcache.features.networks.latent_rows import shape_of_clip
from chordcache.features.read_side import Arrays, EncodedFrames, RowReader
from chordcache.media.cropping import CropBox
from chordcache.read.clips import ClipReader, ClipView
from chordcache.read.video import Video
from chordcache.train.batches import FrameBuffer
from chordcache.train.fields import Classes, FieldReader
from chordcache.train.kept_frames import KeepingReader, frames_of_thread
from chordcache.train.samplers.clip_request import EPOCHS, ClipRequest, ClipSampler, RandomStream


class SampleReader:
    """Reader of the samples of a dataset, which has these settings. See ``ChordVideoDataset``."""

    def __init__(
        self,
        sampler: ClipSampler,
        clips: ClipReader,
        fields: FieldReader,
        classes: Classes,
        transform: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        self._sampler, self._clips, self._fields, self._classes = sampler, clips, fields, classes
        self._transform = transform

    def with_sampler(self, sampler: ClipSampler) -> SampleReader:
        """Return a reader with the same settings whose frames another sampler chooses."""
        reader = copy(self)
        reader._sampler = sampler
        return reader

    def describe(self, request: ClipRequest, video: Video) -> tuple[Video, tuple[int, ...]]:
        """Return the video of a sample, with the caption of the sample, and the shape of its frames as decoded."""
        shape = self._clips.frames_shape(video, *self._view(video, request))
        if "caption" in self._fields.types:
            video = copy(video)
            video.caption = self._fields.caption(video, request)[1]
        return video, shape

    def latents_shape(self, request: ClipRequest, video: Video) -> tuple[int, ...]:
        """Return the shape of the latents of a sample."""
        numbers, crop = self._view(video, request)
        rows = numbers + video.first_row
        return shape_of_clip(video.feature("latents"), rows, crop, (video.height, video.width))

    def read(
        self,
        requests: Sequence[ClipRequest],
        buffers: Sequence[FrameBuffer | None],
        reader: RowReader,
        video: Video,
    ) -> list[dict[str, Any]]:
        """Read samples of one video: choose frames, read the clips, make tensors. See ``ClipDataset.read_samples``."""
        video.read_features = features = self._clips.features
        views, frames, captions = [], [], []
        for request, buffer in zip(requests, buffers, strict=True):
            numbers, crop = self._view(video, request)
            position, caption = self._fields.caption(video, request)
            memory = None
            if buffer and "frames" in features:
                memory = buffer(self._clips.frames_shape(video, numbers, crop))
            out, tensor = memory if isinstance(memory, tuple) else (memory, memory)
            noise = request.generator(RandomStream.LATENTS) if "latents" in features else None
            views.append(ClipView(numbers, crop, out, position, noise))
            frames.append(tensor)
            captions.append(caption)
        kept = frames_of_thread.get()
        source = reader if kept is None else KeepingReader(reader, kept)
        arrays = self._clips.read(source, video, views, one_thread=get_worker_info() is not None)
        parts = zip(requests, views, arrays, frames, captions, strict=True)
        return [self._sample(video, *of_sample) for of_sample in parts]

    def _view(self, video: Video, request: ClipRequest) -> tuple[np.ndarray, CropBox | None]:
        """Choose the frames and the crop of a sample."""
        numbers = np.asarray(self._sampler.frame_numbers(video, request), np.int64)
        if numbers.ndim != 1:
            raise UsageError(
                f"clip_sampler: got frame numbers of shape {numbers.shape}, expected (T,). For several clips of a "
                "video, set clips_per_video."
            )
        return numbers, self._clips.crop(video, partial(request.generator, RandomStream.CROP))

    def _sample(
        self,
        video: Video,
        request: ClipRequest,
        view: ClipView,
        arrays: Arrays,
        frames: torch.Tensor | EncodedFrames | None,
        caption: str,
    ) -> dict[str, Any]:
        """Make a sample of what was read."""
        sample: dict[str, Any] = {} if frames is None else {"frames": frames}
        sample |= {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self._transform is not None and "frames" in sample:
            if isinstance(frames, EncodedFrames):
                raise UsageError(
                    "transform: got one with frames that a GPU decodes, expected None. Take augment= of ClipLoader."
                )
            sample["frames"] = self._transform(sample["frames"])
        fields = self._fields.types and self._fields.read(video, view.numbers, view.crop, self._classes)
        return {
            **sample,
            "pts_seconds": torch.from_numpy(video.pts_seconds[view.numbers]),
            **(fields and _with_tensors(fields)),
            "label": torch.from_numpy(np.array(self._classes.id_of(video.label, f"video '{video.key}'"), np.int64)),
            "caption": caption,
            "video": video.key,
            # Not a tensor, which would follow the batch to a GPU: to read it there waits for all queued work
            "sample_id": f"{request.epoch + request.repeat * EPOCHS}:{request.index}",
        }


def _with_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with tensors in place of arrays, also of those in boxes."""
    out = dict(values)
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            out[name] = torch.from_numpy(value)
        elif isinstance(value, Mapping):
            out[name] = _with_tensors(value)
    return out
