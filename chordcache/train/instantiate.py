"""Objects that a config describes by a name and arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from chordcache.arguments import did_you_mean
from chordcache.errors import ConfigError, UsageError
from chordcache.train import samplers
from chordcache.train.samplers.clip_request import ClipSampler

NAMED: Mapping[str, Mapping[str, str]] = {
    "source": {
        "cache": "chordcache.train.from_config.cache_arguments",
        "mp4": "chordcache.train.from_config.mp4_arguments",
        "mapped_mp4": "chordcache.train.from_config.mapped_mp4_arguments",
    },
    "clip_sampler": {name: f"chordcache.train.samplers.{name}" for name in samplers.__all__},
    "time_transform": {
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
    "collate": {
        "pad": "chordcache.train.from_config.padding_collate",
        "pad_and_tokenize": "chordcache.train.from_config.tokenizing_collate",
    },
    "sampler": {
        "distributed": "chordcache.train.samplers.distributed.ChordSampler",
        "budget": "chordcache.train.samplers.budget_batches.BudgetBatchSampler",
    },
    "loader": {
        "threads": "chordcache.train.loader.ClipLoader",
        "workers": "chordcache.train.loader.make_loader",
    },
}
"""Section of ``train`` to its names, and the class or function of each. It is imported when it is asked for: some need
optional packages, or a decoder."""

_NESTED = ("of", "sampler")
"""Arguments that are configs of the same section"""


def instantiate(kind: str, config: object, section: str | None = None, **given: Any) -> Any:
    """Make the object that a config names.

    Parameters
    ----------
    kind : str
        Key of ``NAMED``.
    config : mapping of str to Any
        ``name``, a key of ``NAMED[kind]``, and arguments. Lists become tuples, and nested configs become objects.
    section : str, optional
        Place of the config, for messages. By default ``train.<kind>``.
    **given
        Further arguments, for classes that have them. The config must not have them.

    Raises
    ------
    ConfigError
        If the name or an argument does not exist, or an argument is missing.
    UsageError
        If the class or function refuses a value.

    Examples
    --------
    >>> instantiate("clip_sampler", {"name": "random", "num_frames": 8})
    RandomClipSampler(num_frames=8, stride=4, pad='repeat', fps=None)
    >>> later = {"name": "adaptive", "temperature": 0.5, "fps": 8}
    >>> stages = {0: {"name": "random"}, 10: later}
    >>> instantiate("clip_sampler", {"name": "schedule", "stages": stages}).at(10)
    AdaptiveSampler(num_frames=16, stride=None, pad='repeat', fps=8, temperature=0.5, lengths=None)
    """
    section = section or f"train.{kind}"
    if not isinstance(config, Mapping):
        raise ConfigError(f"{section}: got {config!r}, expected a mapping with a name and arguments")
    name, names = config.get("name"), NAMED[kind]
    if not isinstance(name, str) or name not in names:
        raise ConfigError(
            f"{section}: got the name {name!r}, expected one of {', '.join(names)}{did_you_mean(name, names)}"
        )
    module, _, attribute = names[name].rpartition(".")
    function = getattr(importlib.import_module(module), attribute)
    parameters = inspect.signature(function).parameters
    fixed = {argument: value for argument, value in given.items() if argument in parameters}
    arguments = {argument: value for argument, value in config.items() if argument != "name"}
    check_arguments(f"{section} '{name}'", arguments, [p for p in parameters if p not in fixed])
    for argument, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and argument not in {**arguments, **fixed}:
            raise ConfigError(f"{section} '{name}': got no '{argument}', expected a value. Add it to the config.")
    for argument, value in arguments.items():
        arguments[argument] = _converted(kind, argument, value, f"{section}.{argument}", given)
    with within(section):
        return function(**arguments, **fixed)


def _converted(kind: str, argument: str, value: Any, section: str, given: Mapping[str, Any]) -> Any:
    """Return the value of an argument, with the objects that it names."""
    if argument in _NESTED and value is not None:
        return instantiate(kind, value, section, **given)
    if argument == "stages":
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section}: got {value!r}, expected a mapping of an epoch to a config")
        return {epoch: instantiate(kind, stage, f"{section}.{epoch}", **given) for epoch, stage in value.items()}
    return frozen(value)


def check_arguments(section: str, arguments: Mapping[str, Any], valid: Sequence[str]) -> None:
    """Raise ``ConfigError`` for the first argument that is not among ``valid``."""
    for argument in arguments:
        if argument not in valid:
            expected = f"one of {', '.join(valid)}" if valid else "a name only"
            raise ConfigError(f"{section}: got '{argument}', expected {expected}")


def frozen(value: Any) -> Any:
    """Return lists of a config as tuples, also inside of others."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(element) for element in value)
    return value


@contextmanager
def within(section: str) -> Iterator[None]:
    """Add the place in the config to errors about the value of an argument."""
    try:
        yield
    except UsageError as error:
        if type(error) is not UsageError:  # the others do not name an argument, or the place already
            raise
        raise UsageError(f"{section}: {error}") from None


def checked_sampler(sampler: object) -> ClipSampler:
    """Return the sampler that an argument means: an object, a name, a config for ``instantiate``, or a class.

    Raises
    ------
    ConfigError, UsageError
        If it is none of them, or the class needs arguments.

    Examples
    --------
    >>> checked_sampler("uniform")
    UniformFrameSampler(num_frames=16, position='ends')
    """
    if isinstance(sampler, str):
        sampler = {"name": sampler}
    if isinstance(sampler, Mapping):
        sampler = instantiate("clip_sampler", sampler, "clip_sampler")
    if isinstance(sampler, type):
        kind = sampler
        try:
            sampler = kind()
        except TypeError as error:
            raise UsageError(f"clip_sampler: got the class {kind.__name__}, expected an object ({error})") from None
    if not callable(getattr(sampler, "frame_numbers", None)):
        raise UsageError(
            f"clip_sampler: got {sampler!r}, expected an object with frame_numbers, such as a "
            f"RandomClipSampler(), or one of the names {', '.join(NAMED['clip_sampler'])}"
        )
    return cast(ClipSampler, sampler)
