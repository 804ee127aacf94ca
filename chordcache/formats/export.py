"""``export``: write a cache in a format of other libraries."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chordcache.arguments import check_at_least, check_choice, names_arguments
from chordcache.engine import terminal
from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError, printable
from chordcache.formats import parquet_table, safetensors_files, webdataset_shard
from chordcache.formats.item import ExportItem, facts
from chordcache.formats.items import Items
from chordcache.json_records import Record
from chordcache.read.cache import Cache
from chordcache.read.selection import Videos
from chordcache.storage import atomic, opener
from chordcache.storage.layout import check_output
from chordcache.storage.lock import locked
from chordcache.storage.sealed_json import read_sealed, seal

PLAN_FILE = "export.json"
"""Name of the file in the output that says what the export has"""

_ORDER_SEED = 0
"""Seed of the order of samples in shards that are read from their beginning to their end"""


class _Sharded(NamedTuple):
    """A format whose files each have many samples."""

    write: Callable[[Items, Sequence[int], Path], None]
    """Function that writes items, by their numbers, to a new file"""
    suffix: str
    frames: tuple[str, ...]
    """Forms of frames, the default first"""
    package: str
    """Package that writes it"""
    is_shuffled: bool = False
    """True if readers of the format do not shuffle it over all shards"""


class _ByItem(NamedTuple):
    """A format with files or folders for each sample."""

    files: Callable[[Items, ExportItem], Iterator[tuple[str, Callable[[Path], None]]]]
    """Function that yields the name of each file of an item, and the function that writes it"""
    frames: tuple[str, ...]
    package: str | None = "safetensors"


def _folder_of(items: Items, item: ExportItem) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield the folder of an item: "00000.jpg" and so on, "FEATURE.npy" and "facts.json"."""
    yield item.name, partial(_write_folder, items, item)


def _write_folder(items: Items, item: ExportItem, path: Path) -> None:
    path.mkdir()
    for place, data in enumerate(items.jpegs(item)):
        _write_new(path / f"{place:05}.jpg", data)
    for name, array in items.arrays(item):
        content = io.BytesIO()
        np.save(content, array)
        _write_new(path / f"{name}.npy", content.getvalue())
    _write_new(path / "facts.json", json.dumps(facts(item), indent=2).encode())


