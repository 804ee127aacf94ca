"""The join of the parts of a build by ``merge``: their check, their lists, and their removal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np

from chordcache.building.existing_cache import index_of, unnamed_files
from chordcache.building.parts import part_settings
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.index.index_files import cached_index
from chordcache.records import RunSummary
from chordcache.storage.cache_header import Header, read_header
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.lock import locked_for_reading
from chordcache.storage.opener import list_folder, remove
from chordcache.storage.part import Part
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.run_log import append_run, read_runs


def check_parts(headers: Mapping[Path, Header]) -> None:
    """Raise ``UsageError`` unless some caches are all the parts of a build, and hold nothing else."""
    numbers: dict[int, Path] = {}
    num_parts = 0
    for folder, header in headers.items():
        if header.part is None:
            what = "expected a cache that 'build --part I/N' made. Merge it without --move."
            raise UsageError(f"caches: got '{printable(folder)}', which is not a part, {what}")
        part = Part.parse(header.part.name)
        num_parts = max(num_parts, part.num_parts)
        if (other := numbers.setdefault(part.number, folder)) != folder:
            what = f"in '{printable(other)}' and in '{printable(folder)}', expected one. Leave one out."
            raise UsageError(f"caches: got part {part.number} {what}")
        if header.index_digests[0] != header.part.index:
            what = f"with another order of its index. Run its 'chordcache build --part {header.part.name}' again."
            raise UsageError(f"caches: got '{printable(folder)}' {what}")
    if missing := [number for number in range(1, num_parts + 1) if number not in numbers]:
        raise UsageError(
            f"caches: got {len(numbers)} of {num_parts} parts, expected all. Build and name those that are missing: "
            f"{_ranges(missing)}."
        )
    for folder in headers:
        if foreign := unnamed_files(folder)[1]:
            what = f"'{printable(foreign[0])}' in '{printable(folder)}', which is not a file of a cache"
            raise UsageError(f"caches: got {what}, expected parts only. Move it away.")


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as an argument of ``sbatch --array``, such as "2,5-7"."""
    runs = ([n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def shared_settings(header: Header) -> dict[str, str]:
    """Return the name and value of all in which the parts of a build are equal."""
    num_parts = Part.parse(header.part.name).num_parts if header.part else 0
    return {**part_settings(header), "part": f"I/{num_parts}"}


def order_index(path: Path, headers: Iterable[Header]) -> None:
    """Write the joined index of parts, in which one follows the other, in the order of the whole index."""
    rows = np.array([row for header in headers if header.part for row in header.part.rows], np.int64)
    joined = cached_index(path.parent, path.name)
    if len(rows) != len(joined):
        raise DamageError(
            f"the indexes of the parts have {len(joined)} records, expected {len(rows)}. Build them again."
        )
    with joined.open() as file, joined.writer(path) as writer:
        offsets = [offset for offset, _ in joined.located(file)]
        for number in np.argsort(rows).tolist():
            writer.write(joined.at(file, offsets[number]))


def join_runs(folders: Iterable[Path], output: Path) -> None:
    """Append the runs of parts to the log of the cache, by their start, once. Those behind damage are left out."""
    runs = []
    for folder in (output, *folders):
        with suppress(DamageError):
            runs += [(run.started, run.elapsed_seconds, folder, run) for run in read_runs(folder)]
    known = {run[:2] for run in runs if run[2] == output}
    for run in sorted(runs, key=lambda run: run[:2]):
        if run[:2] not in known:
            known.add(run[:2])
            append_run(output, run[3])


def left_to_join(folders: Sequence[Path], output: Path) -> list[Path]:
    """Return the parts that are still there: a join that was killed may have removed some."""
    try:
        given, written = read_header(output).index_digests
    except (NotFoundError, DamageError):
        return list(folders)
    if not given or written:  # a build has written it since
        return list(folders)
    for folder in (left := [*folders]):
        with suppress(FileNotFoundError):
            if set(list_folder(folder)) - {".lock"}:
                continue
            remove_parts([folder])
        left = [other for other in left if other != folder]
    return left


def joined_before(folders: Iterable[Path], output: Path) -> RunSummary | None:
    """Return the counts of a cache that has all videos of some parts, since their join was killed after its end."""
    try:
        header = read_header(output)
    except (NotFoundError, DamageError):
        return None
    with locked_for_reading(output):
        written = Sidecars(output)
        for folder in folders:
            part, sidecars = read_header(folder).part, Sidecars(folder)
            if part is None or (part.index, "") != header.index_digests:
                return None
            for key in sidecars.sorted_keys():
                sidecar, joined = sidecars.read_or_none(key), written.read_or_none(key)
                if sidecar is None or joined is None or sidecar != joined:
                    return None
        num_failed, num_inputs = sum(1 for _ in Quarantine(output, {})), len(index_of(output))
    return RunSummary(num_inputs, 0, num_inputs - num_failed, num_failed)


def remove_parts(folders: Iterable[Path]) -> None:
    """Remove parts that are joined. The header of each goes last, so that the same command completes it."""
    for folder in folders:
        for name in list_folder(folder):
            if name not in ("chordcache.json", ".lock"):
                if (folder / name).is_dir():
                    shutil.rmtree(folder / name)
                else:
                    remove(folder, name)
        for name in ("chordcache.json", ".lock"):
            with suppress(FileNotFoundError):
                remove(folder, name)
        os.rmdir(folder)
