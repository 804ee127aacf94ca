"""``doctor``: looks for settings of this machine that make a build or a training job slow, or end it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from chordcache import __version__
from chordcache.amounts import counted
from chordcache.engine.choice import check_jobs, num_workers
from chordcache.engine.limits import Limits
from chordcache.engine.worker import ONE_THREAD
from chordcache.errors import NotFoundError, printable
from chordcache.media.versions import library_versions, opencv_packages
from chordcache.tools.system import Mount, System

_GIB = 1 << 30

_MIN_SHM_BYTES = 1 << 29
"""Two batches of 16 clips of 16 frames of 224 x 224 pixels for each of six workers of a ``DataLoader``."""

_LIMITS = (
    ("open files", 4096, "PyTorch passes each tensor of a batch from a worker process as an open file.",
     "ulimit -n 65536"),
    ("processes", 4096, "Each thread of each process of this user counts. A worker that cannot start ends the build.",
     "ulimit -u 65536"),
)  # fmt: skip
"""Limits of a process: name, least value, reason and command. 1024 open files, the usual limit, are too few. A training
process of PyTorch starts some hundred threads on a large machine"""

_WORKER_BYTES = 1 << 29
"""Memory of a worker that makes all features of a 720p video, 295 MiB in docs/development/performance-building.md"""

_MAX_READ_AHEAD_KIB = 1024
"""A clip of 16 frames has 200 to 500 KiB. A longer read-ahead reads more than the clip."""

_MIN_FREE_BYTES = 10 * _GIB
_MIN_FREE_INODES = 100_000

_DISKS: Mapping[str, tuple[str, str, str]] = {
    "nfs": (
        "warning",
        "Writing over NFS is not supported, because its locks and renames are not those of a local disk.",
        "chordcache build -o LOCAL_FOLDER, then copy the folder with rsync -a",
    ),
    "smb": (
        "warning",
        "Locks and memory maps of a Windows share are not those of a local disk.",
        "chordcache build -o LOCAL_FOLDER, then copy the folder with rsync -a",
    ),
    "fuse": (
        "warning",
        "Random reads through FUSE are slow, and some of its file systems have no locks and no memory maps.",
        "rsync -a CACHE LOCAL_FOLDER, and read the copy",
    ),
    "overlay": (
        "note",
        "This is the layer of a container. It is lost with the container, and often small.",
        "docker run -v FOLDER:/cache ... to mount a disk",
    ),
    "tmpfs": (
        "note",
        "This is memory. It is lost at a restart, and counts against the limit of the container's memory.",
        "chordcache build -o FOLDER on a disk, if the cache is to stay",
    ),
}
_KINDS = {
    "nfs4": "nfs",
    "cifs": "smb",
    "smb3": "smb",
    "smbfs": "smb",
    "fuseblk": "",
    "ramfs": "tmpfs",
    "aufs": "overlay",
}


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


@dataclass(frozen=True)
class _Place:
    """The place to look at: a folder on a machine, and the number of workers there."""

    folder: Path
    jobs: int | None
    system: System = field(default_factory=System)

    @cached_property
    def usable_cpus(self) -> float:
        """Number of processors that this process may use."""
        quota = self.system.cgroup_cpus()
        num_cpus = float(len(os.sched_getaffinity(0)))
        return num_cpus if quota is None else min(num_cpus, quota)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return num_workers(self.jobs, int(self.usable_cpus))

    @cached_property
    def mount(self) -> Mount | None:
        """Mount of the folder."""
        return self.system.mount_of(self.folder)


def diagnose(
    path: str | os.PathLike[str] = ".", *, jobs: int | None = None, system: System | None = None
) -> tuple[Finding, ...]:
    """Look at the settings of this machine that matter for a cache. Nothing is changed.

    Parameters
    ----------
    path : str or PathLike
        Folder of the cache, or the folder in which it will be made. ``NotFoundError`` if it does not exist.
    jobs : int, optional
        Number of worker processes that will run, by default one for each processor.
    system : System, optional
        Folders to read instead of /proc, /sys and /dev/shm.

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
    place = _Place(Path(path), jobs, system or System())
    return tuple(finding for check in _CHECKS for finding in check(place))


