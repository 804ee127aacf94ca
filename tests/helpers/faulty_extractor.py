"""An extractor with one fault. It crashes, hangs, uses up memory, raises, or returns what is not allowed.

Worker processes import this module: they need ``ENVIRONMENT``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import chordcache as cc
from chordcache.errors import UsageError
from chordcache.features.base import Extractor, VideoInfo
from chordcache.media.frame import Frame

PLUG_IN = "helpers.faulty_extractor:FaultyExtractor"
"""For the key ``extractor`` of a config"""

_FOLDERS = [str(Path(__file__).resolve().parents[1]), str(Path(cc.__file__).resolve().parents[1])]

ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([*_FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])}


STARTS = "STARTS_ARE_WRITTEN_TO"
"""Variable of the environment: the file to which each extractor adds a line with the width of its video, [pixels]"""


class UnpicklableError(Exception):
    """An exception that no process can send."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


class SilentError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def _raise(error: Exception) -> None:
    raise error


def _hold_the_interpreter() -> None:
    while True:  # a signal ends the system call
        ctypes.PyDLL(None).sleep(1000)


def _use_up_memory() -> None:
    arrays = []
    while True:
        arrays.append(np.zeros(16 << 20, "u1"))


def _wait_at(gate: str) -> None:
    Path(f"{gate}.reached").touch()
    while not Path(gate).exists():
        time.sleep(0.01)


EVENTS: Mapping[str, Callable[[Any], object]] = {
    "sleep": lambda mine: time.sleep(1000),
    "gate": lambda mine: _wait_at(mine.gate),
    "hold the interpreter": lambda mine: _hold_the_interpreter(),
    "many arrays": lambda mine: _use_up_memory(),
    "exit 0": lambda mine: os._exit(0),
    "exit 3": lambda mine: os._exit(3),
    "sys.exit": lambda mine: sys.exit(0),
    "SIGSEGV": lambda mine: ctypes.string_at(0),
    "SIGKILL": lambda mine: os.kill(os.getpid(), signal.SIGKILL),
    "unpicklable": lambda mine: _raise(UnpicklableError()),
    "unpicklable facts": lambda mine: mine.facts.update(lock=threading.Lock()),
    "silent": lambda mine: _raise(SilentError()),
    "ValueError": lambda mine: _raise(ValueError("no\nsuch thing")),
    "UsageError": lambda mine: _raise(UsageError("a plug-in must not raise this")),
}
"""Events at one frame, by the name of the fault"""

ROWS: Mapping[str, Callable[[Any, int], object]] = {
    "None": lambda mine, number: None,
    "array": lambda mine, number: np.zeros((1, 2)),
    "one row less": lambda mine, number: {} if number == 3 else {mine.name: np.zeros((1, 2))},
    "other name": lambda mine, number: {"else": np.zeros((1, 2))},
    "objects": lambda mine, number: {mine.name: np.array([[None]])},
    "other shapes": lambda mine, number: {mine.name: np.zeros((1, 2 + number))},
}
"""Results for a frame, by the name of the fault"""


class FaultyExtractor(Extractor):
    """An extractor whose rows are the numbers of the frames, until its fault shows.

    Parameters
    ----------
    name : str
        Name of the feature.
    fault : str
        A name of ``EVENTS`` or ``ROWS``; or "slow", "facts", "clock", "identity".
    fault_of_width : mapping of str to str
        The fault of videos of a width [pixels].
    at_frame : int
        Number of the frame at which an event happens.
    gate : str
        For the fault "gate": file that it waits for, once it has made the file of that name and ".reached".
    """

    def __init__(
        self,
        name: str,
        *,
        fault: str = "",
        fault_of_width: Mapping[str, str] | None = None,
        at_frame: int = 3,
        gate: str = "",
    ) -> None:
        super().__init__(name)
        self.gate = gate
        self._fault, self._fault_of_width, self._at_frame = fault, fault_of_width or {}, at_frame

    def begin(self, video: VideoInfo) -> str | None:
        """Choose the fault. The variable FAULTS_ARE_FIXED of the environment means none."""
        if STARTS in os.environ:
            with open(os.environ[STARTS], "ab", buffering=0) as file:
                file.write(b"%d\n" % video.width)
        fault = self._fault_of_width.get(str(video.width), self._fault)
        self._fault = "" if "FAULTS_ARE_FIXED" in os.environ else fault
        return None

    def add_frame(self, frame: Frame) -> Any:
        """Return the frame's number."""
        if self._fault in EVENTS and frame.number == self._at_frame:
            EVENTS[self._fault](self)
        if self._fault == "slow":
            time.sleep(0.3)
        if self._fault == "facts":
            self.facts["x"] = np.float32(1)
        return ROWS[self._fault](self, frame.number) if self._fault in ROWS else {self.name: np.array([frame.number])}

    def finish(self) -> Any:
        """Return no rows."""
        if self._fault == "clock":
            self.facts.update(start_seconds=0, row_seconds=0, silence=0)
        return {}

    @classmethod
    def identity(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return nothing that rows depend on."""
        if arguments.get("fault") == "identity":
            raise ZeroDivisionError
        return {}

    def num_rows(self, num_frames: int) -> int | None:
        """Return as many rows as frames, or None for a clock of its own."""
        return None if self._fault == "clock" else num_frames


# A source that changes while it is decoded


def append(source: Path, other: Path) -> None:
    """Write one more byte."""
    with source.open("ab") as file:
        file.write(b"x")


def replace(source: Path, other: Path) -> None:
    """Move another file of the same size and mtime to its path, in one step."""
    status = source.stat()
    data = bytearray(source.read_bytes())
    data[status.st_size // 2] ^= 1
    other.write_bytes(data)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(source)


def remove(source: Path, other: Path) -> None:
    """Delete it."""
    source.unlink()


def replace_folder(source: Path, other: Path) -> None:
    """Move another folder to the path of its folder. All times are those of the first."""
    source.parent.rename(source.parent.with_name("aside"))
    other.parent.rename(source.parent)


def link(source: Path, other: Path) -> None:
    """Replace it by a symbolic link."""
    source.rename(source.with_name("aside"))
    source.symlink_to(other)


CHANGES = {function.__name__: function for function in (append, replace, remove, replace_folder, link)}


class SourceChanger(Extractor):
    """An extractor that changes a file when it gets the twentieth frame.

    Parameters
    ----------
    name : str
        Name of the feature.
    change : str
        A name of ``CHANGES``.
    source, other : str
        The file to change, and another path that some changes use.
    """

    def __init__(self, name: str, *, change: str, source: str, other: str = "") -> None:
        super().__init__(name)
        self._change = lambda: CHANGES[change](Path(source), Path(other))
        self._num_frames = 0

    def add_frame(self, frame: Frame) -> Any:
        """Return a row of zero."""
        self._num_frames += 1
        if self._num_frames == 20:
            self._change()
        return {self.name: np.zeros((1, 1), np.uint8)}


SOURCE_CHANGER = "helpers.faulty_extractor:SourceChanger"
"""For the key ``extractor`` of a config"""
