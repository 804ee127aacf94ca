"""The datasets of the ways: sources read by OpenCV, PyAV, a memory map and torchcodec, and a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import av
import numpy as np
import torch
from torch.utils.data import get_worker_info

from chordcache.errors import MediaError, printable
from chordcache.features.frames import cut_frames
from chordcache.media.opencv import cv2
from chordcache.read.cache import Cache
from chordcache.read.crops import CenterCrop
from chordcache.read.video import Video
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.tools.bench.ways import Way
from chordcache.train.batches import FrameBuffer
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import RandomClipSampler

Decode = Callable[[str, Sequence[int]], Iterator[np.ndarray]]
"""Function that yields the frames [shape=(H, W, 3), dtype=uint8, RGB] of a file with these numbers"""


def opencv_frames(path: str, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Seek each frame by its number, and read it."""
    threads = [cv2.CAP_PROP_N_THREADS, 1] if get_worker_info() is not None else []  # one each beside other workers
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, threads)
    try:
        for number in numbers:
            capture.set(cv2.CAP_PROP_POS_FRAMES, number)
            is_there, picture = capture.read()
            if not is_there:
                raise MediaError("decode", "short", f"OpenCV cannot read frame {number} of '{printable(path)}'")
            yield cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    finally:
        capture.release()


def pyav_frames(path: str, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Seek to the keyframe before the first frame, then decode on. Frame numbers are taken for times."""
    container: Any
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        ticks = 1 / stream.time_base / stream.average_rate
        start = stream.start_time or 0
        container.seek(start + round(min(numbers) * ticks), stream=stream)
        pictures = ((round((frame.pts - start) / ticks), frame) for frame in container.decode(stream))
        reached, picture = next(pictures)
        for number in sorted(numbers):
            while reached < number:
                reached, picture = next(pictures, (number, picture))
            yield picture.to_ndarray(format="rgb24")


def mapped_frames(path: str, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Decode the frames of a clip from a file that is mapped into memory."""
    with MappedMP4Source().open(path) as source:
        yield from source.get_frames(numbers)


def torchcodec_frames(path: str, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Decode all frames of a clip at once, in torchcodec's fastest mode of seeking."""
    from torchcodec.decoders import VideoDecoder  # not before: it is optional

    decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate")
    yield from decoder.get_frames_at(list(numbers)).data.numpy()


DECODERS: Mapping[str, Decode] = {
    "opencv": opencv_frames,
    "pyav": pyav_frames,
    "mapped_mp4": mapped_frames,
    "torchcodec": torchcodec_frames,
}
"""Key of ``SOURCES`` to its function"""


class SourceClips(ClipDataset):
    """The clips of a cache's videos, read from their sources by another library.

    It has the same frames as ``ChordVideoDataset`` of the cache with the same arguments. They are cut, then scaled.
    """

    classes: list[str]

    def __init__(self, way: Way) -> None:
        options = way.options
        self._cache = Cache(way.sample.cache)
        self._keys, self._paths = way.sample.keys, way.sample.paths
        self._clips_per_video = way.clips_per_video
        self._sampler = RandomClipSampler(options.num_frames, stride=options.stride)
        self._crop = CenterCrop((options.size, options.size))
        self._shape = (options.num_frames, options.size, options.size, 3)
        self._decode = DECODERS[way.reader]
        self.classes = []
        self._cache.close()

    def __len__(self) -> int:
        return len(self._keys) * self._clips_per_video

    def _drawn(self, index: int | tuple[int, int]) -> tuple[int, int]:
        epoch, number = self._split(index)
        return epoch or 0, number

    def _read(self, indices: Sequence[tuple[int, int]], buffers: Sequence[FrameBuffer | None]) -> list[dict[str, Any]]:
        return [self._sample(index, buffer) for index, buffer in zip(indices, buffers, strict=True)]

    def _sample(self, index: tuple[int, int], buffer: FrameBuffer | None) -> dict[str, Any]:
        epoch, number = index
        place, clip = divmod(number, self._clips_per_video)
        video = self._cache[self._keys[place]]
        request = ClipRequest(epoch=epoch, index=number, clip=clip, num_clips=self._clips_per_video)
        numbers = self._sampler.frame_numbers(video, request)
        memory = buffer(self._shape) if buffer else None
        out = memory[0] if isinstance(memory, tuple) else np.empty(self._shape, np.uint8)
        is_worker = get_worker_info() is not None
        frames = self._decode(self._paths[place], video.source_frames[numbers].tolist())
        for i, frame in enumerate(frames):
            box = self._crop.choose(frame.shape[0], frame.shape[1], np.random.default_rng(0))
            cut_frames(frame[None], box, out=out[i : i + 1], one_thread=is_worker)
        return {
            "frames": torch.from_numpy(out).permute(0, 3, 1, 2),
            "pts_seconds": torch.from_numpy(video.pts_seconds[numbers]),
            "label": torch.tensor(-1),
            "caption": "",
            "video": video.key,
            "sample_id": f"{epoch}:{number}",
        }

    def describe(self, index: tuple[int, int]) -> tuple[Video, tuple[int, ...]]:
        """Describe a sample, see ``ClipDataset``."""
        _, number = self._split(index)
        return self._cache[self._keys[number // self._clips_per_video]], self._shape

    def set_epoch(self, epoch: int) -> None:
        """Do nothing. The loaders of the measurement name the epoch of each sample."""

    @property
    def label_ids(self) -> np.ndarray:
        """Return -1 for each sample, see ``ClipDataset``."""
        return np.full(len(self), -1, np.int64)

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings in which the samples of a batch agree, see ``ClipDataset``."""
        return {"features": ("frames",)}


def dataset_of(way: Way) -> ClipDataset:
    """Make the dataset of a way. All have the same clips under the same numbers."""
    if way.reader in DECODERS:
        return SourceClips(way)
    options = way.options
    return ChordVideoDataset(
        way.sample.cache,
        videos=way.sample.keys,
        clip_sampler=RandomClipSampler(options.num_frames, stride=options.stride),
        size=(options.size, options.size),
        clips_per_video=way.clips_per_video,
    )
