"""Datasets and loaders, as their arguments or the section ``train`` of a config describe them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from chordcache.arguments import absolute
from chordcache.config.config import Config, config_from_json
from chordcache.config.picture import PictureConfig
from chordcache.config.yaml_files import load_config
from chordcache.errors import ConfigError, UsageError
from chordcache.sources.video_source import VideoSource
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.collate import collate
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.instantiate import check_arguments, frozen, instantiate, within
from chordcache.train.loader import ClipLoader, WorkerLoader
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.distributed import ChordSampler
from chordcache.train.videos import VideosToRead, cached, from_files, indexed

ConfigLike: TypeAlias = Config | Mapping[str, Any] | str | Path
"""A config, plain data in the shape of its YAML file, or the file"""

Function: TypeAlias = Callable[..., Any]

_NOT_IN_DATASET = ("cache", "clip_sampler", "crop", "transform")
"""Arguments of ``ChordVideoDataset`` that are sections of their own, or that plain data cannot express"""

_OF_VIDEOS = ("videos", "where", "index", "on_miss")
"""Arguments that say which videos the dataset has"""


def make_dataset(config: ConfigLike, **arguments: Any) -> ChordVideoDataset:
    """Make the dataset that the section ``train`` of a config describes.

    The sections ``source``, ``dataset``, ``clip_sampler``, ``time_transform`` and ``crop`` are used, see
    ``docs/training-config.md``. A dataset of an index has the videos of ``chordcache.videos.indexed``, or those of
    ``from_files`` if the source is one of files. A cache that does not exist is made with this config.

    Parameters
    ----------
    config : Config, mapping, str or Path
        A config, its plain data, or its YAML file. Paths in it are relative to the working folder.
    **arguments
        Arguments of ``ChordVideoDataset``, and ``where``, ``index`` and ``on_miss``, which replace those of the config:
        ``videos="val.txt"`` for a validation set, or ``cache="other"`` instead of the section ``source``. A set of
        videos as ``cache`` also replaces ``videos``, ``index`` and ``on_miss`` of the config. ``clip_sampler`` also
        replaces ``time_transform``, and each of ``crop`` and ``size`` replaces the other one.

    Raises
    ------
    ConfigError
        If a name or an argument in the config does not exist, or an argument is missing.
    ChordcacheError
        As in ``ChordVideoDataset``, and as in ``load_config``.

    Examples
    --------
    ::

        train = make_dataset("chordcache.yaml", videos="train.txt")
        valid = make_dataset("chordcache.yaml", videos="val.txt", clip_sampler={"name": "regular"}, size=(224, 224))
    """
    settings = _as_config(config)
    train = settings.train
    given = {name: frozen(value) for name, value in train.get("dataset", {}).items()}
    valid = [name for name in inspect.signature(ChordVideoDataset).parameters if name not in _NOT_IN_DATASET]
    check_arguments("train.dataset", given, [*valid, "where", "index", "on_miss"])
    if "cache" not in arguments and "source" in train:
        given |= instantiate("source", train["source"], pictures=settings.picture)
    source = given.pop("source", None)
    if "clip_sampler" not in arguments:
        given |= _clip_sampler(train)
    if "crop" in train and not {"crop", "size"} & arguments.keys():
        given["crop"] = instantiate("crop", train["crop"])
    if "crop" in arguments:
        given.pop("size", None)
    if isinstance(arguments.get("cache"), VideosToRead):
        given = {name: value for name, value in given.items() if name not in _OF_VIDEOS}
    given |= arguments
    with within("train.dataset"):
        if not isinstance(given.get("cache"), VideosToRead):
            of_videos = {name: given.pop(name, None) for name in ("cache", *_OF_VIDEOS)}
            given["cache"] = _videos_to_read(settings, source, **of_videos)
        return ChordVideoDataset(**given)


def from_config(
    config: ConfigLike, dataset: ClipDataset | None = None, **arguments: Any
) -> tuple[ClipDataset, ClipLoader | WorkerLoader]:
    """Make the dataset and the loader that the section ``train`` of a config describes, see ``make_dataset``.

    The arguments are those of ``make_dataset``. A given ``dataset`` takes the place of the one in the config. The
    loader is that of ``make_loader``, or a ``ClipLoader`` if the config names the loader "threads". Raises as
    ``make_dataset``, and as the loader does.

    Examples
    --------
    ::

        dataset, loader = from_config("chordcache.yaml")
        valid, valid_loader = from_config("chordcache.yaml", videos="val.txt", clip_sampler={"name": "regular"})
    """
    settings = _as_config(config)
    train = settings.train
    if "loader" not in train:
        raise ConfigError("train.loader: got none, expected a section with a name. Add it to the config.")
    dataset = make_dataset(settings, **arguments) if dataset is None else dataset
    of_loader = dict(train["loader"])
    given: dict[str, Any] = {"dataset": dataset}
    if "sampler" in train:
        given["sampler"] = _order(train["sampler"], dataset, of_loader.get("batch_size"))
    if isinstance(given.get("sampler"), BudgetBatchSampler):
        of_loader.setdefault("batch_size", None)
    given["collate"] = instantiate("collate", train["collate"]) if "collate" in train else collate
    augment = _augment(train["augment"], dataset) if "augment" in train else None
    if of_loader.get("name") == "threads":
        given["augment"] = augment
    elif augment is not None:
        given["collate"] = partial(_augmented_batch, collate=given["collate"], augment=augment)
    return dataset, instantiate("loader", of_loader, **given)


def _augmented_batch(samples: Any, *, collate: Function, augment: Function) -> Any:
    """Make a batch of samples, and augment it, in the process that reads it."""
    return augment(collate(samples))


def _as_config(config: ConfigLike) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return config_from_json(config)
    return load_config(config)


def cache_arguments(path: str) -> dict[str, Any]:
    """Return the arguments of a dataset of a cache."""
    return {"cache": path}


def mp4_arguments(pictures: PictureConfig, path: str | Sequence[str] | None = None) -> dict[str, Any]:
    """Return the arguments of a dataset of files, with the pictures of a config."""
    from chordcache.sources.media_file import MP4Source  # not before: it loads a decoder

    return {"source": MP4Source(pictures), **({} if path is None else {"videos": path})}


def mapped_mp4_arguments(pictures: PictureConfig, path: str | Sequence[str] | None = None) -> dict[str, Any]:
    """Return the arguments of a dataset of files that are mapped into memory, with the pictures of a config."""
    from chordcache.sources.mapped_mp4 import MappedMP4Source  # not before: it loads a decoder

    return {**mp4_arguments(pictures, path), "source": MappedMP4Source(pictures)}


def padding_collate() -> Function:
    """Return the collate function of all loaders."""
    return collate


def tokenizing_collate(tokenizer: str) -> Function:
    """Return the collate function that also tokenizes captions, with a tokenizer of a file."""
    return partial(collate, tokenizer=_tokenizer(tokenizer))


def _tokenizer(path: str) -> Any:
    from chordcache.train.captions import CaptionTokenizer  # not before: the package tokenizers is optional

    return CaptionTokenizer(path)


def _clip_sampler(train: Mapping[str, Any]) -> dict[str, Any]:
    transforms = train.get("time_transform", [])
    if "clip_sampler" not in train:
        if transforms:
            raise ConfigError("train.time_transform: got one without train.clip_sampler, expected both or neither")
        return {}
    sampler = instantiate("clip_sampler", train["clip_sampler"])
    for transform in [transforms] if isinstance(transforms, Mapping) else transforms:
        sampler = instantiate("time_transform", transform, sampler=sampler)
    return {"clip_sampler": sampler}


def _order(
    config: Mapping[str, Any], dataset: ClipDataset, batch_size: int | None
) -> ChordSampler | BudgetBatchSampler:
    """Make the sampler of a loader."""
    if config.get("tokenizer") is not None:
        config = {**config, "tokenizer": _tokenizer(config["tokenizer"])}
    order: ChordSampler | BudgetBatchSampler = instantiate(
        "sampler", config, dataset=dataset, batch_size=batch_size or 1
    )
    return order


def _augment(config: Mapping[str, Any], dataset: ClipDataset) -> Function:
    """Make the augmentation, with the features and classes of the dataset where the config does not have its own."""
    known = {"features": dataset.settings.get("features", ())}
    if config.get("mix") is not None:
        known["num_classes"] = max(1, len(dataset.classes))
    augment: Function = instantiate("augment", {**known, **config})
    return augment


def _videos_to_read(
    settings: Config, source: VideoSource | None, *, cache: Any, videos: Any, where: Any, index: Any, on_miss: Any
) -> VideosToRead:
    """Return the set of videos that the arguments of a dataset name."""
    on_miss = on_miss or "error"
    if where and (source is not None or index is not None):
        raise UsageError(f"where: got {where!r} with files or an index, expected it with a split file of a cache")
    if source is not None:
        if on_miss != "error":
            raise UsageError(f"on_miss: got {on_miss!r} and a {type(source).__name__}, expected one of them")
        return from_files(source, videos, index=index, config=settings)
    if index is None:
        return cached(cache, videos, on_miss=on_miss, where=where)
    if videos is not None:
        raise UsageError("videos: got a selection and an index, expected one of them. The index selects the videos.")
    is_missing = cache is None or (isinstance(cache, (str, Path)) and not absolute(cache).exists())
    return indexed(index, cache, on_miss=on_miss, config=settings if is_missing else None)
