"""Processes to watch and kill, contents of caches read without the package, and damage to files."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb

MARK = "CHORDCACHE_TEST_MARK"
"""Variable of the environment by which a process and all its descendants are found, also those that init adopted."""

SIGNS_OF_A_BUG = ("Traceback", "a bug:", "Exception ignored", "Fatal Python error")


def fine(output: str) -> bool:
    """Return whether nothing that a user must never see was printed."""
    return not any(sign in output for sign in SIGNS_OF_A_BUG)


def alive_with(mark: str) -> list[int]:
    """Processes, not zombies, whose environment holds the mark."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _state_of(pid: int) -> str:
    """As ``ps`` has it: R, S, D, T, Z and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""


def wait_until(condition: Any, timeout: float, step: float = 0.005) -> bool:
    """Return whether ``condition()`` came true in time."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(step)
    return bool(condition())


_PROGRESS = re.compile(
    r"^(chordcache (scan|build|repair|verify): [\d,]+( of [\d,]+)? videos?(, .*)?|"
    r"  .+?: [a-z-]+: .*|  \.\.\. and [\d,]+ more.*)\n",
    re.MULTILINE,
)
"""Lines of progress, and those that name failures"""


def without_progress(stderr: str) -> str:
    """Return the errors and warnings of a run. ``tests/cli/test_run_output.py`` is about the other lines."""
    return _PROGRESS.sub("", stderr)


@dataclass
class Run:
    """A command under way, in a session of its own."""

    process: subprocess.Popen[bytes]
    mark: str
    folder: Path

    def workers(self) -> list[int]:
        """The workers that are alive."""
        return [pid for pid in alive_with(self.mark) if "chordcache.engine.worker" in command_of(pid)]

    def survivors(self, seconds: float = 60) -> list[str]:
        """Return the processes alive ``seconds`` after the command ended, and their state (D: waits for a disk).

        A process has no environment for a moment while it begins another program, so all have to be gone twice.
        """
        for _ in range(2):
            wait_until(lambda: not alive_with(self.mark), seconds)
            time.sleep(0.05)
        return [f"{command_of(pid)}[{_state_of(pid)}]" for pid in alive_with(self.mark)]

    def wait(self, timeout: float = 120) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"the command hangs; stderr: {self.stderr}") from None

    def kill_all(self) -> None:
        for pid in alive_with(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def stderr(self) -> str:
        return without_progress((self.folder / f"{self.mark}.err").read_text(errors="surrogateescape"))

    @property
    def stdout(self) -> str:
        return (self.folder / f"{self.mark}.out").read_text(errors="surrogateescape")


def start(
    folder: Path,
    *args: str | os.PathLike[str],
    program: Sequence[str] = ("-m", "chordcache"),
    env: Mapping[str, str] = {},
) -> Run:
    """Start ``python -m chordcache ARGS`` in the background, in ``folder``, which also takes its output."""
    mark = uuid.uuid4().hex
    with open(folder / f"{mark}.out", "wb") as out, open(folder / f"{mark}.err", "wb") as err:
        process = subprocess.Popen(
            # a shell's background jobs, and so perhaps this test run, ignore signals that are meant to be heard here
            ["env", "--default-signal=HUP,INT,TERM", sys.executable, *program, *map(os.fspath, args)],
            cwd=folder,
            env={**os.environ, **(env or {}), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    return Run(process, mark, folder)


@contextlib.contextmanager
def running(folder: Path, *args: str | os.PathLike[str], **options: Any) -> Iterator[Run]:
    """``start``, and nothing is left of it afterwards."""
    run = start(folder, *args, **options)
    try:
        yield run
    finally:
        run.kill_all()


# Contents, read past the package


def sidecars(cache: Path) -> dict[str, dict[str, Any]]:
    """Path of the source to sidecar, as JSON."""
    by_path = {}
    for path in sorted((cache / "videos").glob("*/*.json")):
        data = json.loads(path.read_text())
        by_path[data["path"]] = {**data, "_sidecar": path, "_artefact": cache / _artefact_of(data)}
    return by_path


def _artefact_of(sidecar: dict[str, Any]) -> str:
    return sidecar["features"][0].get("file", {"name": ""})["name"]


def entries(artefact: Path) -> dict[bytes, bytes]:
    """Every key and value of an environment."""
    with lmdb.open(str(artefact), subdir=False, readonly=True, lock=False) as environment, environment.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def contents(cache: Path) -> dict[str, tuple[int, str, str | None]]:
    """Path of the source: number of frames, digest over every key and value, label. Equal means the same cache."""
    by_path = {}
    for path, data in sidecars(cache).items():
        digest = hashlib.sha256()
        for key, value in sorted(entries(data["_artefact"]).items()):
            digest.update(struct.pack("<qq", len(key), len(value)) + key + value)
        by_path[path] = (data["num_frames"], digest.hexdigest(), data.get("label"))
    return by_path


def files_of(cache: Path) -> dict[str, tuple[int, int, int]]:
    """Relative name of every artefact and sidecar: inode, size, mtime_ns."""
    statuses = {}
    for top in ("videos", "lmdb", "npz", "hdf5"):
        for path in sorted((cache / top).rglob("*")):
            if path.is_file():
                status = path.stat()
                statuses[str(path.relative_to(cache))] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return statuses


def partials(cache: Path) -> list[str]:
    """Return the files that were begun and not published, anywhere in the cache. A build may be at work there."""
    # unlike a Path's, this glob accepts folders that vanish
    search = functools.partial(glob.glob, root_dir=cache, recursive=True, include_hidden=True)
    return sorted({*search("**/*.partial"), *search("**/.partial/*")} - set(search("**/.partial")))


def is_writing(cache: Path) -> bool:
    """Return whether a worker has begun an artefact. Unlike a Path's, this glob accepts folders that vanish."""
    return bool(glob.glob(f"{cache}/.partial/*/[0-9]*.*"))


def quarantine(cache: Path) -> dict[str, dict[str, Any]]:
    """Path of the source to its line, the last one of each."""
    path = cache / "quarantine.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {data["path"]: data for data in map(json.loads, lines)}


# Damage


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit, in place, and put the times back."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def swap(a: Path, b: Path) -> None:
    """Exchange two files."""
    aside = a.with_name("aside")
    a.rename(aside)
    b.rename(a)
    aside.rename(b)


@dataclass
class Rng:
    """Random places of damage: the same ones in each run."""

    seed: int
    _state: int = field(init=False)

    def __post_init__(self) -> None:
        self._state = self.seed

    def below(self, limit: int) -> int:
        self._state = int.from_bytes(hashlib.sha256(str(self._state).encode()).digest()[:6], "big")
        return self._state % limit
