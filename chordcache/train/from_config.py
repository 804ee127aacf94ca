"""Datasets, and the parts of loaders, as the section ``train`` of a config names them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from chordcache.config.config import Config, config_from_json
from chordcache.config.picture import PictureConfig
from chordcache.config.yaml_files import load_config
from chordcache.errors import ConfigError, UsageError
from chordcache.read.crops import CenterCrop, HorizontalFlip, Pad, RandomResizedCrop, Resize, SpatialTransform
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.collate import collate
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.instantiate import check_arguments, frozen, make_named
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.by_name import make_sampler, transformed
from chordcache.train.samplers.distributed import ChordSampler

ConfigLike: TypeAlias = Config | Mapping[str, Any] | str | Path
"""A config, plain data in the shape of its YAML file, or the file"""

Function: TypeAlias = Callable[..., Any]

CROPS: Mapping[str, type] = {
    "center_crop": CenterCrop,
    "random_resized_crop": RandomResizedCrop,
    "resize": Resize,
    "pad": Pad,
    "horizontal_flip": HorizontalFlip,
}
"""Crop by its name in a config"""

_NOT_IN_DATASET = ("cache", "source", "clip_sampler", "crop", "transform", "config")
"""Arguments of ``ChordVideoDataset`` that are sections of their own, or that plain data cannot express"""


@dataclass(frozen=True)
class LoaderParts:
    """The parts of a loader that a config names."""

    dataset: ClipDataset
    sampler: ChordSampler | BudgetBatchSampler | None
    """The order of the samples. None for the default of the loader"""
    collate: Function
    augment: Function | None
    """Function of a batch, None if batches stay as they are"""
    loader: Mapping[str, Any]
    """Name of the loader, and its other arguments"""


def make_dataset(config: ConfigLike, **arguments: Any) -> ChordVideoDataset:
    """Make the dataset that the section ``train`` of a config describes.

    The sections ``source``, ``dataset``, ``clip_sampler``, ``time_transform`` and ``crop`` are used, see
    ``docs/loading.md``. If the dataset reads an index, and its cache does not exist, it is made with this config.

    Parameters
    ----------
    config : Config, mapping, str or Path
        A config, its plain data, or its YAML file. Paths in it are relative to the working folder.
    **arguments
        Arguments of ``ChordVideoDataset``, which replace those of the config: ``videos="val.txt"`` for a validation
        set, or ``cache="other"`` instead of the section ``source``. ``clip_sampler`` also replaces ``time_transform``,
        and each of ``crop`` and ``size`` replaces the other one.

    Returns
    -------
    ChordVideoDataset
        The dataset, as its constructor returns it.

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
    check_arguments("train.dataset", given, valid)
    if "source" in train and not {"cache", "source"} & arguments.keys():
        given |= _source(train["source"], settings.picture)
    if "clip_sampler" not in arguments:
        given |= _clip_sampler(train)
    if "crop" in train and not {"crop", "size"} & arguments.keys():
        given["crop"] = _crop(train["crop"], "train.crop")
    if "crop" in arguments:
        given.pop("size", None)
    given |= arguments
    if "index" in given and "source" not in given and _is_missing(given.get("cache")):
        given.setdefault("config", settings)
    with within("train.dataset"):
        return ChordVideoDataset(**given)


def loader_parts(config: ConfigLike, dataset: ClipDataset | None = None) -> LoaderParts:
    """Make the parts of a loader that the section ``train`` of a config describes.

    Parameters
    ----------
    config : Config, mapping, str or Path
        As in ``make_dataset``.
    dataset : ClipDataset, optional
        The dataset to read. By default that of ``make_dataset``.

    Raises
    ------
    ConfigError
        If the section ``loader`` is missing, or as in ``make_dataset``.
    UsageError
        If a value is wrong.
    """
    settings = _as_config(config)
    train = settings.train
    if "loader" not in train:
        raise ConfigError("train.loader: got none, expected a section with a name. Add it to the config.")
    dataset = make_dataset(settings) if dataset is None else dataset
    loader = dict(train["loader"])
    sampler = None
    if "sampler" in train:
        sampler = _order(train["sampler"], dataset, loader.get("batch_size"))
    if isinstance(sampler, BudgetBatchSampler):
        loader.setdefault("batch_size", None)
    together = collate
    if "collate" in train:
        together = _made("train.collate", {"pad": _pad, "pad_and_tokenize": _pad_and_tokenize}, train["collate"])
    augment = None
    if "augment" in train:
        augment = _made("train.augment", {"batch": _batch_augment()}, _augment_arguments(train["augment"], dataset))
    return LoaderParts(dataset, sampler, together, augment, loader)


