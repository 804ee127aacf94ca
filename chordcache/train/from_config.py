"""The dataset and the loader that the section ``train`` of a config describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from chordcache.arguments import absolute
from chordcache.config.config import Config, config_from_json
from chordcache.config.yaml_files import load_config
from chordcache.errors import UsageError
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.collate import collate
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.instantiate import call_within, instantiate
from chordcache.train.loader import ClipLoader, WorkerLoader
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.videos import VideosToRead, cached, from_files, indexed


def from_config(
    config: Config | Mapping[str, Any] | str | Path, dataset: ClipDataset | None = None, **arguments: Any
) -> tuple[ClipDataset, ClipLoader | WorkerLoader]:
    """Make the dataset and the loader that the section ``train`` of a config describes.

    ``docs/training-config.md`` lists the sections. The loader is that of ``make_loader``, or a ``ClipLoader`` if the
    config names the loader "threads".

    Parameters
    ----------
    config : Config, mapping, str or Path
        A config, its plain data, or its YAML file. Paths in it are relative to the working folder.
    dataset : ClipDataset, optional
        A dataset to load instead of the one in the config.
    **arguments
        Arguments of ``ChordVideoDataset``, which replace those of the config: ``videos="val.txt"`` for a validation
        set, of a source that has it. ``cache`` replaces the section ``source``, and each of ``crop`` and ``size`` also
        replaces the other one. ``augment``, ``sampler`` and ``collate`` replace the sections of these names, where None
        stands for no section, and ``loader`` replaces the arguments that it names: ``augment=None, sampler=None,
        loader={"shuffle": False}`` for a validation set.

    Raises
    ------
    UsageError
        If a name or an argument in the config does not exist, or an argument is missing.
    ChordcacheError
        As in ``ChordVideoDataset``, in the loader, and in ``load_config``.
    """
    if not isinstance(config, Config):
        config = config_from_json(config) if isinstance(config, Mapping) else load_config(config)
    train = dict(config.train)
    if "loader" not in train:
        raise UsageError("train.loader: got none, expected a section with a name. Add it to the config.")
    train["loader"] = {**train["loader"], **arguments.pop("loader", {})}
    for name in ("augment", "sampler", "collate"):
        if (section := arguments.pop(name, train.get(name))) is None:
            train.pop(name, None)
        else:
            train[name] = section
    if dataset is None:
        dataset = _dataset(config, arguments)
    of_loader = dict(train["loader"])
    given: dict[str, Any] = {"dataset": dataset, "collate": collate}
    if "sampler" in train:
        batch_size = of_loader.get("batch_size") or 1
        given["sampler"] = instantiate("sampler", train["sampler"], dataset=dataset, batch_size=batch_size)
    if isinstance(given.get("sampler"), BudgetBatchSampler):
        of_loader.setdefault("batch_size", None)
    if "collate" in train:
        given["collate"] = instantiate("collate", train["collate"])
    augment = _augment(train["augment"], dataset) if "augment" in train else None
    if of_loader.get("name") == "threads":
        given["augment"] = augment
    elif augment is not None:
        given["collate"] = partial(_augmented_batch, collate=given["collate"], augment=augment)
    return dataset, instantiate("loader", of_loader, **given)


def _dataset(config: Config, replaced: dict[str, Any]) -> ChordVideoDataset:
    """Make the dataset of a config, with some of its arguments replaced."""
    train = config.train
    given = {"cache": None, **train.get("dataset", {})}
    if "source" in train and "cache" not in replaced:
        videos = {name: replaced.pop(name) for name in ("videos",) if name in replaced}
        given["cache"] = instantiate("source", {**train["source"], **videos}, settings=config)
    if "clip_sampler" in train and "clip_sampler" not in replaced:
        given["clip_sampler"] = instantiate("clip_sampler", train["clip_sampler"])
    if "crop" in train and not {"crop", "size"} & replaced.keys():
        given["crop"] = instantiate("crop", train["crop"])
    if "crop" in replaced:
        given.pop("size", None)
    dataset: ChordVideoDataset = call_within("train.dataset", ChordVideoDataset, **{**given, **replaced})
    return dataset


def _augment(section: Mapping[str, Any], dataset: ClipDataset) -> Callable[..., Any]:
    """Make the augmentation, with the features and classes of the dataset where the config does not have its own."""
    known: dict[str, Any] = {"features": dataset.settings.get("features", ())}
    if section.get("mix") is not None:
        known["num_classes"] = max(1, len(dataset.classes))
    augment: Callable[..., Any] = instantiate("augment", {**known, **section})
    return augment


def _augmented_batch(samples: Any, *, collate: Callable[..., Any], augment: Callable[..., Any]) -> Any:
    """Make a batch of samples, and augment it, in the process that reads it."""
    return augment(collate(samples))


# Functions that sections name


def cache_source(path: str, videos: Any = None, on_miss: str = "error", where: Any = None) -> VideosToRead:
    """Return the videos of a cache, or some of them."""
    return cached(path, videos, on_miss=on_miss, where=where)


def index_source(settings: Config, path: str, cache: str | None = None, on_miss: str = "error") -> VideosToRead:
    """Return the videos of an index. A cache that does not exist is made with this config."""
    is_missing = cache is None or not absolute(cache).exists()
    return indexed(path, cache, on_miss=on_miss, config=settings if is_missing else None)


def mp4_source(settings: Config, path: Any = None, index: str | None = None, mapped: bool = False) -> VideosToRead:
    """Return the videos of files, with the pictures of a config. ``mapped`` maps the files into memory."""
    from chordcache.sources.mapped_mp4 import MappedMP4Source  # not before: it loads a decoder
    from chordcache.sources.media_file import MP4Source

    source = MappedMP4Source if mapped else MP4Source
    return from_files(source(settings.picture), path, index=index, config=settings)


def padding_collate(tokenizer: Any = None) -> Callable[..., Any]:
    """Return the collate function of all loaders, which also tokenizes captions if it gets a tokenizer."""
    return collate if tokenizer is None else partial(collate, tokenizer=tokenizer)
