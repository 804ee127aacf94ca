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
from chordcache.read.crops import CenterCrop
from chordcache.read.video import Video
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.tools.bench.result import NUM_CLIPS, Way
from chordcache.train.batches import FrameBuffer
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
    with av.open(path) as container:
        stream: Any = container.streams.video[0]
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


class SourceClips(ChordVideoDataset):
    """The clips of a cache's videos, read from their sources by another library. They are cut, then scaled."""

    def __init__(self, way: Way, **arguments: Any) -> None:
        super().__init__(way.cache, **arguments)
        self._decode, self._paths = DECODERS[way.reader], dict(zip(way.keys, way.paths, strict=True))
        side = way.options.size
        self._crop, self._shape = CenterCrop((side, side)), (way.options.num_frames, side, side, 3)

    def _read(self, indices: Sequence[tuple[int, int]], buffers: Sequence[FrameBuffer | None]) -> list[dict[str, Any]]:
        return [self._sample(index, buffer) for index, buffer in zip(indices, buffers, strict=True)]

    def _sample(self, index: tuple[int, int], buffer: FrameBuffer | None) -> dict[str, Any]:
        def of_clip(request: ClipRequest, video: Video) -> tuple[str, list[int], np.ndarray]:
            numbers = self._sampler.frame_numbers(video, request)
            return video.key, video.source_frames[numbers].tolist(), video.pts_seconds[numbers]

        key, numbers, pts_seconds = self._of_video(index, of_clip)
        memory = buffer(self._shape) if buffer else None
        out = memory[0] if isinstance(memory, tuple) else np.empty(self._shape, np.uint8)
        for i, frame in enumerate(self._decode(self._paths[key], numbers)):
            box = self._crop.choose(frame.shape[0], frame.shape[1], np.random.default_rng(0))
            cut_frames(frame[None], box, out=out[i : i + 1], one_thread=get_worker_info() is not None)
        return {
            "frames": torch.from_numpy(out).permute(0, 3, 1, 2),
            "pts_seconds": torch.from_numpy(pts_seconds),
            "label": torch.tensor(-1),
            "caption": "",
            "video": key,
            "sample_id": "{}:{}".format(*index),
        }


def dataset_of(way: Way) -> ChordVideoDataset:
    """Make the dataset of a way. All have the same clips under the same numbers."""
    side, sampler = way.options.size, RandomClipSampler(way.options.num_frames, stride=way.options.stride)
    arguments: dict[str, Any] = {"videos": way.keys, "clip_sampler": sampler, "size": (side, side)}
    arguments["clips_per_video"] = -(-NUM_CLIPS // len(way.keys))
    return SourceClips(way, **arguments) if way.reader in DECODERS else ChordVideoDataset(way.cache, **arguments)
