"""A model of a disk that loses whatever was not flushed, fed with the system calls of a real command.

Data is durable once fsync or fdatasync of its file has returned, a name once fsync of its folder has: POSIX promises no
more. Of the rest a power cut may leave any part, page by page and name by name, in any order; so a rename may leave
both of its names, or neither.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

PAGE_BYTES = 4096

CALLS = (
    "openat,lseek,write,pwrite64,writev,pwritev,ftruncate,fallocate,rename,renameat,renameat2,"
    "link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync"
)
"""All that make, change, name or flush files here. What is written through a map does not show: see ``Disk``."""

_CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (\d+)")
_DESCRIPTOR = re.compile(r"(\d+|AT_FDCWD)<([^>]*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_NUMBER = re.compile(r"(?<=, )\d+\b")


@dataclass(frozen=True)
class Call:
    """One system call that succeeded."""

    process: int
    name: str
    result: int
    folders: tuple[str, ...]
    """Path of each descriptor; AT_FDCWD is the working directory"""
    descriptors: tuple[str, ...]
    strings: tuple[bytes, ...]
    """Names, or what is written"""
    numbers: tuple[int, ...]
    """Arguments after the first that are plain numbers"""
    flags: str

    def paths(self) -> list[str]:
        """The names that it is given, absolute."""
        folders = [*self.folders, ""] if len(self.folders) < 2 else self.folders
        return [
            os.path.join(folders[min(i, len(folders) - 1)], os.fsdecode(name)) for i, name in enumerate(self.strings)
        ]

    def is_under(self, base: str) -> bool:
        """Return whether it concerns a file in that folder."""
        return any(path.startswith(f"{base}/") for path in (*self.folders, *self.paths()))


def record(trace: Path, command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command and write down the system calls of all its processes, with all that they write."""
    tracer = ["strace", "-f", "-y", "-qq", "-xx", "-s", str(1 << 26), "-e", f"trace={CALLS}", "-o", trace]
    return subprocess.run([*tracer, sys.executable, *command], capture_output=True, text=True, **options)


def calls(trace: Path) -> list[Call]:
    """The calls that succeeded, in the order in which they returned."""
    begun: dict[str, str] = {}
    completed = []
    for line in trace.read_text().splitlines():
        process = line.partition(" ")[0]
        if line.endswith(" <unfinished ...>"):
            begun[process] = line.removesuffix(" <unfinished ...>")
            continue
        if " resumed>" in line:
            line = begun.pop(process) + line.partition(" resumed>")[2]
        match = _CALL.match(line)
        if match:
            completed.append(_call(*match.groups()))
    return completed


def _call(process: str, name: str, arguments: str, result: str) -> Call:
    plain = _DESCRIPTOR.sub("", _STRING.sub("", arguments))
    descriptors = _DESCRIPTOR.findall(arguments)
    return Call(
        int(process),
        name,
        int(result),
        tuple(os.fsdecode(_unescape(path)) for _, path in descriptors),
        tuple(number for number, _ in descriptors),
        tuple(_unescape(text) for text in _STRING.findall(arguments)),
        tuple(int(number) for number in _NUMBER.findall(plain)),
        plain,
    )


def _unescape(text: str) -> bytes:
    """``\\x2f\\x74`` and so on; what strace leaves as it is, such as the name of a pipe, is of no interest."""
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else b""


@dataclass(eq=False)
class File:
    """Contents of a file since it was last flushed; the first of them is durable."""

    versions: list[bytes] = field(default_factory=lambda: [b""])


@dataclass(eq=False)
class Folder:
    """The names in a folder since it was last flushed; the first of it is durable."""

    versions: list[dict[str, Node]] = field(default_factory=lambda: [{}])


Node: TypeAlias = File | Folder


