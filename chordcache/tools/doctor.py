"""``doctor``: settings of this machine that make a build or a training job slow or end it, and what can be built."""

from __future__ import annotations

import inspect
import os
import re
import resource
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chordcache import __version__
from chordcache.amounts import counted, human_bytes
from chordcache.config.config import config_from_json, config_sections
from chordcache.config.presets import preset_names, preset_summary
from chordcache.engine import pool
from chordcache.engine.choice import check_jobs
from chordcache.engine.limits import Limits
from chordcache.errors import NotFoundError, UsageError, describe, printable
from chordcache.features.base import Extractor
from chordcache.features.built_in import BUILT_IN
from chordcache.features.registry import entry_points, extractor_class
from chordcache.media.jpeg import part_decoder
from chordcache.media.versions import library_versions, opencv_packages

_MIN_SHM_BYTES = 1 << 29
"""Two batches of 16 clips of 16 frames of 224 x 224 pixels for each of six workers of a ``DataLoader``"""

_LIMITS = (
    ("open files", resource.RLIMIT_NOFILE, 4096,
     "PyTorch passes each tensor of a batch from a worker process as an open file.", "ulimit -n 65536"),
    ("processes", resource.RLIMIT_NPROC, 4096,
     "Each thread of each process of this user counts. A worker that cannot start ends the build.", "ulimit -u 65536"),
)  # fmt: skip
"""Name of a limit, its number, least value, reason and command. 1024 open files, the usual limit, are too few"""

_WORKER_BYTES = 1 << 29
"""Memory of a worker that makes all features of a 720p video, 295 MiB in docs/development/performance-building.md"""

_MIN_FREE_BYTES, _MIN_FREE_INODES = 10 << 30, 100_000

_COPY = "chordcache build -o LOCAL_FOLDER, then copy the folder with rsync -a"
_DISKS: Mapping[str, tuple[str, str, str]] = {
    **dict.fromkeys(("nfs", "nfs4"), (
        "warning", "Writing over NFS is not supported, because its locks and renames are not those of a local disk.",
        _COPY,
    )),
    **dict.fromkeys(("cifs", "smb3", "smbfs"), (
        "warning", "Locks and memory maps of a Windows share are not those of a local disk.", _COPY,
    )),
    "fuse": (
        "warning", "Random reads through FUSE are slow, and some of its file systems have no locks.",
        "rsync -a CACHE LOCAL_FOLDER, and read the copy",
    ),
    **dict.fromkeys(("overlay", "aufs"), (
        "note", "This is the layer of a container. It is lost with the container, and often small.",
        "docker run -v FOLDER:/cache ... to mount a disk",
    )),
    **dict.fromkeys(("tmpfs", "ramfs"), (
        "note", "This is memory. It is lost at a restart, and counts against the limit of the container's memory.",
        "chordcache build -o FOLDER on a disk, if the cache is to stay",
    )),
}  # fmt: skip
"""Kind of a file system to severity, reason and command"""


@dataclass(frozen=True)
class Finding:
    """One thing that ``diagnose`` looked at."""

    name: str
    severity: str
    """"ok", "note" or "warning" """
    what: str
    """The state of this machine"""
    why: str = ""
    """Reason why it matters. Empty if it is ok"""
    action: str = ""
    """Command to type. Empty if it is ok"""


def diagnose(
    path: str | os.PathLike[str] = ".", *, jobs: int | None = None, root: Path = Path("/")
) -> tuple[Finding, ...]:
    """Look at the settings of this machine that matter for a cache, the features and the presets. Change nothing.

    Parameters
    ----------
    path : str or PathLike
        Folder of the cache, or the folder in which it will be made. ``NotFoundError`` if it does not exist.
    jobs : int, optional
        Number of worker processes that will run, by default one for each processor.
    root : Path
        Folder to read instead of /, for ``proc``, ``sys`` and ``dev/shm``.

    Returns
    -------
    tuple of Finding
        All findings, also those without a problem.
    """
    check_jobs(jobs)
    if not os.path.lexists(path):
        raise NotFoundError(
            f"path: got '{printable(path)}', which does not exist, expected a folder. Name the folder of the cache."
        )
    presets = [Finding(f"preset {name}", "ok", preset_summary(name)) for name in preset_names()]
    machine = (_workers(jobs, root), _shared_memory(root), _limits(), _disk(Path(path), root))
    return tuple(finding for group in (*machine, _packages(), _features(), presets) for finding in group)


def _checked(is_bad: bool, name: str, what: str, why: str, action: str, severity: str = "warning") -> Finding:
    return Finding(name, severity, what, why, action) if is_bad else Finding(name, "ok", what)