def _write_new(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


FORMATS: Mapping[str, _Sharded | _ByItem] = {
    "webdataset": _Sharded(webdataset_shard.write, ".tar", ("jpg", "mp4"), "webdataset", is_shuffled=True),
    "parquet": _Sharded(parquet_table.write, ".parquet", ("jpg", "none"), "pyarrow"),
    "folder": _ByItem(_folder_of, ("jpg", "none"), None),
    "safetensors": _ByItem(safetensors_files.files, ("none",)),
    "musubi-wan": _ByItem(safetensors_files.files_of_musubi_wan, ("none",)),
    "ltx": _ByItem(safetensors_files.files_of_ltx, ("none",)),
}


class _Plan(Record, frozen=True):
    """The settings of an export. A second call with the same ones resumes it."""

    format: str
    frames: str
    catalog: str
    """Hash of the catalog of the cache"""
    videos: str
    """Hash of the numbers and names of the items"""
    clip: int | None
    stride: int
    num_shards: int
    is_complete: bool = False


class ExportSummary(NamedTuple):
    """The result of ``export``."""

    num_samples: int
    """Number of samples in the output"""
    num_files: int
    """Number of shards, or of the files or folders of all samples"""
    num_up_to_date: int
    """Number of these files that an earlier, interrupted export wrote"""
    num_dropped: int
    """Number of samples that were left out, so that all shards have the same number"""
    num_too_short: int
    """Number of videos that are shorter than a clip"""


@names_arguments
def export(
    cache: str | Path,
    output: str | Path,
    *,
    to: str,
    frames: str | None = None,
    clip: int | None = None,
    stride: int = 1,
    shards: int = 1,
    videos: Videos | None = None,
    where: Mapping[str, str] | None = None,
    roots: Mapping[str, str] | None = None,
    progress: bool = False,
) -> ExportSummary:
    """Write a cache in a format of other libraries. See docs/export.md for the content of each format.

    Parameters
    ----------
    cache : str or Path
        The cache.
    output : str or Path
        A new folder, or the folder of an interrupted export with the same arguments, which is resumed.
    to : {"webdataset", "parquet", "folder", "safetensors", "musubi-wan", "ltx"}
        The format.
    frames : {"jpg", "mp4", "none"}, optional
        "jpg" for a JPEG of each frame, as it is cached, the default of "webdataset", "parquet" and "folder"; "mp4" for
        the packets of the source, not decoded, for "webdataset" only; "none" for facts and other features only.
    clip : int, optional
        Number of frames of a sample. By default, a sample is a whole video.
    stride : int
        Distance of two frames of a clip. Clips follow each other without a gap or an overlap.
    shards : int
        Number of shards, for "webdataset" and "parquet". All have the same number of samples. Remaining samples
        are dropped, and counted in the result.
    videos : str, Path, callable or iterable of str, optional
        Split file, predicate or keys, as for ``ChordVideoDataset``. By default all videos.
    where : mapping of str to str, optional
        Column of the split file to the value of the rows to export.
    roots : mapping of str to str, optional
        Folders of roots that are not where the cache says, for "mp4".
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    ExportSummary
        Counts.

    Raises
    ------
    UsageError
        If an argument is wrong, there are fewer samples than shards, or the output holds something else.
    NotFoundError
        If the cache does not exist, or a video does not have what the format needs.
    DamageError
        If the cache cannot be read.
    MediaError
        If the packets of a source cannot be copied.
    LockedError
        If another process exports into the output.
    StorageError, StoppedError
        If the disk takes no data, or a signal stopped it. The same call resumes.
    """
    check_choice(FORMATS, to=to)
    check_output("output", output)
    check_at_least(1, shards=shards)
    form, folder = FORMATS[to], Path(output).absolute()
    frames = frames or form.frames[0]
    if frames not in form.frames:
        raise UsageError(f"frames: got {frames!r}, expected {' or '.join(form.frames)} for the format {to}")
    if shards > 1 and isinstance(form, _ByItem):
        raise UsageError(f"shards: got {shards}, expected 1 for the format {to}, which has no shards")
    if stride > 1 and clip is None:
        raise UsageError(f"stride: got {stride} without a clip, expected 1. Add clip.")
    if form.package is not None and find_spec(form.package) is None:
        raise UsageError(f"to: got {to}, which needs {form.package}. Run: pip install 'chordcache[formats]'")
    with Cache(cache) as opened, stop_signals(resumes=True):
        items = Items(opened, videos, where=where, clip=clip, stride=stride, frames=frames, roots=roots or {})
        if not len(items):
            raise UsageError(f"clip: got {clip}, expected at most {items.most_frames} frames, as the longest video has")
        if len(items) < shards:
            raise UsageError(f"shards: got {shards}, expected at most the number of samples, {len(items)}")
        names = set(opener.list_folder(folder)) if folder.is_dir() else set()
        if names and names.isdisjoint({".lock", PLAN_FILE}):  # before a lock is left in it
            raise _holds_something_else(folder)
        with locked(folder), atomic.writing_to(folder):
            plan = _Plan(to, frames, opened.catalog.digest, items.digest, clip, stride, shards)
            _check_other_export(folder, plan)
            if isinstance(form, _ByItem):
                num_dropped, files = 0, _files_of_items(form, items, progress)
            else:
                num_dropped, files = len(items) % shards, _shards(form, items, shards, progress)
            are_new = [_write(folder, plan, name, write) for name, write in files]
            _publish(folder, plan.replace(is_complete=True))
            atomic.remove_partials(folder)
    num_samples = len(items) - num_dropped
    return ExportSummary(num_samples, len(are_new), are_new.count(False), num_dropped, items.num_too_short)


def _check_other_export(folder: Path, plan: _Plan) -> None:
    """Raise ``UsageError`` if a folder has anything but the same export."""
    atomic.remove_partials(folder)
    names = set(opener.list_folder(folder, ".")) - {".lock"}
    earlier = read_sealed(folder, PLAN_FILE, _Plan, "an export") if PLAN_FILE in names else None
    if names if earlier is None else earlier.replace(is_complete=False) != plan:
        raise _holds_something_else(folder)


def _holds_something_else(folder: Path) -> UsageError:
    return UsageError(
        f"output: got '{printable(folder)}', which holds something else, expected a new folder, or an interrupted "
        "export of the same cache with the same options. Name another folder."
    )


def _publish(folder: Path, plan: _Plan) -> None:
    atomic.publish_text(folder, PLAN_FILE, seal(plan) + "\n")


def _files_of_items(form: _ByItem, items: Items, progress: bool) -> Iterator[tuple[str, Callable[[Path], None]]]:
    with terminal.progress_bar(len(items), "sample", shown=progress) as bar:
        for number in range(len(items)):
            yield from form.files(items, items[number])
            bar.update()


def _shards(
    form: _Sharded, items: Items, num_shards: int, progress: bool
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    order = np.arange(len(items))
    if form.is_shuffled:
        order = np.random.default_rng(_ORDER_SEED).permutation(order)
    per_shard, digits = len(items) // num_shards, max(6, len(str(num_shards - 1)))
    with terminal.progress_bar(num_shards, "shard", shown=progress) as bar:
        for shard in range(num_shards):
            numbers = order[shard * per_shard : (shard + 1) * per_shard].tolist()
            yield f"{shard:0{digits}}{form.suffix}", partial(form.write, items, numbers)
            bar.update()


def _write(folder: Path, plan: _Plan, name: str, write: Callable[[Path], None]) -> bool:
    """Write a file or a folder, which appears whole, after the plan. Return False if it is there already."""
    if opener.exists(folder, name):
        return False
    with atomic.partial_folder(folder) as place, atomic.no_space_as_error(folder / name):
        write(place / "new")
        if not opener.exists(folder, PLAN_FILE):  # not before: what the format needs may be missing
            _publish(folder, plan)
        atomic.publish_all(folder, {place / "new": name})
    return True