@dataclass(frozen=True)
class AugmentingCollate:
    """A collate function that also augments the batch, in the process that reads it. Picklable."""

    collate: Function
    augment: Function

    def __call__(self, samples: Any) -> Any:
        """Make a batch of samples, and augment it."""
        return self.augment(self.collate(samples))


def _as_config(config: ConfigLike) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return config_from_json(config)
    return load_config(config)


@contextmanager
def within(section: str) -> Iterator[None]:
    """Add the place in the config to errors about the value of an argument."""
    try:
        yield
    except UsageError as error:
        if type(error) is not UsageError:  # the others do not name an argument, or the place already
            raise
        raise UsageError(f"{section}: {error}") from None


def _made(section: str, kinds: Mapping[str, Function], config: Mapping[str, Any], **given: Any) -> Any:
    with within(section):
        return make_named(section, kinds, config, **given)


def _source(config: Mapping[str, Any], pictures: PictureConfig) -> dict[str, Any]:
    """Return the arguments of the dataset that name its videos. Sources of files make the pictures of the config."""

    def cache(path: str) -> dict[str, Any]:
        return {"cache": path}

    def mp4(path: str | Sequence[str] | None = None) -> dict[str, Any]:
        from chordcache.sources.media_file import MP4Source  # not before: it loads a decoder

        return {"source": MP4Source(pictures), **({} if path is None else {"videos": path})}

    def mapped_mp4(path: str | Sequence[str] | None = None) -> dict[str, Any]:
        from chordcache.sources.mapped_mp4 import MappedMP4Source  # not before: it loads a decoder

        return {**mp4(path), "source": MappedMP4Source(pictures)}

    kinds = {"cache": cache, "mp4": mp4, "mapped_mp4": mapped_mp4}
    arguments: dict[str, Any] = _made("train.source", kinds, config)
    return arguments


def _clip_sampler(train: Mapping[str, Any]) -> dict[str, Any]:
    transforms = train.get("time_transform", [])
    if "clip_sampler" not in train:
        if transforms:
            raise ConfigError("train.time_transform: got one without train.clip_sampler, expected both or neither")
        return {}
    with within("train.clip_sampler"):
        sampler = make_sampler(train["clip_sampler"], "train.clip_sampler")
    with within("train.time_transform"):
        several = [transforms] if isinstance(transforms, Mapping) else transforms
        return {"clip_sampler": transformed(sampler, several, "train.time_transform")}


def _crop(config: Any, section: str) -> SpatialTransform:
    if not isinstance(config, Mapping):
        raise ConfigError(f"{section}: got {config!r}, expected a mapping with a name and arguments")
    arguments = dict(config)
    if arguments.get("of") is not None:
        arguments["of"] = _crop(arguments["of"], f"{section}.of")
    crop: SpatialTransform = _made(section, CROPS, arguments)
    return crop


def _order(
    config: Mapping[str, Any], dataset: ClipDataset, batch_size: int | None
) -> ChordSampler | BudgetBatchSampler:
    """Make the sampler of a loader."""
    given = {"dataset": dataset, "batch_size": batch_size or 1}
    order: ChordSampler | BudgetBatchSampler
    if config["name"] != "budget":
        order = _made("train.sampler", {"distributed": ChordSampler, "budget": BudgetBatchSampler}, config, **given)
        return order
    arguments = dict(config)
    if arguments.get("sampler") is not None:
        kinds = {"distributed": ChordSampler}
        arguments["sampler"] = _made("train.sampler.sampler", kinds, arguments["sampler"], **given)
    if arguments.get("tokenizer") is not None:
        arguments["tokenizer"] = _tokenizer(arguments["tokenizer"])
    order = _made("train.sampler", {"budget": BudgetBatchSampler}, arguments, dataset=dataset)
    return order


def _pad() -> Function:
    return collate


def _pad_and_tokenize(tokenizer: str) -> Function:
    return partial(collate, tokenizer=_tokenizer(tokenizer))


def _tokenizer(path: str) -> Any:
    from chordcache.train.captions import CaptionTokenizer  # not before: the package tokenizers is optional

    return CaptionTokenizer(path)


def _batch_augment() -> Function:
    from chordcache.train.augment import BatchAugment  # not before: kornia is optional, and takes seconds to load

    return BatchAugment


def _augment_arguments(config: Mapping[str, Any], dataset: ClipDataset) -> dict[str, Any]:
    """Return the config with the features and the number of classes of the dataset, where it does not have its own."""
    known = {"features": dataset.settings.get("features", ())}
    if config.get("mix") is not None:
        known["num_classes"] = max(1, len(dataset.classes))
    return {**known, **config}


def _is_missing(cache: Any) -> bool:
    return cache is None or (isinstance(cache, (str, Path)) and not Path(cache).exists())
