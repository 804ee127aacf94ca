"""A network that doubles the numbers of frames, until its fault shows. Workers that import it need ``ENVIRONMENT``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.features.base import Rows, VideoInfo
from chordcache.features.networks.extractor import NetworkExtractor

PLUG_IN = "helpers.faulty_networks:FaultyNetwork"
"""For the key ``extractor`` of a config"""


class FaultyNetwork(NetworkExtractor):
    """Twice the number of each frame.

    Parameters
    ----------
    name : str
        Name of the feature.
    log : str
        File that gets a line for each load of the weights and each batch.
    fault_of_width : mapping of str to str
        "raises", "memory", "kills", "loses its device" or "hangs", at the batches of videos of a width [pixels].
    once : str
        File that is made with the first fault, after which there is none.
    max_batch : int
        Largest batch for which there is memory.
    seconds : float
        Time of a batch, [seconds].
    mebibytes : int
        Size of the weights, and of the memory that each batch takes and keeps the last of.
    weights : str
        "none" for weights that cannot be loaded.
    """

    def __init__(self, name: str, **_: Any) -> None:
        super().__init__(name)
        self._width = 0

    @classmethod
    def identity(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return nothing: the numbers are the same with and without faults."""
        return {}

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Return the arguments, as weights."""
        _write(arguments, f"load {device} {os.getpid()}")
        if arguments.get("weights") == "none":
            raise FileNotFoundError("no weights")
        return {**arguments, "weights": np.ones(arguments.get("mebibytes", 0) << 17), "device": device}

    def begin(self, video: VideoInfo) -> str | None:
        """Keep the width."""
        self._width = video.width
        return None

    def prepare(self, frame: Any) -> Any:
        """Return the width and the number of the frame."""
        return np.array([self._width, frame.number])

    @classmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Return twice the numbers, or fail."""
        _write(model, f"batch {model['device']} {inputs[0][0]} {len(inputs)}")
        assert len({int(width) for width, _ in inputs}) == 1, "a batch of two videos"
        if len(inputs) > model.get("max_batch", len(inputs)):
            raise MemoryError
        model["last"] = np.ones(model.get("mebibytes", 0) << 17)
        fault = model.get("fault_of_width", {}).get(str(inputs[0][0]), "")
        once = model.get("once")
        if fault and not (once and Path(once).exists()):
            if once:
                Path(once).touch()
            _fail(fault)
        time.sleep(model.get("seconds", 0))
        return [2 * int(number) for _, number in inputs]

    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        """Return the outputs."""
        return {self.name: np.array(outputs, np.float32)}


def _fail(fault: str) -> None:
    if fault == "raises":
        raise ValueError("these inputs are bad")
    if fault == "memory":
        raise MemoryError
    if fault == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "loses its device":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if fault == "hangs":
        time.sleep(3600)


def _write(arguments: Mapping[str, Any], line: str) -> None:
    with open(arguments["log"], "a", encoding="ascii") as file:
        file.write(f"{line}\n")
