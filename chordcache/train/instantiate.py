"""Objects that a config describes by a name and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from chordcache.arguments import did_you_mean
from chordcache.errors import UsageError
from chordcache.train import samplers

NAMED: Mapping[str, Mapping[str, str]] = {
    "source": {
        "cache": "chordcache.train.from_config.cache_source",
        "index": "chordcache.train.from_config.index_source",
        "mp4": "chordcache.train.from_config.mp4_source",
    },
    "clip_sampler": {
        **{name: f"chordcache.train.samplers.{name}" for name in samplers.__all__},
        "time_warp": "chordcache.train.samplers.time_transforms.TimeWarp",
        "frame_drop": "chordcache.train.samplers.time_transforms.FrameDrop",
        "temporal_crop": "chordcache.train.samplers.time_transforms.TemporalCrop",
    },
    "crop": {
        "center_crop": "chordcache.read.crops.CenterCrop",
        "random_resized_crop": "chordcache.read.crops.RandomResizedCrop",
        "resize": "chordcache.read.crops.Resize",
        "pad": "chordcache.read.crops.Pad",
        "horizontal_flip": "chordcache.read.crops.HorizontalFlip",
    },
    "augment": {"batch": "chordcache.train.augment.BatchAugment"},
    "collate": {"pad": "chordcache.train.from_config.padding_collate"},
    "sampler": {
        "distributed": "chordcache.train.samplers.distributed.ChordSampler",
        "budget": "chordcache.train.samplers.budget_batches.BudgetBatchSampler",
    },
    "loader": {"threads": "chordcache.train.loader.ClipLoader", "workers": "chordcache.train.loader.make_loader"},
}
"""Section of ``train`` to its names, and the class or function of each. It is imported when it is asked for: some need
optional packages, or a decoder."""


def instantiate(kind: str, config: object, section: str | None = None, **given: Any) -> Any:
    """Make the object that a config names, by a key of ``NAMED[kind]``, with the config's other keys as arguments.

    Lists become tuples, and nested configs become objects. ``section`` is the place of the config, for messages.
    ``given`` are further arguments, for classes that have them. The config must not have them. Raises ``UsageError`` if
    the name or an argument does not exist, an argument is missing, or the class or function refuses a value.

    Examples
    --------
    >>> instantiate("clip_sampler", {"name": "random", "num_frames": 8})
    RandomClipSampler(num_frames=8, stride=4, pad='repeat', fps=None, within_shots=False)
    """
    section = section or f"train.{kind}"
    if not isinstance(config, Mapping):
        raise UsageError(f"{section}: got {config!r}, expected a mapping with a name and arguments")
    name, names = config.get("name"), NAMED[kind]
    if not isinstance(name, str) or name not in names:
        raise UsageError(
            f"{section}: got the name {name!r}, expected one of {', '.join(names)}{did_you_mean(name, names)}"
        )
    module, _, attribute = names[name].rpartition(".")
    function = getattr(import_module(module), attribute)
    parameters = inspect.signature(function).parameters
    fixed = {argument: value for argument, value in given.items() if argument in parameters}
    valid = [argument for argument in parameters if argument not in fixed]
    arguments = {argument: value for argument, value in config.items() if argument != "name"}
    for argument in arguments:
        if argument not in valid:
            expected = f"one of {', '.join(valid)}" if valid else "a name only"
            raise UsageError(f"{section} '{name}': got '{argument}', expected {expected}")
    for argument in valid:
        if parameters[argument].default is inspect.Parameter.empty and argument not in arguments:
            raise UsageError(f"{section} '{name}': got no '{argument}', expected a value. Add it to the config.")
    objects = {key: _value(kind, key, value, f"{section}.{key}", given) for key, value in arguments.items()}
    return call_within(section, function, **objects, **fixed)


def _value(kind: str, argument: str, value: Any, section: str, given: Mapping[str, Any]) -> Any:
    """Return the value of an argument, with the objects that it names."""
    if argument in ("of", "sampler") and value is not None:
        return instantiate(kind, value, section, **given)
    if argument == "stages":
        if not isinstance(value, Mapping):
            raise UsageError(f"{section}: got {value!r}, expected a mapping of an epoch to a config")
        return {epoch: instantiate(kind, stage, f"{section}.{epoch}", **given) for epoch, stage in value.items()}
    if argument == "tokenizer" and value is not None:
        from chordcache.train.captions import CaptionTokenizer  # not before: the package tokenizers is optional

        return CaptionTokenizer(value)
    if isinstance(value, (list, tuple)):
        return tuple(_value(kind, "", element, section, given) for element in value)
    return value


def call_within(section: str, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function. Errors about the value of an argument begin with the place in the config."""
    try:
        return function(**arguments)
    except UsageError as error:
        if type(error) is not UsageError:  # the others do not name an argument, or the place already
            raise
        raise UsageError(f"{section}: {error}") from None
