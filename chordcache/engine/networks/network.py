"""A network that the tasks of a run share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Infer: TypeAlias = Callable[[list[Any]], Sequence[Any]]
"""Function of a batch: inputs of one kind to as many outputs, in the same order"""


@dataclass(frozen=True)
class Network:
    """A network that the tasks of a run share. All fields can be pickled."""

    key: str
    """Text that no other network has, such as its class, its arguments and its device"""
    name: str
    """Name of the feature, for messages"""
    load: Callable[[str], Infer]
    """Function that loads the weights to a device, such as "cuda:0" """
    devices: Callable[[], tuple[str, ...]]
    """Function that returns the devices of a machine which the network uses, one process for each"""
    batch_size: int = 1
    """Largest number of inputs in a batch"""


class NetworkError(Exception):
    """The network failed for an input of a video.

    ``cause`` is "oom", "signal" or "timeout", or "extractor" if the network raised an exception. ``message`` is one
    line for users.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(cause, message)
        self.cause = cause
        self.message = message


def kind_of(item: Any) -> object:
    """Return what inputs of one batch have in common: shape and dtype of an array, or the type of another object."""
    return (item.shape, item.dtype) if isinstance(item, np.ndarray) else type(item)