def _workers(jobs: int | None, root: Path) -> Iterator[Finding]:
    num_cpus, workers = pool.default_jobs(), pool.default_jobs(jobs)
    of_workers = counted(workers, "worker")
    what = f"{of_workers}, {num_cpus} of {counted(os.cpu_count() or 1, 'processor')}"
    why = "More workers than processors wait for each other, and each needs memory."
    yield _checked(workers > num_cpus, "processors", what, why, f"chordcache build -j {num_cpus}")
    known = [*_memory_limits(root)]
    if not known:
        yield Finding("memory", "note", "not known", "The number of workers that fit is not known.", "free -h")
        return
    memory, of_file = min(known), Limits.memory_bytes or 0
    what = f"{human_bytes(memory)} for {of_workers}"
    if memory < workers * _WORKER_BYTES:
        why = f"A worker needs up to {human_bytes(_WORKER_BYTES)}. The kernel kills it otherwise."
        yield Finding("memory", "warning", what, why, f"chordcache build -j {max(1, memory // _WORKER_BYTES)}")
    elif memory < workers * of_file:
        why = f"One file may take up to {human_bytes(of_file)} in each worker."
        mib = max(256, (memory // workers) >> 20)
        yield Finding("memory", "note", what, why, f"chordcache build --file-memory {mib}")
    else:
        yield Finding("memory", "ok", what)


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


def _shared_memory(root: Path) -> Iterator[Finding]:
    why = (
        "The worker processes of a DataLoader pass batches through it, and die with 'Bus error' if it is full. "
        "ClipLoader does not need it."
    )
    action = "docker run --shm-size=8g ..., or mount -o remount,size=8G /dev/shm"
    try:
        usage = shutil.disk_usage(root / "dev/shm")
    except OSError:
        yield Finding("/dev/shm", "warning", "does not exist", why, action)
    else:
        what = f"{human_bytes(usage.free)} free of {human_bytes(usage.total)}"
        yield _checked(usage.free < _MIN_SHM_BYTES, "/dev/shm", what, why, action)


def _limits() -> Iterator[Finding]:
    for name, number, least, why, action in _LIMITS:
        value = resource.getrlimit(number)[0]
        is_unlimited = value == resource.RLIM_INFINITY
        what = "no limit" if is_unlimited else f"at most {value}"
        yield _checked(not is_unlimited and value < least, name, what, why, action)


def _disk(folder: Path, root: Path) -> Iterator[Finding]:
    kind, point = _mount_of(folder, root)
    severity, why, action = _DISKS.get(kind.split(".")[0], ("ok", "", ""))
    yield Finding("file system", severity, f"{kind or 'not known'} at {printable(point)}", why, action)
    status = os.statvfs(folder)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    what = f"{human_bytes(free)} free of {human_bytes(total)}" if total else "not stated by the file system"
    why = "A build ends with exit code 12 if the disk is full. 'chordcache build --dry-run' estimates its size."
    yield _checked(total > 0 and free < _MIN_FREE_BYTES, "free space", what, why, f"df -h {printable(folder)}")
    num_free = status.f_favail
    what = f"{num_free} free of {status.f_files}" if status.f_files else "no limit"
    why = "Each video is a sidecar and one file for each feature. A build ends with exit code 12 without inodes."
    is_bad = status.f_files > 0 and num_free < _MIN_FREE_INODES
    yield _checked(is_bad, "inodes", what, why, f"df -i {printable(folder)}")


def _mount_of(folder: Path, root: Path) -> tuple[str, str]:
    """Return the kind and the folder of the file system that a folder lies on, see proc_pid_mountinfo(5)."""
    real, mount = os.path.realpath(folder), ("", "/")
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        # A space is written as an octal number
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]) if len(fields) > 4 else ""
        is_above = point and (real == point or real.startswith(point.rstrip("/") + "/"))
        if is_above and len(point) >= len(mount[1]):  # the last mount hides those below it
            mount = right.split(" ")[0], point
    return mount


def _packages() -> Iterator[Finding]:
    versions = {"chordcache": __version__, **library_versions()}
    yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))
    is_missing = part_decoder() is None
    what = "version 2, or not installed" if is_missing else "version 3"
    why = "Version 3 decodes only the part of a JPEG in the crop. A batch then takes 11 to 14 % less CPU time."
    action = "pip install 'chordcache[turbojpeg]', or conda install -c conda-forge 'libjpeg-turbo>=3'"
    yield _checked(is_missing, "libturbojpeg", what, why, action, "note")
    packages = opencv_packages()
    if not packages:
        why = "Optical flow, and clips that are cut and scaled, need OpenCV."
        yield Finding("OpenCV", "note", "not installed", why, "pip install 'chordcache[build]'")
        return
    names = [package.split()[0] for package in packages]
    keep = next((name for name in names if "headless" in name), names[0])
    why = "Each overwrites the files of the other. Which one works depends on the order of installation."
    action = f"pip uninstall -y {' '.join(names)} && pip install {keep}"
    yield _checked(len(packages) > 1, "OpenCV", ", ".join(packages), why, action)


def _features() -> Iterator[Finding]:
    """Yield the built-in extractors, and those that installed packages name as entry points."""
    for name, section in config_sections().items():
        config = config_from_json({"features": {name: {}}} if name != "frames" else {})
        cls = extractor_class(name, BUILT_IN[name].extractor)
        yield _feature(name, cls, cls.missing_requirement(cls.arguments(section(), config.picture)))
    for entry in entry_points():
        try:
            cls = extractor_class(entry.name, entry.value)
            parameters = inspect.signature(cls).parameters.values()
            known = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
            yield _feature(f"{entry.name}, {entry.value}", cls, cls.missing_requirement(known))
        except Exception as error:  # noqa: BLE001 # item boundary: a plug-in may raise anything
            why = str(error) if isinstance(error, UsageError) else describe(error)
            yield Finding(f"feature {entry.name}", "note", entry.value, why, "correct the package, or uninstall it")


def _feature(name: str, cls: type[Extractor], missing: str | None) -> Finding:
    name, _, place = name.partition(", ")
    what = f"{(inspect.getdoc(cls) or '').partition(chr(10))[0].strip()}{place and f' extractor: {place}'}"
    if missing is None:
        return Finding(f"feature {name}", "ok", what)
    why, _, action = missing.partition("; run: ")
    return Finding(f"feature {name}", "note", what, why, action or f"set features.{name} in the config")
