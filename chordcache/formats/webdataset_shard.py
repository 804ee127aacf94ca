"""A shard of WebDataset: a tar file whose samples have a JPEG for each frame, or an MP4 file, and a JSON file.

Source: https://github.com/webdataset/webdataset, ``TarWriter`` of webdataset 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chordcache.formats.item import ExportItem, facts
from chordcache.formats.items import Items
from chordcache.formats.source_packets import SourcePackets


def write(items: Items, numbers: Sequence[int], path: Path) -> None:
    """Write items to a tar file.

    A clip of 16 frames is "NAME.json" and "NAME.000.jpg" to "NAME.015.jpg", or "NAME.mp4". The key "frames" of the JSON
    has the numbers of the clip's frames in the MP4 file.
    """
    from webdataset import TarWriter

    with TarWriter(str(path), mtime=0) as tar:
        for number in numbers:
            item = items[number]
            content = _mp4(items.packets, item) if items.packets else _jpegs(items, item)
            tar.write({"__key__": item.name, **content})


def _jpegs(items: Items, item: ExportItem) -> dict[str, Any]:
    digits = max(3, len(str(len(item.frames) - 1)))
    return {"json": facts(item), **{f"{n:0{digits}}.jpg": data for n, data in enumerate(items.jpegs(item))}}


def _mp4(packets: SourcePackets, item: ExportItem) -> dict[str, Any]:
    data, numbers = packets.mp4(item)
    return {"json": {**facts(item), "frames": numbers.tolist()}, "mp4": data}
