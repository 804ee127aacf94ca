"""The commands ffmpeg and ffprobe."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np


def _output(command: list[str], stdin: bytes = b"") -> bytes:
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')}"
    return done.stdout


def ffmpeg(*args: str | Path, stdin: bytes = b"") -> bytes:
    """Run ``ffmpeg ARGS`` and return its standard output. Files that exist are overwritten."""
    return _output(["ffmpeg", "-nostdin", "-v", "error", "-y", *map(str, args)], stdin)


def copy_start(source: Path, seconds: float, target: Path) -> None:
    """Copy the packets of the first seconds of a video."""
    target.parent.mkdir(parents=True, exist_ok=True)
    ffmpeg("-i", source, "-t", str(seconds), "-c", "copy", target)


def decode_samples(path: str | Path, num_channels: int, *options: str) -> np.ndarray:
    """Decode a sound track [shape=(n, num_channels), dtype=float32, -1 to 1]."""
    data = ffmpeg("-i", path, *options, "-f", "f32le", "-")
    return np.frombuffer(data, np.float32).reshape(-1, num_channels)


def frame_digests(path: Path, *options: str, check: bool = True) -> tuple[list[str], list[str]]:
    """Decode the first video track. Return the MD5 digest of each frame, and the lines of errors."""
    # fmt: off
    command = [
        "ffmpeg", "-nostdin", "-v", "error", *options, "-i", f"file:{path}", "-map", "0:v:0",
        "-vsync", "passthrough", "-f", "framemd5", "-",
    ]
    # fmt: on
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60, check=check
    )
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return [line.split()[-1] for line in lines], done.stderr.splitlines()


def ffprobe(path: str | Path, entries: str, *options: str) -> dict[str, Any]:
    """Return what ``ffprobe -show_entries ENTRIES`` prints, parsed."""
    command = ["ffprobe", "-v", "error", "-show_entries", entries, *options, "-of", "json", os.fspath(path)]
    parsed: dict[str, Any] = json.loads(_output(command))
    return parsed


def ffprobe_column(path: str | Path, entry: str, *options: str) -> list[str]:
    """Return one value of each frame or stream, as text. The first video track is selected unless options say more."""
    chosen = options or ("-select_streams", "v:0")
    command = ["ffprobe", "-v", "error", "-show_entries", entry, *chosen, "-of", "csv=p=0", os.fspath(path)]
    return [line.partition(",")[0] for line in _output(command).decode().split()]
