"""Tasks that send numbers to a network, and networks with faults. All of it can be pickled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.engine.inference.connections import connection_to
from chordcache.engine.inference.network import Network, NetworkError


@dataclass(frozen=True)
class Task:
    """A task that sends ``num_inputs`` arrays of its number."""

    number: int
    network: Network
    num_inputs: int = 8
    shape: tuple[int, ...] = (4,)
    is_unpicklable: bool = False
    """True to send what cannot be pickled"""
    dies_at: str = ""
    """File that the task makes in the middle. It ends its process if the file was not there before"""


def run_task(task: Task) -> Any:
    """Return the outputs of a task, or the cause and the message of the network's failure."""
    stream = connection_to(task.network).stream()
    outputs = []
    try:
        for number in range(task.num_inputs):
            if task.dies_at and number == task.num_inputs // 2 and not Path(task.dies_at).exists():
                Path(task.dies_at).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if task.is_unpicklable:
                stream.send(value for value in ())
            stream.send(np.full(task.shape, task.number * 1000 + number, np.int64))
            outputs += stream.ready()
        return [*outputs, *stream.rest()]
    except NetworkError as error:
        return error.cause, error.message
    except TypeError as error:
        return "TypeError", str(error)


def expected(task: Task) -> list[int]:
    """Return the outputs of a task: twice the numbers of its inputs."""
    return [2 * (task.number * 1000 + number) for number in range(task.num_inputs)]


@dataclass(frozen=True)
class Faults:
    """The faults of a network, each of them at the inputs of some tasks."""

    log: str
    """File that gets a line for each load and each batch"""
    of_task: dict[int, str] = field(default_factory=dict)
    """Number of a task to "raises", "memory", "kills", "exits" or "hangs" """
    of_device: dict[str, str] = field(default_factory=dict)
    """Device to "raises", "kills" or "forks", when its weights are loaded"""
    once: str = ""
    """File that is made with the first fault, after which the network has none"""
    max_batch: int = 1 << 30
    """Largest batch for which there is memory"""
    seconds: float = 0.0
    """[seconds] Time of a batch"""


def make_network(
    faults: Faults, *, devices: tuple[str, ...] = ("cpu",), batch_size: int = 4, name: str = "n"
) -> Network:
    """Return a network that doubles the first number of each input."""
    return Network(f"{name} {faults.log}", name, partial(_load, faults), partial(_same, devices), batch_size)


def _same(devices: tuple[str, ...]) -> tuple[str, ...]:
    return devices


def _load(faults: Faults, device: str) -> Callable[[list[Any]], Sequence[Any]]:
    _write(faults.log, f"load {device} {os.getpid()}")
    _fail(faults.of_device.get(device, ""))
    return partial(_infer, faults, device)


def _infer(faults: Faults, device: str, inputs: list[np.ndarray]) -> list[int]:
    numbers = [int(array.flat[0]) for array in inputs]
    _write(faults.log, f"batch {device} {' '.join(map(str, numbers))}")
    assert len({array.shape for array in inputs}) == 1
    if len(inputs) > faults.max_batch:
        raise MemoryError
    fault = next(filter(None, (faults.of_task.get(number // 1000) for number in numbers)), "")
    if fault and not (faults.once and Path(faults.once).exists()):
        if faults.once:
            Path(faults.once).touch()
        _fail(fault)
    time.sleep(faults.seconds)
    return [2 * number for number in numbers]


def _fail(fault: str) -> None:
    if fault == "raises":
        raise ValueError("these inputs are bad")
    if fault == "memory":
        raise MemoryError
    if fault == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "loses its device":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if fault == "forks":
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), daemon=True).start()
    if fault == "hangs":
        time.sleep(3600)


def _write(log: str, line: str) -> None:
    with open(log, "a", encoding="ascii") as file:
        file.write(f"{line}\n")
