"""The devices of networks: the names that a config may have, and what they mean on a machine."""

from __future__ import annotations

import re

from chordcache.errors import ConfigError, UsageError

_NAME = re.compile(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?")


def check_device(name: str, value: object) -> None:
    """Raise ``ConfigError`` if a value is not the name of a device."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigError(f"{name}: got {value!r}, expected auto, cpu, cuda or cuda:N")


def devices_of(key: str, device: str) -> tuple[str, ...]:
    """Return the devices of this machine that a name means, one process for each.

    "cuda" stands for all GPUs that this process may use, "cuda:N" for one of them, and "auto" for all GPUs if there are
    any, else the CPU. ``key`` is the key in the config, for messages. Raise ``UsageError`` if the machine does not have
    this device.
    """
    if device == "cpu":
        return ("cpu",)
    import torch  # takes seconds

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return _all(num_gpus) or ("cpu",)
    if device == "cuda" and num_gpus:
        return _all(num_gpus)
    if device.startswith("cuda:") and int(device[5:]) < num_gpus:
        return (device,)
    raise UsageError(
        f"{key}: got {device}, expected one of: {', '.join(('auto', 'cpu', *_all(num_gpus)))}. PyTorch finds "
        f"{num_gpus or 'no'} GPU{'s' * (num_gpus != 1)} on this machine."
    )


def _all(num_gpus: int) -> tuple[str, ...]:
    return tuple(f"cuda:{number}" for number in range(num_gpus))