def _checked(is_bad: bool, name: str, what: str, why: str, action: str, severity: str = "warning") -> Finding:
    return Finding(name, severity, what, why, action) if is_bad else Finding(name, "ok", what)


def _cpus(place: _Place) -> Iterator[Finding]:
    what = f"{counted(place.workers, 'worker')}, {place.usable_cpus:g} of {counted(os.cpu_count() or 1, 'processor')}"
    why = "More workers than processors wait for each other, and each needs memory."
    num_cpus = max(1.0, place.usable_cpus)
    yield _checked(place.workers > num_cpus, "processors", what, why, f"chordcache build -j {int(num_cpus)}")


def _threads(place: _Place) -> Iterator[Finding]:
    name = next(iter(ONE_THREAD))
    value = os.environ.get(name, "")
    why = (
        "The workers of chordcache use one thread each. In the workers of a DataLoader, NumPy and other libraries "
        "start one for each processor, and these wait for each other."
    )
    if value == "1" or place.usable_cpus < 2:
        yield Finding("threads", "ok", f"{name}={value}" if value else "one processor")
    else:
        yield Finding("threads", "note", f"{name} is {value or 'not set'}", why, f"export {name}=1")


def _container(place: _Place) -> Iterator[Finding]:
    cpus, memory = place.system.cgroup_cpus(), place.system.cgroup_memory_bytes()
    if not place.system.has_cgroups():
        yield Finding("container", "ok", "the kernel names no control group: no limits are known")
        return
    limits = [f"{cpus:g} processors"] if cpus is not None else []
    limits += [f"{_size(memory)} of memory"] if memory is not None else []
    yield Finding("container", "ok", f"limited to {' and '.join(limits)}" if limits else "no limit of CPU or memory")


