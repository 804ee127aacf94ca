"""The peer's side of ``peers.py``: it says what it is, and then reads all clips whenever the driver asks.

A peer lives in an environment of its own, without chordcache. The clips are described by ``clips.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 224
"""Side of the square that is cut out of each frame, [pixels]"""


class Work:
    """The folder of the clips: video, frame numbers, and the same frames as JPEG, of each."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        description = json.loads((self.folder / "clips.json").read_text())
        self.clips: list[dict[str, Any]] = description["clips"]
        """Each with "video" (path), "frames" (numbers), "size" (height, width of the cached frames)"""

    def jpegs(self, number: int) -> list[bytes]:
        """Return the frames of a clip as JPEG."""
        folder = self.folder / "jpegs" / str(number)
        return [path.read_bytes() for path in sorted(folder.iterdir())]


def cut(frame: np.ndarray, out: np.ndarray) -> None:
    """Copy the middle of a frame [shape=(H, W, 3), dtype=uint8]."""
    top, left = ((have - want) // 2 for have, want in zip(frame.shape[:2], out.shape[:2], strict=True))
    out[...] = frame[top : top + SIZE, left : left + SIZE]


def clip_of(frames: Iterable[np.ndarray], num_frames: int) -> np.ndarray:
    """Return a clip [shape=(num_frames, SIZE, SIZE, 3), dtype=uint8] of whole frames."""
    out = np.empty((num_frames, SIZE, SIZE, 3), np.uint8)
    for frame, place in zip(frames, out, strict=True):
        cut(frame, place)
    return out


def decoded(jpegs: Iterable[bytes]) -> np.ndarray:
    """Decode the JPEGs of a clip, and cut them."""
    import simplejpeg

    records = list(jpegs)
    return clip_of((simplejpeg.decode_jpeg(bytes(jpeg), "RGB") for jpeg in records), len(records))


def serve(prepare: Callable[[Work], tuple[str, Callable[[], Iterable[np.ndarray]]]]) -> None:
    """Answer the driver: first with the version, then with the time of a round for each line on standard input.

    Parameters
    ----------
    prepare : callable
        Function that makes the peer's files, and returns its version and a function that reads all clips once.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    version, read_all = prepare(Work(sys.argv[1]))
    print(json.dumps({"version": version}), file=answers, flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        sums = [float(clip[:, ::16, ::16].mean()) for clip in read_all()]
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        answer = {"wall_seconds": wall, "cpu_seconds": cpu, "num_clips": len(sums), "mean": sum(sums) / len(sums)}
        print(json.dumps(answer), file=answers, flush=True)
