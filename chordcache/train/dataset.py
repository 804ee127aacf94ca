"""The dataset: turns an index into a video and a clip request, and lets the reader of samples read it."""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from chordcache.amounts import counted
from chordcache.arguments import check_at_least, checked_names, names_arguments
from chordcache.errors import UsageError
from chordcache.features.read_side import RowReader
from chordcache.read.cache import Cache
from chordcache.read.cached_videos import CachedVideos, settle_absences
from chordcache.read.clips import ClipReader, cached_features
from chordcache.read.crops import DEFAULT_SIZE, SpatialTransform, checked_crop, crop_sizes
from chordcache.read.selection import Videos
from chordcache.read.video import Video
from chordcache.train.batches import FrameBuffer
from chordcache.train.clip_dataset import NO_LABELS, ClipDataset
from chordcache.train.fields import Classes, all_labels, class_names, field_reader
from chordcache.train.instantiate import NAMED, instantiate
from chordcache.train.samplers.clip_request import EPOCHS, ClipRequest, ClipSampler, clip_shape
from chordcache.train.samplers.clip_samplers import RegularClipSampler
from chordcache.train.samples import SampleReader
from chordcache.train.videos import VideosToRead, cached

Result = TypeVar("Result")

_SIXTEEN_IN_THE_MIDDLE = RegularClipSampler(num_frames=16, stride=4)