def _memory(place: _Place) -> Iterator[Finding]:
    known = (place.system.memory_bytes(), place.system.cgroup_memory_bytes())
    memory = min((limit for limit in known if limit is not None), default=None)
    if memory is None:
        yield Finding("memory", "note", "not known", "The number of workers that fit cannot be checked.", "free -h")
        return
    what = f"{_size(memory)} for {counted(place.workers, 'worker')}"
    if memory < place.workers * _WORKER_BYTES:
        why = f"A worker needs up to {_size(_WORKER_BYTES)}, and for 8K video 1 GiB. The kernel kills it otherwise."
        action = f"chordcache build -j {max(1, memory // _WORKER_BYTES)}"
        yield Finding("memory", "warning", what, why, action)
    elif memory < place.workers * (Limits.memory_bytes or 0):
        why = f"One file may take up to {_size(Limits.memory_bytes or 0)} in each worker."
        mib = max(256, (memory // place.workers) >> 20)
        yield Finding("memory", "note", what, why, f"chordcache build --file-memory {mib}")
    else:
        yield Finding("memory", "ok", what)


def _shared_memory(place: _Place) -> Iterator[Finding]:
    why = (
        "The worker processes of a DataLoader pass batches through it, and die with 'Bus error' if it is full. "
        "ClipLoader does not need it."
    )
    action = "docker run --shm-size=8g ..., or mount -o remount,size=8G /dev/shm"
    try:
        status = os.statvfs(place.system.shm)
    except OSError:
        yield Finding("/dev/shm", "warning", "does not exist", why, action)
        return
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    what = f"{_size(free)} free of {_size(total)}"
    yield _checked(free < _MIN_SHM_BYTES, "/dev/shm", what, why, action)


def _limits(place: _Place) -> Iterator[Finding]:
    for name, least, why, action in _LIMITS:
        value = place.system.limit(f"Max {name}")
        if value is None:
            yield Finding(name, "note", "the limit is not known", why, action)
        else:
            what = "no limit" if value == float("inf") else f"at most {value:.0f}"
            yield _checked(value < least, name, what, why, action)


def _disk(place: _Place) -> Iterator[Finding]:
    if place.mount is None:
        why = "The file system cannot be checked."
        yield Finding("file system", "note", "not known", why, f"df -T {printable(place.folder)}")
        return
    kind = place.mount.kind
    what = f"{kind} at {printable(place.mount.point)}"
    family = _KINDS.get(kind, kind.split(".")[0])
    severity, why, action = _DISKS.get(family, ("ok", "", ""))
    yield Finding("file system", severity, what, why, action)


def _read_ahead(place: _Place) -> Iterator[Finding]:
    file = place.system.read_ahead_file(place.mount) if place.mount else None
    if file is None:
        yield Finding("read-ahead", "ok", "not set for this file system")
        return
    kib = place.system.number(file) or 0
    why = "A random clip is smaller. The disk reads bytes that the training job does not use."
    yield _checked(
        kib > _MAX_READ_AHEAD_KIB, "read-ahead", f"{kib} KiB", why, f"echo 128 | sudo tee {file}", severity="note"
    )


def _space(place: _Place) -> Iterator[Finding]:
    status = os.statvfs(place.folder)
    free = status.f_bavail * status.f_frsize
    why = "A build ends with exit code 12 if the disk is full. 'chordcache plan' estimates the size of a cache."
    action = f"df -h {printable(place.folder)}"
    if not status.f_blocks:
        yield Finding("free space", "ok", "the file system does not state its size")
    else:
        what = f"{_size(free)} free of {_size(status.f_blocks * status.f_frsize)}"
        yield _checked(free < _MIN_FREE_BYTES, "free space", what, why, action)
    why = "Each video is a sidecar and one file for each feature. A build ends with exit code 12 without inodes."
    what = f"{status.f_favail} free of {status.f_files}" if status.f_files else "no limit"
    has_few = status.f_files > 0 and status.f_favail < _MIN_FREE_INODES
    yield _checked(has_few, "inodes", what, why, f"df -i {printable(place.folder)}")


def _temporary(_place: _Place) -> Iterator[Finding]:
    wanted = os.environ.get("TMPDIR", "")
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError:  # Python has tried /tmp and the working folder too
        used = "nowhere"
    is_other = used == "nowhere" or (wanted != "" and os.path.abspath(wanted) != used)
    what = f"{printable(used)}, although TMPDIR is {printable(wanted) or 'not set'}" if is_other else printable(used)
    why = "Python takes another folder, which may be small, if this one does not exist or cannot be written to."
    yield _checked(is_other, "TMPDIR", what, why, 'mkdir -p "$TMPDIR"')


def _versions(_place: _Place) -> Iterator[Finding]:
    versions = {"chordcache": __version__, **library_versions()}
    yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _opencv(_place: _Place) -> Iterator[Finding]:
    packages = opencv_packages()
    what = ", ".join(packages)
    if not packages:
        why = "Optical flow, and clips that are cut and scaled, need OpenCV."
        yield Finding("OpenCV", "note", "not installed", why, "pip install 'chordcache[cv]'")
    else:
        why = "Each overwrites the files of the other. Which one works depends on the order of installation."
        names = [package.split()[0] for package in packages]
        keep = next((name for name in names if "headless" in name), names[0])
        action = f"pip uninstall -y {' '.join(names)} && pip install {keep}"
        yield _checked(len(packages) > 1, "OpenCV", what, why, action)


def _size(num_bytes: float) -> str:
    """Return a number of bytes for people."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if num_bytes < 1024 or unit == "PiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.3g} {unit}" if num_bytes < 1000 else f"{num_bytes:.0f} {unit}"


_CHECKS = (
    _cpus, _threads, _container, _memory, _shared_memory, _limits,
    _disk, _read_ahead, _space, _temporary, _versions, _opencv,
)  # fmt: skip
