"""The datasets of the rows: sources read by OpenCV, by torchcodec and by a memory map, and one tier of a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from chordcache.config.config import config_from_json
from chordcache.errors import MediaError, printable
from chordcache.features.frames import cut_frames
from chordcache.media.opencv import cv2
from chordcache.read.cache import Cache
from chordcache.read.crops import CenterCrop
from chordcache.read.video import Video
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.storage.cache_header import read_header
from chordcache.storage.sidecar import Sidecar
from chordcache.tools.bench.setup import RowSetup
from chordcache.train.batch_memory import FrameBuffer
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import RandomClipSampler
from chordcache.train.videos import from_files

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


def torchcodec_frames(path: str, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Decode all frames of a clip at once, in torchcodec's fastest mode of seeking."""
    from torchcodec.decoders import VideoDecoder  # not before: it is optional

    decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate")
    yield from decoder.get_frames_at(list(numbers)).data.numpy()


DECODERS: Mapping[str, Decode] = {"opencv": opencv_frames, "torchcodec": torchcodec_frames}
"""Reader of ``SOURCE_READERS`` to its function"""


class SourceClips(ClipDataset):
    """The clips of a cache's videos, read from their sources by another library.

    It has the same frames as ``ChordVideoDataset`` of the cache with the same arguments. They are cut, then scaled.
    """

    classes: list[str]

    def __init__(self, setup: RowSetup) -> None:
        self._cache = Cache(setup.cache)
        self._keys, self._paths = setup.keys, setup.paths
        self._clips_per_video = setup.clips_per_video
        self._sampler = clip_sampler_of(setup)
        self._crop = CenterCrop((setup.size, setup.size))
        self._shape = (setup.num_frames, setup.size, setup.size, 3)
        self._decode = DECODERS[setup.reader]
        self.classes = []
        self._cache.close()

    def __len__(self) -> int:
        return len(self._keys) * self._clips_per_video

    def read_sample(self, index: int | tuple[int, int], buffer: FrameBuffer | None = None) -> dict[str, Any]:
        """Read one sample, see ``ClipDataset``."""
        epoch, number = self._split(index)
        place, clip = divmod(number, self._clips_per_video)
        video = self._cache[self._keys[place]]
        numbers = self._sampler.frame_numbers(video, self._request(epoch or 0, number, clip))
        memory = buffer(self._shape) if buffer else None
        out = memory.numpy() if isinstance(memory, torch.Tensor) else np.empty(self._shape, np.uint8)
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
            "sample_id": f"{epoch or 0}:{number}",
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

    def _request(self, epoch: int, number: int, clip: int) -> ClipRequest:
        return ClipRequest(epoch=epoch, index=number, clip=clip, num_clips=self._clips_per_video)


class TierCache(Cache):
    """A cache of which only one tier is read."""

    def __init__(self, path: str | Path, tier: str) -> None:
        self.tier = tier
        super().__init__(path)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "tier": self.tier}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.tier = state["tier"]

    def _sidecar(self, catalog: Any, video: int | str) -> Sidecar:
        sidecar = super()._sidecar(catalog, video)
        return sidecar.replace(features=tuple(info for info in sidecar.features if info.tier == self.tier))


def clip_sampler_of(setup: RowSetup) -> RandomClipSampler:
    """Return the sampler of all rows."""
    return RandomClipSampler(setup.num_frames, stride=setup.stride)


def dataset_of(setup: RowSetup) -> ClipDataset:
    """Make the dataset of a row. All rows have the same clips under the same numbers."""
    if setup.reader in DECODERS:
        return SourceClips(setup)
    arguments: dict[str, Any] = {
        "clip_sampler": clip_sampler_of(setup),
        "size": (setup.size, setup.size),
        "clips_per_video": setup.clips_per_video,
    }
    if setup.reader == "mapped_mp4":
        picture = config_from_json(read_header(Path(setup.cache)).config).picture
        return ChordVideoDataset(from_files(MappedMP4Source(picture), index=setup.index), **arguments)
    return ChordVideoDataset(TierCache(setup.cache, str(setup.tier)), videos=setup.keys, **arguments)
