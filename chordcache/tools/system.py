"""The limits of this machine, as its files below /proc and /sys state them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60
"""Smallest number of a cgroup file that means "no limit": version 1 writes the largest multiple of a page"""


@dataclass(frozen=True)
class Mount:
    """The mount that a path lies on."""

    point: str
    kind: str
    """Kind of the file system, such as "ext4" or "nfs4" """
    device: str
    """Numbers of its device, as "major:minor" """


@dataclass(frozen=True)
class System:
    """The files of the kernel. Other folders can stand for them."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    shm: Path = Path("/dev/shm")

    def mount_of(self, path: Path) -> Mount | None:
        """Return the mount of a path, or None if the kernel does not list one.

        Source: proc_pid_mountinfo(5).
        """
        real = os.path.realpath(path)
        mount: Mount | None = None
        for line in self._lines(self.proc / "self" / "mountinfo"):
            left, _, right = line.partition(" - ")
            fields, kind = left.split(" "), right.split(" ")[0]
            if len(fields) < 5 or not kind:
                continue
            point = _unescaped(fields[4])
            is_above = real == point or real.startswith(point.rstrip("/") + "/")
            if is_above and (mount is None or len(point) >= len(mount.point)):  # the last mount hides those below it
                mount = Mount(point, kind, fields[2])
        return mount

    def limit(self, name: str) -> float | None:
        """Return the soft limit of this process that a line of /proc/self/limits names, or None if it is not there.

        The value is infinite if there is a line without a limit.
        """
        for line in self._lines(self.proc / "self" / "limits"):
            if line.startswith(name):
                value = line[len(name) :].split()[0]
                return float("inf") if value == "unlimited" else float(value)
        return None

    def memory_bytes(self) -> int | None:
        """Return the memory that programs can have [bytes], or None if it is not known."""
        for line in self._lines(self.proc / "meminfo"):
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return None

    def cgroup_memory_bytes(self) -> int | None:
        """Return the limit of the container's memory [bytes], or None without a limit."""
        files = (*self._cgroup_files("memory", "memory.limit_in_bytes"), *self._cgroup_files("", "memory.max"))
        limits = [value for file in files if (value := self.number(file)) is not None and value < _UNLIMITED]
        return min(limits, default=None)

    def cgroup_cpus(self) -> float | None:
        """Return the number of processors that the container's quota of CPU time allows, or None without a quota."""
        quotas = []
        for file in self._cgroup_files("cpu", "cpu.cfs_quota_us"):
            quota, period = self.number(file), self.number(file.with_name("cpu.cfs_period_us"))
            if quota and period and quota > 0:
                quotas.append(quota / period)
        for file in self._cgroup_files("", "cpu.max"):
            words = "".join(self._lines(file)).split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
                quotas.append(int(words[0]) / int(words[1]))
        return min(quotas, default=None)

    def has_cgroups(self) -> bool:
        """Return whether the kernel names a control group of this process."""
        return any(True for _ in self._lines(self.proc / "self" / "cgroup"))

    def read_ahead_file(self, mount: Mount) -> Path | None:
        """Return the file with the read-ahead of a mount's device, or None if the device has none."""
        block = self.sys / "dev" / "block" / mount.device
        places = (block / "queue", block.resolve().parent / "queue", self.sys / "class" / "bdi" / mount.device)
        files = (place / "read_ahead_kb" for place in places)
        return next((file for file in files if self.number(file) is not None), None)

    def number(self, file: Path) -> int | None:
        """Return the number in a file, or None if it has none."""
        text = "".join(self._lines(file))
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def _cgroup_files(self, controller: str, name: str) -> Iterator[Path]:
        """Yield a file of this process's control group and of those above it. "" is the group of version 2."""
        for line in self._lines(self.proc / "self" / "cgroup"):
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            if controller not in controllers.split(","):
                continue
            root = self.sys / "fs" / "cgroup"
            for top in (root / controller,) if controller else (root, root / "unified"):
                parts = [part for part in path.split("/") if part not in ("", "..")]
                # In a container, the path may be that of the host. Then only the top is there, and is the container's
                for depth in range(len(parts), -1, -1):
                    yield top.joinpath(*parts[:depth]) / name

    def _lines(self, file: Path) -> Iterator[str]:
        with suppress(OSError):
            yield from file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _unescaped(text: str) -> str:
    """Return a path of mountinfo, in which a space is written as an octal number."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
