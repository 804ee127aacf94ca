"""The interface of extractors with a network, which computes batches of the inputs of one video."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chordcache import progress
from chordcache.amounts import counted
from chordcache.engine.worker import DeviceLostError
from chordcache.errors import MediaError, UsageError, describe
from chordcache.features.base import NO_ROWS, Extractor, Rows
from chordcache.features.networks.pretrained import is_folder
from chordcache.media.frame import Frame

_DEVICE = re.compile(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?")


@dataclass
class BatchSize:
    """Largest number of inputs in the next batch of a network. All videos of a process share it."""

    value: int


class NetworkExtractor(Extractor, ABC):
    """The maker of a feature by a network.

    A build makes these features after the others, in one process for each device. There, ``setup`` loads the weights.
    For each video, ``prepare`` gets its frames, ``infer`` computes batches of its inputs, and ``rows_of`` gets the
    outputs in order.

    The section of the feature in a config has two more keys, which are not part of the fingerprint: ``device`` ("auto",
    "cpu", "cuda" or "cuda:N") and ``batch_size``.
    """

    batch_size: BatchSize
    """It is set before ``begin``"""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._waiting: list[Any] = []
        """Inputs of one kind without an output, fewer than a batch"""

    @classmethod
    @abstractmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Compute a batch of inputs of one video. An exception is a fault of the video.

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
        """Take the input that is complete with this frame. Return the rows of the batch that is complete with it."""
        prepared = self.prepare(frame)
        outputs = [] if prepared is None else self._outputs_after(prepared)
        return self.rows_of(outputs) if outputs else NO_ROWS

    def finish(self) -> Rows:
        """Take the remaining inputs, and return the remaining rows."""
        outputs = [output for prepared in self.last_inputs() for output in self._outputs_after(prepared)]
        outputs += self._rest()
        return self.rows_of(outputs) if outputs else NO_ROWS

    def _outputs_after(self, prepared: Any) -> list[Any]:
        """Add an input. Return the outputs of the batches that are complete."""
        is_other = self._waiting and _kind_of(prepared) != _kind_of(self._waiting[0])
        outputs = self._rest() if is_other else []
        self._waiting.append(prepared)
        return outputs + self._rest() if len(self._waiting) >= self.batch_size.value else outputs

    def _rest(self) -> list[Any]:
        """Return the outputs of the inputs that wait. If memory is not enough for a batch, compute its halves."""
        outputs: list[Any] = []
        while self._waiting:
            batch = self._waiting[: self.batch_size.value]
            of_batch = self._infer_batch(batch)
            if of_batch is None:
                self.batch_size.value = (len(batch) + 1) // 2
                continue
            outputs += of_batch
            del self._waiting[: len(batch)]
        return outputs

    def _infer_batch(self, batch: list[Any]) -> list[Any] | None:
        """Return the outputs of a batch, or None if memory is not enough. The caller's next batch is not in ``except``.

        There, the exception would keep the tensors of this batch.
        """
        try:
            with progress.computing():
                outputs = list(self.infer(self.model, batch))
        except Exception as error:  # item boundary: a network may raise anything
            if is_context_lost(error):
                raise DeviceLostError(describe(error)) from None
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise MediaError(self.name, "oom", describe(error)) from None
            return None
        if len(outputs) != len(batch):
            what = f"infer() returned {len(outputs)} outputs, expected {len(batch)}, one for each input"
            raise MediaError(self.name, "extractor", what)
        return outputs


def _kind_of(item: Any) -> object:
    """Return what inputs of one batch have in common: shape and dtype of an array, or the type of another object."""
    return (item.shape, item.dtype) if isinstance(item, np.ndarray) else type(item)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory was not enough. That of torch is known by its name."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator: can't allocate memory" in text
    )


def is_context_lost(error: BaseException) -> bool:
    """Return whether an exception says that the device cannot be used by this process any more."""
    return type(error).__name__ == "AcceleratorError" or (
        isinstance(error, RuntimeError) and "CUDA error" in str(error) and not is_out_of_memory(error)
    )


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
    """Raise ``UsageError`` if a value is not the name of a device."""
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise UsageError(f"{name}: got {value!r}, expected auto, cpu, cuda or cuda:N")


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
