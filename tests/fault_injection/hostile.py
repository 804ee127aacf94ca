"""Media that strangers made: what they name is not opened, what they claim is not believed, what they are is looked at.

The media themselves are in ``malicious_media``.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from conftest import run_chordcache, write_video
from helpers import processes

from chordcache.media.source_file import look
from chordcache.storage import layout
from chordcache.storage.find_sidecars import iter_keys
from chordcache.storage.sidecar import read_sidecar
from fault_injection.harness import Figures, Trial, experiment
from fault_injection.malicious_media import CLAIMS, SOUND, naming_others
from fault_injection.strace import Traced, traced, web_server

# S1


@experiment(
    "S1",
    "playlists, references, linked segments and names that are addresses: scanned, built and verified under strace",
    trials=38,
    batch=38,
)
def naming_others_opens_nothing(trial: Trial) -> Figures:
    corpus, secrets = trial.folder / "corpus", trial.folder / "elsewhere"
    with web_server() as (address, requests):
        names = naming_others(corpus, secrets, address)[trial.number : trial.number + trial.count]
        assert names
        for path in corpus.iterdir():
            if path.name not in names:
                path.unlink()
        runs = [traced(trial.folder, "scan", "corpus", "--level", "content", "-j1")]
        (trial.folder / "list.csv").write_text("path\n" + "".join(f'"corpus/{name}"\n' for name in names))
        runs.append(traced(trial.folder, "build", "list.csv", "-j1"))
        _put_in_place_of_cached(
            trial.folder / "cache", trial.folder, f"ffconcat version 1.0\nfile '{secrets}/secret.mp4'\n"
        )
        runs.append(traced(trial.folder, "verify", "--source", "-j1"))
    assert runs[0].returncode in (0, 3), runs[0].stderr
    assert runs[1].returncode in (0, 3), runs[1].stderr
    assert runs[2].returncode in (0, 6), runs[2].stdout
    assert {f"corpus/{name}" for name in names} <= runs[1].touched_below(trial.folder)  # the tracer sees
    extra = {path for run in runs for path in _extra(run, trial.folder, names)}
    num_sockets = sum(run.num_internet for run in runs)
    assert (extra, num_sockets, requests) == (set(), 0, []), (extra, num_sockets, requests)
    return {"sum_extra_opens": len(extra), "sum_sockets": num_sockets, "sum_requests": len(requests)}


def _put_in_place_of_cached(cache: Path, root: Path, text: str) -> None:
    """Make playlists of the sources that were good, and sidecars that know them so: verify has to open them."""
    for key in iter_keys(cache):
        sidecar = read_sidecar(cache, key)
        source = root / sidecar.path
        source.write_text(text)
        forged = sidecar.replace(source=look(str(source)).identity)
        (cache / layout.sidecar_file(key)).write_text(forged.to_line() + "\n")


def _extra(run: Traced, folder: Path, names: list[str]) -> set[str]:
    """Return the files that were opened besides the inputs, the index and the cache."""
    indexes = ("index.json", "list.csv")
    own = {"", "corpus", *indexes, *(f"{index}.runs.jsonl" for index in indexes), *(f"corpus/{name}" for name in names)}
    touched = run.touched_below(folder)
    return {path for path in touched - own if not path.startswith(("cache", "."))}


# S2


@experiment(
    "S2",
    "headers that claim more than the file holds, good files beside them",
    trials=len(CLAIMS),
    batch=8,
    variants=("600", "2048"),
)
def claims(trial: Trial) -> Figures:
    """The variant is --file-memory [MiB]."""
    corpus = trial.folder / "corpus"
    corpus.mkdir()
    chosen = list(CLAIMS)[trial.number : trial.number + trial.count]
    for name in chosen:
        CLAIMS[name](corpus / name)
    good = ["a.mp4", "z.mp4"]
    for name in good:
        write_video(corpus / name, num_frames=5)
    limits = ["-j2", "--file-memory", trial.variant, "--stall-timeout", "10", "--file-timeout", "30"]
    scanned = _measured(trial.folder, "scan", "corpus", "--level", "content", *limits)
    built = _measured(trial.folder, "build", "--retry-quarantined", *limits)
    assert run_chordcache("verify", "--deep", "-j1", cwd=trial.folder).returncode == 0
    cached = {path: frames for path, (frames, _, _) in processes.contents(trial.folder / "cache").items()}
    reported = processes.quarantine(trial.folder / "cache")
    causes = {"oom", "timeout", "refused-size", "decode", "truncated", "short", "no-video", "no-frames"}
    assert set(good) <= set(cached)
    assert set(cached) | set(reported) == {*chosen, *good}
    assert {path: frames for path, frames in cached.items() if path not in good}.items() <= SOUND.items()
    assert {reported[path]["cause"] for path in reported} <= causes, reported
    peak = max(scanned["peak_mib"], built["peak_mib"])
    assert peak < float(trial.variant) + _OWN_MIB, peak
    return {"max_peak_MiB": peak, "max_seconds": max(scanned["seconds"], built["seconds"])}


_OWN_MIB = 150
"""Programs and libraries, which are mapped from files and shared, count as resident but do not come from a file."""


def _measured(folder: Path, *args: str) -> dict[str, float]:
    """The largest process of a command, while it ran, and how long it took."""
    with processes.running(folder, *args) as run:
        started = time.monotonic()
        _, status, usage = os.wait4(run.process.pid, 0)  # of the command and all that it waited for
        run.process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        assert run.process.returncode in (0, 3), run.stderr
        assert processes.fine(run.stderr), run.stderr
        assert run.survivors() == []
    return {"peak_mib": usage.ru_maxrss / 1024, "seconds": seconds}


# S3


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "zero": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5)),
    "terminal": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(5, 0)),
    "loop": lambda path: os.mknod(path, stat.S_IFBLK | 0o666, os.makedev(7, 200)),
    "socket": _socket,
    "folder": Path.mkdir,
    "link_to_zero": lambda path: path.symlink_to("/dev/zero"),
    "link_to_memory": lambda path: path.symlink_to("/proc/self/mem"),
}
"""Not a regular file, or one that pretends to be."""

SWAPPED = {"not-regular", "io", "timeout", "changed", "decode", "truncated", "short", "refused-link", "refused-format"}


@experiment(
    "S3",
    "FIFOs, devices, sockets, folders and links to devices, there from the start or put in place of good files",
    trials=8,
    variants=("before scan", "before build", "during build"),
)
def special_files(trial: Trial) -> Figures:
    corpus = trial.folder / "corpus"
    seed = trial.once("seed.mp4", lambda path: write_video(path, num_frames=40, codec="mpeg4") and None)
    corpus.mkdir()
    names = [f"{number}.mp4" for number in range(16)]
    for name in names:
        shutil.copy(seed, corpus / name)
    doomed = names[::2]
    started = time.monotonic()
    if trial.variant == "before scan":
        _replace(corpus, doomed)
    _command(trial.folder, "scan", "corpus", "-j2")
    if trial.variant == "before build":
        _replace(corpus, doomed)
    during = _replacing(corpus, doomed, trial.rng) if trial.variant == "during build" else _nothing()
    with during:
        _command(trial.folder, "build", "-j2")
    seconds = time.monotonic() - started
    cached = processes.contents(trial.folder / "cache")
    reported = processes.quarantine(trial.folder / "cache")
    assert set(names) - set(doomed) <= set(cached)
    assert all(frames == 40 for frames, _, _ in cached.values())
    assert {line["cause"] for line in reported.values()} <= SWAPPED, reported
    if trial.variant != "during build":
        assert set(cached) == set(names) - set(doomed)
    return {"sum_special": len(doomed), "sum_hangs": 0, "max_seconds": seconds}


def _command(folder: Path, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A command that ends, well."""
    try:
        done = run_chordcache(*args, cwd=folder, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{args[0]} hangs") from None
    assert done.returncode in (0, 3), done.stderr
    assert processes.fine(done.stderr), done.stderr
    return done


def _replace(corpus: Path, doomed: list[str]) -> None:
    for number, name in enumerate(doomed):
        make = list(SPECIAL.values())[number % len(SPECIAL)]
        aside = corpus.parent / "special"
        make(aside)
        (corpus / name).unlink()
        aside.rename(corpus / name)


@contextmanager
def _replacing(corpus: Path, doomed: list[str], rng: random.Random) -> Iterator[None]:
    """Put special files and good ones in each other's place, in one step each, as fast as it goes."""
    specials = [corpus.parent / f"special-{kind}" for kind in SPECIAL if kind != "folder"]
    for path in specials:
        SPECIAL[path.name.removeprefix("special-")](path)
    good = corpus.parent / "good"
    os.link(corpus / doomed[0], good)
    ended = threading.Event()

    def swap() -> int:
        aside, num_swaps = corpus.parent / "aside", 0
        while not ended.wait(0.0005):
            os.link(rng.choice([good, *specials]), aside, follow_symlinks=False)
            os.replace(aside, corpus / rng.choice(doomed))
            aside.unlink(missing_ok=True)  # of two names of one file, rename keeps both
            num_swaps += 1
        return num_swaps

    with ThreadPoolExecutor(1) as threads:
        swaps = threads.submit(swap)
        try:
            yield
        finally:
            ended.set()
        assert swaps.result() > 100


@contextmanager
def _nothing() -> Iterator[None]:
    yield


# S4


@experiment("S4", "links that loop, dangle and lead out of the root, of files and of folders, under strace", trials=3)
def links(trial: Trial) -> Figures:
    """Trial 0 has them before the scan, 1 puts them there before the build, 2 says --follow-symlinks."""
    corpus, outside, kind = trial.folder / "corpus", trial.folder / "outside", trial.number % 3
    for name in ("corpus/a.mp4", "corpus/b.mp4", "corpus/sub/c.mp4", "outside/b.mp4", "outside/sub/c.mp4"):
        write_video(trial.folder / name, num_frames=4)
    write_video(outside / "other/not_linked.mp4", num_frames=4)
    make = (_links_in, _links_in_place, _links_in)[kind]
    options = ["--follow-symlinks"] if kind == 2 else []
    if trial.number != 1:
        make(corpus, outside)
    scanned = traced(trial.folder, "scan", "corpus", "-j1", *options)
    if kind == 1:
        make(corpus, outside)
    built = traced(trial.folder, "build", "-j1")
    verified = traced(trial.folder, "verify", "--source", "-j1")
    assert (scanned.returncode, built.returncode) in {(0, 0), (0, 3), (3, 3)}, scanned.stderr + built.stderr
    assert verified.returncode == 0, verified.stdout
    assert "corpus/a.mp4" in built.touched_below(trial.folder)
    cached = set(processes.contents(trial.folder / "cache"))
    causes = {line["path"]: line["cause"] for line in processes.quarantine(trial.folder / "cache").values()}
    touched = {path for run in (scanned, built, verified) for path in run.touched_below(outside)}
    if kind == 2:
        assert touched == {"b.mp4", "sub", "sub/c.mp4", "sub/back"} & touched
        assert {"link.mp4", "folder/c.mp4"} <= cached
        return {"sum_escapes": len([path for path in touched if path.startswith("other")])}
    assert touched == set()
    if kind == 1:
        assert causes == {"b.mp4": "refused-link", "sub/c.mp4": "refused-link"}
    assert cached == ({"a.mp4"} if kind == 1 else {"a.mp4", "b.mp4", "sub/c.mp4", "inner.mp4"})
    return {"sum_escapes": len(touched)}


def _links_in(corpus: Path, outside: Path) -> None:
    (corpus / "loop.mp4").symlink_to("loop.mp4")
    (corpus / "dangling.mp4").symlink_to("nowhere.mp4")
    (corpus / "up").symlink_to("..")
    (corpus / "sub/self").symlink_to(".")
    (corpus / "inner.mp4").symlink_to("sub/c.mp4")
    (corpus / "link.mp4").symlink_to(outside / "b.mp4")
    (corpus / "chain.mp4").symlink_to("link.mp4")
    (corpus / "relative.mp4").symlink_to("../outside/b.mp4")
    (corpus / "folder").symlink_to(outside / "sub")
    (outside / "sub/back").symlink_to(corpus)


def _links_in_place(corpus: Path, outside: Path) -> None:
    """Make links in place of a file and of a folder that were scanned, with the times of what they replace."""
    for name in ("b.mp4", "sub"):
        (corpus / name).rename(corpus.parent / f"was-{name}")
        (corpus / name).symlink_to(outside / name)
