"""``doctor``: settings of this machine that make a build or a training job slow or end it, and what can be built."""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chordcache import __version__
from chordcache.amounts import counted, human_bytes
from chordcache.config.config import Config, config_sections
from chordcache.config.presets import preset_names, preset_summary
from chordcache.engine import pool
from chordcache.engine.choice import check_jobs
from chordcache.engine.limits import Limits
from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.features.built_in import BUILT_IN
from chordcache.features.registry import entry_points, extractor_class
from chordcache.media.jpeg import part_decoder
from chordcache.media.versions import library_versions, opencv_packages

_MIN_SHM_BYTES = 1 << 29
"""Two batches of 16 clips of 16 frames of 224 x 224 pixels for each of six workers of a ``DataLoader``"""

_LIMITS = (
    ("open files", resource.RLIMIT_NOFILE,
     "PyTorch passes each tensor of a batch from a worker process as an open file.", "ulimit -n 65536"),
    ("processes", resource.RLIMIT_NPROC,
     "Each thread of each process of this user counts. A worker that cannot start ends the build.", "ulimit -u 65536"),
)  # fmt: skip
"""Name of a limit, its number, reason and command. 1024 open files, the usual limit, are too few"""

_WORKER_BYTES = 1 << 29
"""Memory of a worker that makes all features of a 720p video, 295 MiB in docs/development/performance-building.md"""

_MIN_FREE_BYTES, _MIN_FREE_INODES = 10 << 30, 100_000

_DISKS = (
    ("nfs nfs4 cifs smb3 smbfs", "warning", "Writing over a network is not supported: locks and renames differ.",
     "chordcache build -o LOCAL_FOLDER, then copy the folder with rsync -a"),
    ("fuse", "warning", "Random reads through FUSE are slow, and some of its file systems have no locks.",
     "rsync -a CACHE LOCAL_FOLDER, and read the copy"),
    ("overlay aufs", "note", "This is the layer of a container. It is lost with the container, and often small.",
     "docker run -v FOLDER:/cache ... to mount a disk"),
    ("tmpfs ramfs", "note", "This is memory. It is lost at a restart, and counts against the container's memory.",
     "chordcache build -o FOLDER on a disk, if the cache is to stay"),
)  # fmt: skip
"""Kinds of file systems, severity, reason and command"""


@dataclass(frozen=True)
class Finding:
    """One thing that ``diagnose`` looked at."""

    name: str
    severity: str
    """"ok", "note" or "warning" """
    what: str
    why: str = ""
    action: str = ""
    """Command to type. It and the reason are empty if it is ok"""


def diagnose(path: str | Path = ".", *, jobs: int | None = None, root: Path = Path("/")) -> tuple[Finding, ...]:
    """Look at the settings of this machine that matter for a cache, the features and the presets. Change nothing.

    ``path`` is the folder of the cache, or the folder in which it will be made. ``NotFoundError`` if it does not exist.
    ``jobs`` is the number of worker processes, by default one for each processor. ``root`` is read instead of /, for
    ``proc``, ``sys`` and ``dev/shm``. Returns all findings, also those without a problem.
    """
    check_jobs(jobs)
    if not os.path.lexists(path):
        raise NotFoundError(f"path: got '{printable(path)}', which does not exist, expected the folder of a cache")
    presets = [Finding(f"preset {name}", "ok", preset_summary(name)) for name in preset_names()]
    return (*_workers(jobs, root), *_limits(root), *_disk(Path(path), root), *_packages(), *_features(), *presets)


def _checked(is_bad: bool, name: str, what: str, why: str, action: str, severity: str = "warning") -> Finding:
    return Finding(name, severity, what, why, action) if is_bad else Finding(name, "ok", what)


