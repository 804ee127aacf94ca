"""The interface of extractors with a network that runs in a process of its own, on batches of several videos."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chordcache.amounts import counted
from chordcache.engine.inference.connections import Stream
from chordcache.engine.inference.network import NetworkError
from chordcache.errors import ConfigError, MediaError, UsageError
from chordcache.features.base import NO_ROWS, Extractor, Rows
from chordcache.features.networks.pretrained import is_folder

if TYPE_CHECKING:
    from chordcache.media.scaling import Frame

_DEVICE = re.compile(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?")


class NetworkExtractor(Extractor, ABC):
    """The maker of a feature by a network.

    A worker decodes the video, and calls ``prepare`` for each frame. The inputs go to a process that holds the network:
    one for each device, for all workers. There, ``setup`` loads the weights and ``infer`` computes batches, which hold
    inputs of several videos. The outputs come back in order to ``rows_of``.

    The section of the feature in a config has two more keys, which are not part of the fingerprint: ``device`` ("auto",
    "cpu", "cuda" or "cuda:N") and ``batch_size``.
    """

    model: Stream

    @classmethod
    @abstractmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Compute a batch.

        An exception is a fault of the videos in the batch. Each of them is then tried again without the others.

        Parameters
        ----------
        model : object
            Result of ``setup``.
        inputs : list
            Inputs as ``prepare`` and ``last_inputs`` returned them, at most ``batch_size``. Arrays in one batch have
            the same shape and dtype.

        Returns
        -------
        sequence
            The output of each input, such as an array in the memory of the CPU.
        """

    def prepare(self, frame: Frame) -> Any:
        """Return the input that is complete with the next kept frame, or None."""
        return None

    def last_inputs(self) -> Sequence[Any]:
        """Return the remaining inputs, after the last frame."""
        return ()

    @abstractmethod
    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        """Return the rows of the next outputs, at least one. They are in the order of the inputs."""

    def add_frame(self, frame: Frame) -> Rows:
        """Send the input that is complete with this frame, and return the rows that have come."""
        prepared = self.prepare(frame)
        if prepared is None:
            return NO_ROWS
        try:
            self.model.send(prepared)
            return self._rows_of(self.model.ready())
        except NetworkError as error:
            raise self._fault(error) from None

    def finish(self) -> Rows:
        """Send the remaining inputs, and return the remaining rows."""
        try:
            for picture in self.last_inputs():
                self.model.send(picture)
            return self._rows_of(self.model.rest())
        except NetworkError as error:
            raise self._fault(error) from None

    def _rows_of(self, outputs: Sequence[Any]) -> Rows:
        return self.rows_of(outputs) if outputs else NO_ROWS

    def _fault(self, error: NetworkError) -> MediaError:
        return MediaError(self.name, error.cause, error.message)


class PretrainedExtractor(NetworkExtractor):
    """The maker of a feature by a model of ``networks.pretrained``, which computes in float32.

    Besides the settings of its section, it has a parameter ``files``: the hash of the files of a local folder, so that
    other weights give another fingerprint.
    """

    @classmethod
    def identity(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments without the paths of files that are hashed."""
        paths = ("model", "tokenizer", "pooled_model", "pooled_tokenizer") if arguments.get("files") else ()
        return {name: value for name, value in arguments.items() if name not in paths or not is_folder(str(value))}


def stored(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return outputs of a network in another dtype. Raise ``ValueError`` if one is not finite, or does not fit."""
    if not np.isfinite(values).all():
        raise ValueError("the network returned values that are not finite")
    with np.errstate(over="ignore"):
        rows = values.astype(dtype)
    if not np.isfinite(rows).all():
        raise ValueError(f"values up to {np.abs(values).max():.3g} do not fit into {dtype}; use float32")
    return rows


def check_device(name: str, value: object) -> None:
    """Raise ``ConfigError`` if a value is not the name of a device."""
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
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
        f"{counted(num_gpus, 'GPU') if num_gpus else 'no GPU'} on this machine."
    )


def _all(num_gpus: int) -> tuple[str, ...]:
    return tuple(f"cuda:{number}" for number in range(num_gpus))
