"""A folder for each item: its frames as JPEG files, flow, motion, mel and pose as npy files, and the facts as JSON."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from chordcache.formats.item import ExportItem, facts
from chordcache.formats.items import Items


def files(items: Items, item: ExportItem) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield the folder of an item: "00000.jpg" and so on, "FEATURE.npy" and "facts.json"."""
    yield item.name, partial(_write_folder, items, item)


def _write_folder(items: Items, item: ExportItem, path: Path) -> None:
    path.mkdir()
    for place, data in enumerate(items.jpegs(item)):
        _write(path / f"{place:05}.jpg", data)
    for name, array in items.arrays(item):
        content = io.BytesIO()
        np.save(content, array)
        _write(path / f"{name}.npy", content.getvalue())
    _write(path / "facts.json", json.dumps(facts(item), indent=2).encode())


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
