"""A network that stands in for one on a GPU: it waits 10 ms for each frame, without the interpreter's lock."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from chordcache.features.networks.extractor import NetworkExtractor

FRAME_SECONDS = 0.01


class SlowNetwork(NetworkExtractor):
    """The mean color of each frame, after a wait.

    Parameters
    ----------
    name : str
        Name of the feature.
    log : str
        File that gets a line of JSON for each batch: its begin and end [seconds], its size, and the peak memory of the
        process [KiB].
    """

    def __init__(self, name: str, *, log: str) -> None:
        super().__init__(name)

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Note that the weights are loaded."""
        with open(arguments["log"], "a", encoding="ascii") as file:
            file.write('{"loaded": true}\n')
        return arguments["log"]

    def prepare(self, frame: Any) -> Any:
        """Return the frame."""
        return frame.rgb()

    @classmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        """Wait."""
        begin = time.monotonic()
        time.sleep(FRAME_SECONDS * len(inputs))
        outputs = [frame[::16, ::16].mean((0, 1), dtype=np.float32) for frame in inputs]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open(model, "a", encoding="ascii") as file:
            file.write(json.dumps({"begin": begin, "end": time.monotonic(), "size": len(inputs), "peak": peak}) + "\n")
        return outputs

    def rows_of(self, outputs: Sequence[Any]) -> Any:
        """Return the means."""
        return {self.name: np.stack(outputs)}