@names_arguments
class ChordVideoDataset(ClipDataset):
    """Clips of a cache as tensors, for any DataLoader: no workers or many, fork, spawn or forkserver.

    An index is an int or ``(epoch, int)``, and the clip and the crop of a sample are drawn from seed, epoch and index.
    Each read by a plain int is another draw in epoch 0, chosen by torch's default generator of the process, as
    torchvision's transforms are. A plain DataLoader with any sampler therefore draws new clips in each pass.
    ``set_epoch`` fixes the epoch of plain ints instead. A sample is a dict of contiguous tensors and of the values
    below. ``__getitems__`` returns ``frames`` as permuted views instead.

    ====================  ==============================================================================
    ``pts_seconds``       [shape=(T,), dtype=float64, seconds] presentation times on the source's clock
    ``label``             [shape=(), dtype=int64] position in ``classes``, -1 without a label
    ``caption``           str, "" without a caption
    ``video``             str, the video's key
    ``sample_id``         str, "epoch:index": ``dataset[epoch, index]`` reads the sample again, and ``BatchAugment``
                          draws its random numbers from it
    ====================  ==============================================================================

    To these, each of ``features`` adds

    ====================  ==============================================================================
    frames                ``frames`` [shape=(T, 3, h, w), dtype=uint8, 0 to 255, RGB]
    flow                  ``flows`` [shape=(T - 1, 2, h, w), dtype=float32, pixels of h x w, (dx, dy)] from each
                          frame of the clip to the next, through all cached frames between them; zero from a frame
                          to itself. Frames must ascend
    flow.adjacent         ``flows`` from each frame, except the last, to the cached frame after it; zero at the end
                          of the video
    mel                   ``audio`` [shape=(n_mels, t) or (C, n_mels, t), dtype=float32, dB] from the earliest
                          frame of the clip to the end of the latest, at equal length for equal duration
    waveform              ``waveform`` [shape=(t,) or (C, t), dtype=float32 or int16] of the same seconds
    librosa               ``librosa`` [shape=(..., t), dtype=float32 or float64] of the same seconds
    motion                ``motion`` [shape=(T, 2, gh, gw), dtype=float32, pixels of h x w, (dx, dy)], see
                          ``Cache.read``, and ``motion_covered`` [shape=(T, gh, gw), dtype=bool]; of an
                          h x w picture, (gh, gw) is (ceil(h / 16), ceil(w / 16))
    motion.as_flow        the same with T - 1 rows in the direction of ``flows``. Frames must ascend
    pose                  ``pose`` [shape=(T, 33, 4), dtype=float32] x, y, z in pixels of h x w, visibility;
                          NaN where no person is seen
    latents               ``latents`` [shape=(t, C, h, w), dtype=float32 or float16] the rows that cover these
                          frames; float32 and drawn from the posterior if ``moments`` are cached
    latents.normalized    ``latents`` [dtype=float32] normalized, with the axes in the order of training scripts:
                          (t, C, h, w) of images and CogVideoX, (C, t, h, w) of other VAEs
    latents.first_frame   adds ``latents_first_frame``, of their shape: the first frame alone, see ``docs/latents.md``
    embed                 ``embed`` [shape=(T, D) or (T, N, D), dtype=float32 or float16] of the whole frames
    text                  ``text`` [shape=(L, D), dtype=float32 or float16] all tokens of the caption; with a padding
                          L is ``max_tokens``, and ``text_mask`` [shape=(L,), dtype=bool] is True for tokens
    series                ``series.COLUMN`` [shape=(T, ...)] the row of each column of a table nearest to each frame;
                          series.previous: the last one before it; series.linear: interpolated
    any other             the rows of these frames under the feature's name, as they are cached
    ====================  ==============================================================================

    Samples of one video follow each other: sample i is clip ``i % clips_per_video`` of video
    ``i // clips_per_video``.

    Parameters
    ----------
    cache : str, Path, Cache or VideosToRead
        The cache to read, or a set of videos that ``chordcache.videos.cached``, ``indexed`` or ``from_files`` made:
        with names that may be missing, of an index, or of files without a cache. Each process opens the cache itself.
    clip_sampler : ClipSampler, str or mapping
        The sampler of the frames, a name of ``cc.samplers``, or a mapping with a name and arguments. By default 16
        frames, 4 apart, from the middle of the video.
    features : sequence of str
        The features to read. Without "frames" no picture is decoded.
    size : tuple of int, None or "default"
        (h, w) [pixels] of the center crop: frames are scaled until they cover it, then cut from the center. Flow,
        motion and pose are cut and scaled with them. None leaves every feature at the size, and in the pixels, that it
        is cached in. For motion, these are the pixels of the source. A batch then needs videos of one size. "default"
        is (224, 224), or None with latents, which cannot be scaled.
    crop : SpatialTransform, optional
        The crop to use instead of the center at ``size``. It is drawn again for each sample of each epoch. Examples:
        ``RandomResizedCrop((224, 224))``, ``HorizontalFlip(0.5, RandomResizedCrop((224, 224)))``, ``Resize``,
        ``Pad``, ``CenterCrop``, or an object of your own. All features of a sample share one crop. One that latents
        cannot have, since it scales, mirrors, or cuts through a latent, raises ``UsageError``.
    missing : {"error", "zeros", "skip"}
        Policy for a feature that is recorded as absent from a video, such as the sound of a silent one. "error" raises
        ``NotFoundError`` now. "skip" leaves out the videos that lack a feature, also if they were not built with
        it. A video that is not cached raises ``NotFoundError`` in both cases, when it is read. "zeros" returns the
        value that ``collate`` pads with: 0, silence for mel, NaN for pose. It adds ``present`` [shape=(len(features),),
        dtype=bool] to each sample, and raises ``NotFoundError`` where the shape is unknown: features of plug-ins,
        librosa, mel with ``mono: false``, waveform with ``channels: all`` or ``sample_rate: null``, motion with
        ``size=None``, and a video that has none of the features.
    transform : callable, optional
        Function applied last, to the tensor of ``frames`` alone. Its result replaces ``frames``. Spawned workers
        pickle the function.
    videos : iterable of str, callable, str or Path, optional
        The videos of the cache to read: keys, paths, a predicate or a split file, see ``chordcache.videos.cached``. By
        default all, in the order of their keys. Videos in quarantine are left out, with one warning.
    classes : sequence of str, optional
        Label names. The position of each name is its id. By default all labels of the cache, sorted, whatever
        ``videos`` selects, so that a training set and a validation set agree. Labels that are whole numbers keep their
        value: "0", "2" and "10" are the ids 0, 2 and 10, of 11 classes.
    clips_per_video : int
        Samples taken of each video.
    seed : int
        Seed of the random numbers that samplers and crops draw.
    fields : sequence of str
        Annotations of the index to add to each sample: "label", "labels", "caption", "captions" and extra columns, see
        ``docs/annotations.md``. "caption" then draws one of the captions of an item for each sample of each epoch. With
        "labels", ``classes`` are by default all labels of all items.
    delta_timestamps : mapping of str to sequence of float, optional
        Column of series to K times [seconds from each frame]. ``series.COLUMN`` is then (T, K, ...), and
        ``series.COLUMN_is_pad`` [shape=(T, K), dtype=bool] is True before the first and after the last row.

    Raises
    ------
    NotFoundError
        If the cache, the index or the split file does not exist, a video is not cached that has to be, or a video was
        cached without one of ``features``, see ``missing``.
    UsageError
        If another argument is wrong, ``videos`` selects none, a selected video's label is not in ``classes``, or
        a source of files cannot give what a feature or the sampler needs. For ``fields`` also as in
        ``train.fields.field_reader``.
    MediaError
        If a source of files cannot read the first video.

    Examples
    --------
    ::

        dataset = ChordVideoDataset("cache", clip_sampler=RandomClipSampler(16, stride=4), videos="train.txt")
        for batch in torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=4):
            batch["frames"]  # (8, 16, 3, 224, 224) uint8
    """

    def __init__(
        self,
        cache: str | Path | Cache | VideosToRead,
        *,
        clip_sampler: ClipSampler | type[ClipSampler] | Mapping[str, Any] | str = _SIXTEEN_IN_THE_MIDDLE,
        features: str | Iterable[str] = ("frames",),
        size: tuple[int, int] | str | None = "default",
        crop: SpatialTransform | None = None,
        missing: str = "error",
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        videos: Videos | None = None,
        classes: str | Iterable[str] | None = None,
        clips_per_video: int = 1,
        seed: int = 0,
        fields: str | Iterable[str] = (),
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        check_at_least(0, seed=seed)
        check_at_least(1, clips_per_video=clips_per_video)
        self._sampler = _checked_sampler(clip_sampler)
        names, variants = cached_features(checked_names("features", features, "features"))
        self._clips = ClipReader(
            features=names,
            spatial_transform=checked_crop(size, crop, None if "latents" in names else DEFAULT_SIZE),
            missing=missing,
            variants=variants,
            delta_timestamps=dict(delta_timestamps or {}),
        )
        if isinstance(cache, VideosToRead) and videos is not None:
            raise UsageError("videos: got a selection and a set of videos, expected one of them")
        to_read = cache if isinstance(cache, VideosToRead) else cached(cache, videos)
        self._videos = to_read.open(self._clips.features)
        settle_absences(self._videos, self._clips)
        self._num_samples = len(self._videos) * clips_per_video
        self._clips_per_video = clips_per_video
        self._seed = seed
        self._epoch = _SharedEpoch()
        self._fields = field_reader(fields, self._videos, self._clips.features)
        several = self._videos.annotation_names().labels if "labels" in self._fields.types else ()
        labels = {*self._videos.labels, *several}
        if not labels and (classes is not None or {"label", "labels"} & self._fields.types.keys()):
            warnings.warn(NO_LABELS, stacklevel=3)
        classes = class_names(labels) if classes is None else classes
        self._classes = Classes(checked_names("classes", classes, "label names"))
        self.classes = self._classes.names
        self._check_labels(labels - self._classes.ids.keys())
        self._samples = SampleReader(self._sampler, self._clips, self._fields, self._classes, transform)
        num_unlabeled = np.count_nonzero(self._videos.numbered_labels()[1] < 0) if labels else 0
        if 0 < num_unlabeled < len(self._videos) and "labels" not in self._fields.types:
            what = f"label: got none for {num_unlabeled} of {counted(len(self._videos), 'video')}, whose label is -1"
            warnings.warn(f"{what}. Add labels and build again, or select videos by videos=.", stacklevel=3)
        if to_read.tries_first:
            self.describe((0, 0))
        self._videos.close()  # opened again where samples are read, which is in the workers

    def __len__(self) -> int:
        return self._num_samples

    def __repr__(self) -> str:
        clips = f"{counted(len(self._videos), 'video')} x {counted(self._clips_per_video, 'clip')}"
        return f"<ChordVideoDataset of {self._videos!r}: {clips}>"

    @property
    def label_ids(self) -> np.ndarray:
        """Position in ``classes`` of every sample's label, see ``ClipDataset``.

        Raises
        ------
        UsageError
            If the cache has gained or lost videos, or has gained labels that are not in ``classes``.
        """
        names, ids = self._videos.numbered_labels()
        unknown = len(self._class_names)
        table = np.array([*(self._classes.ids.get(name, unknown) for name in names), -1], np.int64)
        ids_of_samples = table[ids]  # the last element is for -1
        if np.any(ids_of_samples == unknown):
            raise self._classes.unknown(names[ids[np.argmax(ids_of_samples == unknown)]], "the label of a video")
        return np.repeat(ids_of_samples, self._clips_per_video)

    @property
    def identity(self) -> Mapping[str, str]:
        """Digests of the videos, see ``ClipDataset``."""
        return self._videos.identity()

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings in which the samples of a batch agree, see ``ClipDataset``."""
        crop = self._clips.spatial_transform
        settings = {
            "features": self._clips.features,
            "fields": self._fields.types,
            "missing": self._clips.missing,
            "delta_timestamps": self._clips.delta_timestamps or None,
            "num_frames": getattr(self._sampler, "num_frames", None),
            "size": getattr(getattr(crop, "of", None) or crop, "size", None),
        }
        return {name: value for name, value in settings.items() if value is not None}

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of all reads by plain indices, see ``ClipDataset``."""
        ClipRequest(epoch=epoch)
        self._epoch.number[0] = epoch

    def _drawn(self, index: int | tuple[int, int]) -> tuple[int, int]:
        epoch, number = self._split(index)
        if epoch is None:
            epoch = int(self._epoch.number[0])
        if epoch < 0:
            epoch = EPOCHS * int(torch.randint(1, 2**30, (), device="cpu"))
        return epoch, number

    def _read(self, indices: Sequence[tuple[int, int]], buffers: Sequence[FrameBuffer | None]) -> list[dict[str, Any]]:
        of_videos: dict[int, list[int]] = {}
        for i, (_, number) in enumerate(indices):
            of_videos.setdefault(number // self._clips_per_video, []).append(i)
        samples: list[dict[str, Any]] = [{} for _ in indices]
        for position, places in of_videos.items():
            requests = [self._request(*indices[i]) for i in places]
            read = partial(self._samples.read, requests, [buffers[i] for i in places])
            for i, sample in zip(places, self._videos.read(position, read), strict=True):
                samples[i] = sample
        return samples

    @property
    def fetches(self) -> bool:
        """True if the files of videos come from an object store, see ``ClipDataset``."""
        return self._videos.fetches

    def fetch(self, index: tuple[int, int]) -> None:
        """Fetch the files of a sample from an object store, see ``ClipDataset``."""
        if self.fetches:
            self._videos.fetch(index[1] // self._clips_per_video, self._clips.features)

    def describe(self, index: tuple[int, int]) -> tuple[Video, tuple[int, ...]]:
        """Describe a sample, see ``ClipDataset``."""
        return self._of_video(index, self._samples.describe)

    def measure(self, epoch: int, numbers: np.ndarray) -> np.ndarray | None:
        """Measure many samples, see ``ClipDataset``."""
        measured = self._videos.measured()
        if measured is None:
            return None
        num_frames, pictures = measured
        shape = clip_shape(self._sampler, num_frames, epoch)
        sizes = crop_sizes(self._clips.spatial_transform, pictures[:, :2])
        if shape is None or sizes is None:
            return None
        buckets = np.column_stack([pictures[:, :2], num_frames]) * pictures[:, 2:]
        lengths = [np.broadcast_to(np.asarray(length, np.int64), num_frames.shape) for length in shape]
        of_videos = np.column_stack([buckets, *lengths, sizes])
        return np.asarray(of_videos[numbers // self._clips_per_video], np.int64)

    def latents_shape(self, index: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the latents of a sample, see ``ClipDataset``."""
        if "latents" not in self._clips.features:
            return super().latents_shape(index)
        return self._of_video(index, self._samples.latents_shape)

    def _of_video(self, index: int | tuple[int, int], function: Callable[[ClipRequest, Video], Result]) -> Result:
        """Return the result of a function for a sample's clip request and its video."""
        epoch, number = self._drawn(index)

        def result_of(_: RowReader, video: Video) -> Result:
            video.read_features = self._clips.features
            return function(self._request(epoch, number), video)

        return self._videos.read(self._position(number), result_of)

    def _position(self, number: int) -> int:
        """Return the position of the video of a sample, the first one if it has several."""
        return number // self._clips_per_video

    def _request(self, epoch: int, number: int) -> ClipRequest:
        """Return the clip request of a sample."""
        repeat, epoch = divmod(epoch, EPOCHS)
        return ClipRequest(
            seed=self._seed,
            epoch=epoch,
            repeat=repeat,
            index=number,
            clip=number % self._clips_per_video,
            num_clips=self._clips_per_video,
        )

    def _check_labels(self, unknown: Set[str]) -> None:
        """Raise now the error that labels which are not in ``classes`` would raise in the middle of an epoch."""
        if unknown and not isinstance(self._videos, CachedVideos):
            raise self._classes.unknown(min(unknown), "a label of the index")
        for video in cast(CachedVideos, self._videos) if unknown else ():
            for label in all_labels(video) if "labels" in self._fields.types else [video.label]:
                self._classes.id_of(label, f"video '{video.key}'")


class _SharedEpoch:
    """The epoch that ``set_epoch`` chose, -1 before, in memory that all workers of a DataLoader share.

    A copy by ``copy`` or ``pickle`` has an epoch of its own. Copies that ``multiprocessing`` sends to workers do not.
    """

    def __init__(self, epoch: int = -1) -> None:
        fd = os.memfd_create("chordcache-epoch")
        os.ftruncate(fd, np.int64().nbytes)
        self._open(fd)
        self.number[0] = epoch

    def _open(self, fd: int) -> None:
        weakref.finalize(self, os.close, fd)
        self._fd = fd
        self.number: np.ndarray = np.frombuffer(mmap.mmap(fd, 0), np.int64)

    def __getstate__(self) -> str | int:
        is_for_worker = get_spawning_popen() is not None
        return f"/proc/{os.getpid()}/fd/{self._fd}" if is_for_worker else int(self.number[0])

    def __setstate__(self, state: str | int) -> None:
        if isinstance(state, str):
            self._open(os.open(state, os.O_RDWR | os.O_CLOEXEC))
        else:
            self.__init__(state)  # type: ignore[misc]


def _checked_sampler(sampler: object) -> ClipSampler:
    """Return the sampler that an argument means: an object, a name, or a config for ``instantiate``."""
    if isinstance(sampler, (str, Mapping)):
        config = {"name": sampler} if isinstance(sampler, str) else sampler
        sampler = instantiate("clip_sampler", config, "clip_sampler")
    if isinstance(sampler, type) or not callable(getattr(sampler, "frame_numbers", None)):
        raise UsageError(
            f"clip_sampler: got {sampler!r}, expected an object with frame_numbers, such as a "
            f"RandomClipSampler(), or one of the names {', '.join(NAMED['clip_sampler'])}"
        )
    return cast(ClipSampler, sampler)
