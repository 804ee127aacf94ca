"""A job that reads a cache. Imports nothing but what reading needs; ``readers`` starts it in processes of its own.

python reader.py crowd CACHE TRUTH NUM_READERS UID
    As many processes as said, all of that user, that open the cache, wait for each other and read everything.
python reader.py watch CACHE TRUTH SEED
    One process that opens the cache again and again, while it is built.

``TRUTH`` is JSON: the digest of every feature of every video, for each fingerprint that it may have. A job ends when
its standard input does, and prints JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import chordcache as cc
from chordcache.storage.artefacts import open_files

FEATURES = {"lmdb": ("frames",), "npz": ("flow", "motion"), "hdf5": ("frames", "flow")}


def digest(values: np.ndarray) -> str:
    """Return the digest of an array's shape, dtype and bytes."""
    return hashlib.sha256(repr((values.shape, values.dtype.str)).encode() + values.tobytes()).hexdigest()


def name_of(path: str, tier: str, feature: str, fingerprint: str) -> str:
    """Return the name of a feature of a video in ``TRUTH``."""
    return f"{path} {tier} {feature} {fingerprint}"


def read(cache: cc.Cache, video: cc.Video, truth: Mapping[str, str]) -> int:
    """Read everything of a video that the cache has; the number of reads. Raises if one is wrong."""
    infos = [info for info in video.sidecar.features if info.file and info.feature in FEATURES[info.tier]]
    for info in infos:
        name = name_of(video.path, info.tier, info.feature, info.fingerprint)
        assert digest(cache.read(video, info.feature, tier=info.tier)) == truth[name], name
    return len(infos)


def main() -> None:
    """See the module's docstring."""
    command, cache, truth, *rest = sys.argv[1:]
    known = json.loads(Path(truth).read_text())
    result = crowd(Path(cache), known, *map(int, rest)) if command == "crowd" else watch(Path(cache), known, rest[0])
    _say(json.dumps(result))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# Many at once


def crowd(cache: Path, truth: Mapping[str, str], num_readers: int, uid: int) -> dict[str, int]:
    """``{"readers": n, "wrong": n}``; prints a line once all readers have the cache open."""
    with cc.open_cache(cache) as opened:
        read(opened, opened[0], truth)  # imports what a reader may have no right to import, and is closed again
    is_open, gate = os.pipe(), os.pipe()
    children = []
    for _ in range(num_readers):
        pid = os.fork()
        if not pid:
            os.close(gate[1])
            os._exit(_one_of_crowd(cache, truth, uid, is_open[1], gate[0]))
        children.append(pid)
    os.close(is_open[1])  # so that the pipe ends if readers die
    num_open = 0
    while num_open < num_readers and (opened := os.read(is_open[0], num_readers)):
        num_open += len(opened)
    _say(f"{num_open} have it open")
    sys.stdin.read()
    os.close(gate[1])
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    return {"readers": num_readers, "wrong": sum(code != 0 for code in codes)}


def _one_of_crowd(cache: Path, truth: Mapping[str, str], uid: int, is_open: int, gate: int) -> int:
    try:
        os.setgid(uid)
        os.setuid(uid)
        with cc.open_cache(cache) as opened:
            read(opened, opened[0], truth)
            os.write(is_open, b".")
            os.read(gate, 1)
            num_reads = sum(read(opened, video, truth) for video in opened)
        return 0 if num_reads == len(truth) else 1
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1


# While it is built

MAX_PAUSE_SECONDS = 0.3
"""Between two times that a reader opens the cache: the builder is to get on, too."""


def watch(cache: Path, truth: Mapping[str, str], seed: str) -> dict[str, int]:
    """``{"reads": n, "opened": n, "generations": n}``; ends with a traceback at the first read that is wrong."""
    rng = random.Random(seed)
    num_reads = num_opened = 0
    fingerprints = set()
    kept: tuple[cc.Cache, list[cc.Video]] | None = None
    while not _is_over():
        time.sleep(rng.random() * MAX_PAUSE_SECONDS)
        try:
            opened = cc.open_cache(cache)
        except cc.NotFoundError:
            assert kept is None, "a cache that was there is gone"
            continue
        num_opened += 1
        videos = list(opened)
        fingerprints |= {info.fingerprint for video in videos for info in video.sidecar.features}
        kept = kept or (opened, videos)
        for _ in range(rng.randrange(1, 4)):
            num_reads += read(opened, rng.choice(videos), truth)
        _forget(*kept)
        num_reads += read(kept[0], rng.choice(kept[1]), truth)
    return {"reads": num_reads, "opened": num_opened, "generations": len(fingerprints)}


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _forget(cache: cc.Cache, videos: list[cc.Video]) -> None:
    """Have the files of a generation opened again: they must still be there."""
    for video in videos:
        for info in video.sidecar.features:
            if info.file is not None:
                open_files.forget(cache.path / info.file.name)


if __name__ == "__main__":
    main()
