"""Metadata of LeRobot datasets whose cameras have pictures in the Parquet files of the data, and these pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from chordcache.media.opencv import cv2
from helpers.lists import write, write_json

FPS = 25
LENGTHS = (7, 5)
"""Number of frames of each episode"""

SIZES = {"observation.image": (64, 96), "observation.image.wrist": (32, 32)}
"""Camera to height and width"""

VERSIONS = ("v2.1", "v3.0")


def lerobot_extra(episode: int, camera: str, fps: float, data: str = "") -> dict[str, Any]:
    """Return the extra columns of an episode of a camera, whose data are in a file if the dataset says so."""
    series = {"series": f"{data}#episode_index={episode}"} if data else {}
    return {"episode_index": episode, "camera": camera, "fps": fps, "group": episode, "stream": camera, **series}


def pixels(episode: int, camera: str) -> np.ndarray:
    """Return the frames of an episode [shape=(T, H, W, 3), dtype=uint8]: noise, so that no two are alike."""
    random = np.random.default_rng([episode, list(SIZES).index(camera)])
    return random.integers(0, 256, (LENGTHS[episode], *SIZES[camera], 3), np.uint8)


def encoded(picture: np.ndarray, kind: str) -> bytes:
    """Return the bytes of a picture, "jpeg" or "png"."""
    if kind == "jpeg":
        return bytes(simplejpeg.encode_jpeg(picture, 90, "RGB", "420"))
    return bytes(cv2.imencode(".png", picture[..., ::-1])[1])


def data_file(folder: Path, version: str, episode: int) -> Path:
    """Return the path of the Parquet file that has an episode."""
    name = f"episode_{episode:06d}" if version == "v2.1" else "file-000"
    return folder / "data" / "chunk-000" / f"{name}.parquet"


def write_meta(folder: Path, version: str) -> list[dict[str, Any]]:
    """Write the metadata that is JSON. Return the rows of ``meta/episodes`` in version 3."""
    name = "episode_{episode_index:06d}" if version == "v2.1" else "file-{file_index:03d}"
    chunk = "{episode_chunk:03d}" if version == "v2.1" else "{chunk_index:03d}"
    info = {
        "codebase_version": version,
        "fps": FPS,
        "data_path": f"data/chunk-{chunk}/{name}.parquet",
        "video_path": None,
        "features": {camera: {"dtype": "image", "shape": [*size, 3]} for camera, size in SIZES.items()},
    }
    write_json(folder / "meta" / "info.json", info)
    rows = [
        {"episode_index": episode, "tasks": [f"Push {episode}"], "length": length}
        for episode, length in enumerate(LENGTHS)
    ]
    if version == "v2.1":
        write(folder / "meta" / "episodes.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return [row | {"data/chunk_index": 0, "data/file_index": 0} for row in rows]
