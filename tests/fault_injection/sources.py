"""Sources that change while they are read, and sources that end too early."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from conftest import REPOSITORY, run_chordcache, write_video
from helpers import processes
from helpers.cache_contents import arrays
from helpers.ffmpeg import ffmpeg, frame_digests

import chordcache as cc
from fault_injection.harness import Figures, Trial, experiment

# R8


def _noise(seed: int) -> Callable[[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pictures that compress badly, so that a file is more than the one block that a reader takes at once."""

    def planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng([seed, number])
        y = rng.integers(16, 235, (height, width), np.uint8)
        u, v = rng.integers(100, 156, (2, height // 2, width // 2), np.uint8)
        return y, u, v

    return planes


_VERSIONS = ("old", "new")


def _versions(folder: Path) -> None:
    """old.mp4 and new.mp4: other pictures, as many bytes, and what a cache holds of each."""
    for number, name in enumerate(_VERSIONS):
        write_video(folder / f"{name}/x.mp4", num_frames=30, size=(96, 64), planes=_noise(number), audio=True)
    sizes = [(folder / name / "x.mp4").stat().st_size for name in _VERSIONS]
    for name, size in zip(_VERSIONS, sizes, strict=True):
        with open(folder / name / "x.mp4", "ab") as file:  # "free", which readers pass over
            missing = max(sizes) + 8 - size
            file.write(struct.pack(">I4s", missing, b"free") + bytes(missing - 8))
        cc.build(cc.scan([folder / name], jobs=1), folder / f"{name}-cache", jobs=1)
    assert len({(folder / name / "x.mp4").stat().st_size for name in _VERSIONS}) == 1


def _overwrite(path: Path, new: bytes) -> None:
    with open(path, "r+b") as file:
        file.write(new)


def _with_its_times(path: Path, new: bytes) -> None:
    status = path.stat()
    _overwrite(path, new)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replaced(path: Path, new: bytes) -> None:
    """By rename, of equal size and time."""
    status = path.stat()
    aside = path.with_suffix(".aside")
    aside.write_bytes(new)
    os.utime(aside, ns=(status.st_atime_ns, status.st_mtime_ns))
    aside.rename(path)


def _cut(path: Path, new: bytes) -> None:
    os.truncate(path, len(new) // 2)


def _appended(path: Path, new: bytes) -> None:
    """Bytes that change no picture, but the file."""
    del new
    with open(path, "ab") as file:
        file.write(struct.pack(">I4s", 16, b"free") + bytes(8))


def _touched(path: Path, new: bytes) -> None:
    del new
    path.touch()


_EDITS: dict[str, tuple[Callable[[Path, bytes], None], str | None]] = {
    "overwritten": (_overwrite, "new"),
    "overwritten, its mtime put back": (_with_its_times, "new"),
    "replaced by rename": (_replaced, "new"),
    "truncated": (_cut, None),
    "appended to": (_appended, "old"),
    "touched": (_touched, "old"),
}
"""A change, and the number of frames that the file shows then, or None."""

_UNDER_THE_SAME_IDENTITY = ("overwritten, its mtime put back", "replaced by rename")
"""Changes that leave size and mtime as they are. Only a decode shows them after the build."""


@experiment(
    "R8",
    "a source edited at a random moment while a worker has it open, then verify --source, then the same build again",
    trials=50,
    batch=25,
    variants=tuple(_EDITS),
)
def edited_while_read(trial: Trial) -> Figures:
    """Where no edit is to be seen, the cache holds all of the one state or all of the other, and knows which."""
    edit, then = _EDITS[trial.variant]
    shared = trial.once("versions", _versions)
    corpus, cache = trial.folder / "corpus", trial.folder / "cache"
    names = [f"corpus/{number}.mp4" for number in range(trial.count)]
    corpus.mkdir()
    for name in names:
        shutil.copy(shared / "old/x.mp4", trial.folder / name)
    (trial.folder / "list.csv").write_text("path\n" + "".join(f"{name}\n" for name in names))
    new = (shared / "new/x.mp4").read_bytes()
    with processes.running(trial.folder, "build", "list.csv", "-j2") as run:
        edited = _edit_what_is_open(run, corpus, lambda path: edit(path, new), trial.rng)
        assert run.wait(120) in (0, 3), run.stderr
    assert len(edited) >= trial.count * 0.7, edited
    first, reported = processes.sidecars(cache), processes.quarantine(cache)
    assert {*first, *reported} == {*names}
    truth = {name: _pictures(shared / f"{name}-cache")["x.mp4"] for name in _VERSIONS}
    pictures = _pictures(cache)
    assert [path for path, shown in pictures.items() if shown not in truth.values()] == []
    stale = {path for path, sidecar in first.items() if _differs(trial.folder / path, sidecar)}
    is_hidden = trial.variant in _UNDER_THE_SAME_IDENTITY
    hidden = (
        {path for path in first if Path(path).name in edited and pictures[path] != truth["new"]} if is_hidden else {*()}
    )
    assert _accused(trial.folder) == stale | hidden
    again = run_chordcache("build", "list.csv", "-j2", cwd=trial.folder)
    assert again.returncode == (0 if then else 3), again.stderr
    if then:
        redone = {path for path, sidecar in processes.sidecars(cache).items() if sidecar != first.get(path)}
        assert redone == {*stale, *reported}, (redone, stale, reported)
        now = _pictures(cache)
        assert {name for name in edited if now[f"corpus/{name}"] != truth[then]} == {Path(path).name for path in hidden}
        assert _accused(trial.folder) == hidden
    return {
        "sum_edited": len(edited),
        "sum_detected_by_the_build": len(reported),
        "sum_detected_by_verify": len(stale | hidden),
        "sum_missed": 0,
    }


def _accused(folder: Path) -> set[str]:
    """The sources that verify finds changed, relative to the folder."""
    verified = run_chordcache("verify", "--source", "--json", "-j2", cwd=folder)
    findings = json.loads(verified.stdout)["damage"]
    assert {finding["kind"] for finding in findings} <= {"stale", "orphan"}, findings  # a rebuild leaves orphans
    assert verified.returncode == (6 if findings else 0), verified.stderr
    return {os.path.relpath(finding["file"], folder) for finding in findings if finding["kind"] == "stale"}


def _differs(path: Path, sidecar: dict[str, Any]) -> bool:
    """Return whether a source was edited after it was cached, by its size and mtime."""
    status, source = path.stat(), sidecar["source"]
    return (status.st_size, status.st_mtime_ns) != (source["size"], source["mtime_ns"])


def _pictures(cache: Path) -> dict[str, object]:
    """Path to all that is stored of its frames."""
    return {path: value for (path, _, name), value in arrays(cache).items() if name == "entries"}


def _edit_what_is_open(run: processes.Run, corpus: Path, edit: Callable[[Path], None], rng: random.Random) -> list[str]:
    """Edit each file once, a moment after a worker opened it, as /proc shows; return which were."""
    due: dict[str, float] = {}
    edited: list[str] = []
    workers: list[int] = []
    top = os.path.join(os.path.realpath(corpus), "")
    while run.process.poll() is None:
        if len(workers) < 2:
            workers = run.workers()
        for target in {target for pid in workers for target in _open_files(pid)}:
            if target.startswith(top) and target.endswith(".mp4"):
                due.setdefault(target.removeprefix(top), time.monotonic() + rng.random() * _MAX_DELAY_SECONDS)
        for name in [name for name, at in due.items() if name not in edited and time.monotonic() >= at]:
            edit(corpus / name)
            edited.append(name)
        time.sleep(0.001)
    return edited


_MAX_DELAY_SECONDS = 0.2
"""Long enough that some edits come when the video is cached already."""


def _open_files(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)


@experiment("R8", "a source written twice within a tick of the file system's clock", trials=50, batch=25)
def written_twice_in_a_tick(trial: Trial) -> Figures:
    """The second write leaves size and times as they were: a reader that looked in between must have waited."""
    shared = trial.once("versions", _versions)
    old, new = ((shared / name / "x.mp4").read_bytes() for name in _VERSIONS)
    corpus, cache = trial.folder / "corpus", trial.folder / "cache"
    corpus.mkdir()
    (trial.folder / "list.csv").write_text("path\n" + "".join(f"corpus/{n}.mp4\n" for n in range(trial.count)))
    ended = threading.Event()
    paths = [corpus / f"{number}.mp4" for number in range(trial.count)]
    for path in paths:
        path.write_bytes(old)
    last: dict[str, bytes] = {}

    def write() -> None:
        while not ended.wait(trial.rng.random() * 0.01):
            path = trial.rng.choice(paths)
            for data in (new, old) if trial.rng.random() < 0.5 else (old, new):
                _overwrite(path, data)
                last[f"corpus/{path.name}"] = data

    with ThreadPoolExecutor(1) as threads:
        writes = threads.submit(write)
        try:
            built = run_chordcache("build", "list.csv", "-j2", cwd=trial.folder)
        finally:
            ended.set()
        writes.result()
    assert built.returncode in (0, 3), built.stderr
    truth = {name: _pictures(shared / f"{name}-cache")["x.mp4"] for name in _VERSIONS}
    after = {path: truth["new" if data == new else "old"] for path, data in last.items()}
    known = processes.sidecars(cache)
    silent = [
        path
        for path, shown in _pictures(cache).items()
        if shown != after.get(path, truth["old"]) and not _differs(trial.folder / path, known[path])
    ]
    assert silent == []
    return {"sum_files": trial.count, "sum_detected": len(processes.quarantine(cache)), "sum_missed": len(silent)}


# R10

_CONTAINERS = (
    "mp4", "faststart.mp4", "fragmented.mp4", "mov", "mkv", "avi", "ts", "webm", "flv", "ogv", "hevc", "mpg",
)  # fmt: skip

_CAUSES = {"truncated", "short", "decode", "no-video", "no-decoder", "no-frames", "refused-format", "io"}
"""Matroska that is cut off in its header is an input/output error to libavformat. MP4 that is cut off in the table of a
track does not name the codec."""

_OPTIONS = {
    "faststart.mp4": ("-c", "copy", "-movflags", "+faststart"),
    "fragmented.mp4": ("-c", "copy", "-movflags", "+frag_keyframe+empty_moov+default_base_moof"),
    "avi": ("-c:v", "mpeg4", "-g", "15"),
    "webm": ("-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8"),
    "ogv": ("-c:v", "libtheora", "-q:v", "6"),
    "hevc": ("-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none"),
    "mpg": ("-c:v", "mpeg2video", "-b:v", "2M", "-bf", "2", "-f", "vob"),
}


def _films(folder: Path, container: str) -> None:
    """A made film and two seconds of a real one."""
    folder.mkdir()
    film = write_video(folder.with_name("made.mkv"), num_frames=60, size=(160, 120), gop=15)
    real = REPOSITORY / ".clips/street/bikes.mp4"
    for name, source, seconds in (("made", film, "9"), ("real", real, "2")):
        options = _OPTIONS.get(container, ("-c", "copy"))
        ffmpeg("-t", seconds, "-i", source, "-an", *options, folder / f"{name}.{container}")


def _num_frames(path: Path) -> int:
    """As ffmpeg decodes it."""
    digests, _ = frame_digests(path)
    return len(digests)


def _cut_at(data: bytes, trial: Trial) -> int:
    """A random byte; not between two units of a container that states no length, where a shorter film would end too."""
    while True:
        at = trial.rng.randrange(len(data))
        is_unit = {
            "ts": at % 188 == 0,
            "fragmented.mp4": data[at + 4 : at + 8] in (b"moof", b"mfra"),
            "mpg": data[at : at + 4] == b"\0\0\1\xba",
            "hevc": b"\0\0\1" in data[max(0, at - 3) : at + 4],  # in a start code, or beside it
        }
        if not is_unit.get(trial.variant, False):
            return at


@experiment(
    "R10",
    "a made and a real film cut off at a random byte",
    trials=20,
    batch=10,
    variants=_CONTAINERS,
)
def cut_off(trial: Trial) -> Figures:
    """The trials of a call are cuts: half of one film, half of the other."""
    films = trial.once("films", lambda folder: _films(folder, trial.variant))
    whole: dict[str, int] = {}
    (trial.folder / "corpus").mkdir()
    for film in sorted(films.iterdir()):
        data, num_frames = film.read_bytes(), _num_frames(film)
        for number in range(trial.count // 2):
            name = f"{film.name.partition('.')[0]}-{number}.{trial.variant}"
            (trial.folder / "corpus" / name).write_bytes(data[: _cut_at(data, trial)])
            whole[name] = num_frames
        (trial.folder / "corpus" / film.name).write_bytes(data)
        whole[film.name] = num_frames
    for args in (["scan", "corpus", "-j2"], ["build", "-j2"]):
        done = run_chordcache(*args, cwd=trial.folder)
        assert done.returncode in (0, 3), done.stderr
    cached = {path: frames for path, (frames, _, _) in processes.contents(trial.folder / "cache").items()}
    reported = processes.quarantine(trial.folder / "cache")
    assert cached.keys() | reported.keys() == whole.keys()
    assert {film.name for film in films.iterdir()} <= cached.keys()
    assert {line["cause"] for line in reported.values()} <= _CAUSES, [
        (line["path"], line["cause"], line["message"]) for line in reported.values() if line["cause"] not in _CAUSES
    ]
    silent = {path: (frames, whole[path]) for path, frames in cached.items() if frames < whole[path]}
    assert silent == {}, silent
    return {"sum_detected": len(reported), "sum_whole_for_all_that": len(cached) - 2, "sum_silent": len(silent)}