def _workers(jobs: int | None, root: Path) -> Iterator[Finding]:
    num_cpus, workers = pool.default_jobs(), pool.default_jobs(jobs)
    what = f"{counted(workers, 'worker')}, {num_cpus} of {counted(os.cpu_count() or 1, 'processor')}"
    why = "More workers than processors wait for each other, and each needs memory."
    yield _checked(workers > num_cpus, "processors", what, why, f"chordcache build -j {num_cpus}")
    memory, of_file = min(_memory_limits(root), default=0), Limits.memory_bytes or 0
    what = f"{human_bytes(memory)} for {counted(workers, 'worker')}"
    if not memory:
        yield Finding("memory", "note", "not known", "The number of workers that fit is not known.", "free -h")
    elif memory < workers * _WORKER_BYTES:
        why = f"A worker needs up to {human_bytes(_WORKER_BYTES)}. The kernel kills it otherwise."
        yield Finding("memory", "warning", what, why, f"chordcache build -j {max(1, memory // _WORKER_BYTES)}")
    else:
        why, mib = f"One file may take up to {human_bytes(of_file)} in each worker.", max(256, memory // workers >> 20)
        yield _checked(memory < workers * of_file, "memory", what, why, f"chordcache build --file-memory {mib}", "note")


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield the memory that programs can have, and the limits of the control groups of this process [bytes]."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        top, name = root / "sys/fs/cgroup", "memory.max"
        if "memory" in controllers.split(","):  # version 1
            top, name = top / "memory", "memory.limit_in_bytes"
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # In a container, the path may be that of the host. Then only the top is there, and is the container's
        for depth in range(len(parts) + 1):
            yield from (int(text) for text in _lines(top.joinpath(*parts[:depth], name)) if text.isdigit())


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return []


def _limits(root: Path) -> Iterator[Finding]:
    why = "A DataLoader passes batches through it. Its workers die with 'Bus error' if it is full. ClipLoader's do not."
    action = "docker run --shm-size=8g ..., or mount -o remount,size=8G /dev/shm"
    folder = root / "dev/shm"
    total, _, free = shutil.disk_usage(folder) if folder.is_dir() else (0, 0, 0)
    what = f"{human_bytes(free)} free of {human_bytes(total)}" if total else "does not exist"
    yield _checked(free < _MIN_SHM_BYTES, "/dev/shm", what, why, action)
    for name, number, why, action in _LIMITS:
        value = resource.getrlimit(number)[0]
        what = "no limit" if value == resource.RLIM_INFINITY else f"at most {value}"
        yield _checked(0 <= value < 4096, name, what, why, action)  # no limit is -1


def _disk(folder: Path, root: Path) -> Iterator[Finding]:
    kind, point = _mount_of(folder, root)
    is_kind = (row[1:] for row in _DISKS if kind.split(".")[0] in row[0].split())
    severity, why, action = next(is_kind, ("ok", "", ""))
    yield Finding("file system", severity, f"{kind or 'not known'} at {printable(point)}", why, action)
    status, (total, _, free) = os.statvfs(folder), shutil.disk_usage(folder)
    what = f"{human_bytes(free)} free of {human_bytes(total)}" if total else "not stated by the file system"
    why = "A build ends with exit code 12 if the disk is full. 'chordcache build --dry-run' estimates its size."
    yield _checked(total > 0 and free < _MIN_FREE_BYTES, "free space", what, why, f"df -h {printable(folder)}")
    what = f"{status.f_favail} free of {status.f_files}" if status.f_files else "no limit"
    why = "Each video is a sidecar and one file for each feature. A build ends with exit code 12 without inodes."
    is_bad = status.f_files > 0 and status.f_favail < _MIN_FREE_INODES
    yield _checked(is_bad, "inodes", what, why, f"df -i {printable(folder)}")


def _mount_of(folder: Path, root: Path) -> tuple[str, str]:
    """Return the kind and the folder of the file system that a folder lies on, see proc_pid_mountinfo(5)."""
    real, mount = os.path.realpath(folder), ("", "/")
    for line in _lines(root / "proc/self/mountinfo"):
        fields, _, kind = line.partition(" - ")
        escaped = fields.split(" ")[4]  # a space is written as an octal number
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), escaped)
        is_above = real == point or real.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(mount[1]):  # the last mount hides those below it
            mount = kind.split(" ")[0], point
    return mount


def _packages() -> Iterator[Finding]:
    versions = {"chordcache": __version__, **library_versions()}
    yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))
    is_missing = part_decoder() is None
    what = "version 2, or not installed" if is_missing else "version 3"
    why = "Version 3 decodes only the part of a JPEG in the crop. A batch then takes 11 to 14 % less CPU time."
    action = "pip install 'chordcache[turbojpeg]', or conda install -c conda-forge 'libjpeg-turbo>=3'"
    yield _checked(is_missing, "libturbojpeg", what, why, action, "note")
    names = [package.split()[0] for package in opencv_packages()]
    if names:
        why = "Each overwrites the files of the other. Which one works depends on the order of installation."
        action = f"pip uninstall -y {' '.join(names)} && pip install {max(names, key=lambda name: 'headless' in name)}"
        yield _checked(len(names) > 1, "OpenCV", ", ".join(opencv_packages()), why, action)
    else:
        why = "Optical flow, and clips that are cut and scaled, need OpenCV."
        yield Finding("OpenCV", "note", "not installed", why, "pip install 'chordcache[build]'")


def _features() -> Iterator[Finding]:
    """Yield the built-in extractors, and those that installed packages name as entry points."""
    for name, section in config_sections().items():
        cls = extractor_class(name, BUILT_IN[name].extractor)
        missing = cls.missing_requirement(cls.arguments(section(), Config().picture)) or ""
        why, _, action = missing.partition("; run: ")
        what = (cls.__doc__ or "").partition("\n")[0]
        yield _checked(bool(why), f"feature {name}", what, why, action or f"set features.{name} in the config", "note")
    for entry in entry_points():
        why, what = "", f"extractor: {entry.value}"
        try:
            extractor_class(entry.name, entry.value)
        except UsageError as error:
            why = str(error)
        yield _checked(bool(why), f"feature {entry.name}", what, why, "correct the package, or uninstall it", "note")