class Disk:
    """Everything under ``base``, which is there and empty. A write with O_DSYNC counts as not flushed: that is worse.

    ``write_to`` without loss must give what the command left: the recorder of a command checks that, and so that
    nothing of it escaped, such as a write through a map.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._root = Folder()
        self._positions: dict[tuple[int, str], int] = {}
        self._appending: set[tuple[int, str]] = set()

    def apply(self, call: Call) -> None:
        """Let one call change the disk, if it concerns it."""
        if call.name == "openat":
            self._open(call)
        elif call.strings and call.name.startswith(("rename", "link", "mkdir", "unlink", "rmdir")):
            self._name(call)
        elif call.folders and call.name not in ("rename", "link", "mkdir", "unlink", "rmdir"):
            node = self._find(call.folders[0])
            if call.name in ("fsync", "fdatasync") and node is not None:
                del node.versions[:-1]
            elif isinstance(node, File):
                self._change(node, call)

    def _find(self, path: str) -> Node | None:
        if path == self._base:
            return self._root
        folder = self._find(os.path.dirname(path)) if path.startswith(self._base + "/") else None
        return folder.versions[-1].get(os.path.basename(path)) if isinstance(folder, Folder) else None

    def _put(self, path: str, node: Node | None) -> None:
        folder = self._find(os.path.dirname(path))
        if isinstance(folder, Folder):
            names = {**folder.versions[-1], os.path.basename(path): node}
            folder.versions.append({name: child for name, child in names.items() if child is not None})

    def _open(self, call: Call) -> None:
        (path,) = call.paths()
        if self._find(path) is None and "O_CREAT" in call.flags:
            self._put(path, File())
        node = self._find(path)
        if isinstance(node, File):
            handle = (call.process, str(call.result))
            self._positions[handle] = 0
            (self._appending.add if "O_APPEND" in call.flags else self._appending.discard)(handle)
            if "O_TRUNC" in call.flags:
                node.versions.append(b"")

    def _name(self, call: Call) -> None:
        path, *others = call.paths()
        if call.name.startswith("mkdir"):
            self._put(path, Folder())
        elif call.name.startswith(("unlink", "rmdir")):
            self._put(path, None)
        else:
            self._put(others[0], self._find(path))
            if call.name.startswith("rename"):
                self._put(path, None)

    def _change(self, file: File, call: Call) -> None:
        handle = (call.process, call.descriptors[0])
        content, data = file.versions[-1], b"".join(call.strings)
        if call.name == "lseek":
            self._positions[handle] = call.result
        elif call.name in ("pwrite64", "pwritev"):
            file.versions.append(_splice(content, call.numbers[-1], data[: call.result]))
        elif call.name in ("write", "writev"):
            start = len(content) if handle in self._appending else self._positions[handle]
            file.versions.append(_splice(content, start, data[: call.result]))
            self._positions[handle] = start + call.result
        elif call.name == "ftruncate":
            length = call.numbers[0]
            file.versions.append(content[:length].ljust(length, b"\0"))
        elif call.name == "fallocate":
            file.versions.append(content.ljust(call.numbers[-2] + call.numbers[-1], b"\0"))

    def write_to(self, target: Path, kept: str, rng: random.Random) -> None:
        """Make a folder that holds what a power cut leaves: of what was not flushed "all", "any" or "nothing"."""
        pick = {"nothing": lambda versions: versions[0], "all": lambda versions: versions[-1], "any": rng.choice}[kept]
        contents: dict[File, bytes] = {}

        def write(node: Node, path: Path) -> None:
            if isinstance(node, File):
                path.write_bytes(contents.setdefault(node, _left_of(node, pick)))
                return
            path.mkdir()
            for name in sorted(set().union(*node.versions)):
                child = pick(node.versions).get(name)
                if child is not None:
                    write(child, path / name)

        write(self._root, target)


def _left_of(file: File, pick: Any) -> bytes:
    length = len(pick(file.versions))
    return b"".join(_pages(file, pick, length))[:length].ljust(length, b"\0")


def _pages(file: File, pick: Any, length: int) -> Iterator[bytes]:
    for start in range(0, length, PAGE_BYTES):
        yield pick(file.versions)[start : start + PAGE_BYTES].ljust(PAGE_BYTES, b"\0")


def _splice(content: bytes, start: int, data: bytes) -> bytes:
    return content[:start].ljust(start, b"\0") + data + content[start + len(data) :]
