"""Links inside of a cache that another person made: no command writes, removes or takes a file behind one."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.inline import HERE

import chordcache as cc

TIERS = ["lmdb", "npz", "hdf5"]

PLACES = {
    "header": "chordcache.json",
    "index": "index.jsonl",
    "quarantine": "quarantine.jsonl",
    "runs": "runs.jsonl",
    "lock": ".lock",
    "catalog": "catalog.bin",
    "sidecar": "videos/*/a-*.json",
    "frames": "lmdb/*/a-*",
    "motion": "npz/*/a-*",
    "both": "hdf5/*/a-*",
    "folder of sidecars": "videos/*",
    "all sidecars": "videos",
    "folder of artefacts": "npz/*",
    "tier": "lmdb",
    "partial files": ".partial",
}
"""Name of each place to the pattern of its path"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with the indices of two folders of videos, and a cache with all tiers for each."""
    work = tmp_path_factory.mktemp("complete")
    for cache, names in (("cache", "ab"), ("second", "cd")):
        for name in names:
            make_video(work / f"{cache}-videos/{name}.mp4", num_frames=4)
        cc.scan([work / f"{cache}-videos"], output=work / f"{cache}.json", jobs=HERE)
        cc.build(work / f"{cache}.json", work / cache, tiers=TIERS, features=["frames", "motion"], jobs=HERE)
    (work / "cache/quarantine.jsonl").touch()
    return work


def read(cache: Path) -> None:
    with cc.open_cache(cache) as opened:
        for video in opened:
            opened.read(video, "frames", 0, 4)
            opened.read(video, "motion", 0, 4)


def repair(cache: Path) -> None:
    cc.repair(cache, cc.verify(cache, jobs=HERE).damage, jobs=HERE)


USES: dict[str, Callable[[Path], object]] = {
    "read": lambda work: read(work / "cache"),
    "repair": lambda work: repair(work / "cache"),
    "gc": lambda work: cc.collect_garbage(work / "cache"),
    "build more": lambda work: cc.build(work / "second.json", work / "cache", jobs=HERE),
    "build its index": lambda work: cc.build(work / "cache/index.jsonl", work / "cache", jobs=HERE),
    "merge": lambda work: cc.merge([work / "cache", work / "second"], work / "joined"),
}


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    paths = sorted(folder.rglob("*"))
    return {str(path): (path.stat().st_nlink, path.stat().st_mtime_ns) for path in paths} | {
        f"{path} content": (path.read_bytes(),) for path in paths if path.is_file()
    }


def place_in(cache: Path, name: str) -> Path:
    pattern = PLACES[name]
    if "*" in pattern:
        return min(cache.glob(pattern))
    (cache / pattern).parent.mkdir(exist_ok=True)
    return cache / pattern


def error_of(use: str, work: Path) -> cc.ChordcacheError | None:
    """Run a command. Return its error, which must be one of chordcache, or None."""
    try:
        USES[use](work)
    except cc.ChordcacheError as error:
        return error
    return None


class Watch:
    """Opened files and folders below a folder, by any process. A descriptor that only leads to others does not count.

    Source: inotify(7).
    """

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for path in (folder, *folder.rglob("*")):
            assert libc.inotify_add_watch(self._fd, os.fsencode(path), 0x20) > 0  # IN_OPEN

    def has_seen(self) -> bool:
        """Return whether anything was opened. Call it once."""
        try:
            return bool(os.read(self._fd, 4096))
        except BlockingIOError:
            return False
        finally:
            os.close(self._fd)


def test_the_watch_sees_what_is_opened(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").touch()
    for look in ((tmp_path / "folder/file").read_bytes, lambda: os.listdir(tmp_path / "folder")):
        watch = Watch(tmp_path)
        look()
        assert watch.has_seen()
    assert not Watch(tmp_path).has_seen()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", PLACES)
def test_nothing_behind_a_link_is_opened_or_changed(complete: Path, tmp_path: Path, name: str, use: str) -> None:
    """The target is what the link replaces, so that a command that follows the link has no other reason to stop."""
    work, outside = Path(shutil.copytree(complete, tmp_path / "work")), tmp_path / "outside"
    place = place_in(work / "cache", name)
    outside.mkdir()
    if place.exists():
        place.rename(outside / "target")
    else:
        (outside / "target/aaaaaaaa-1-x").mkdir(parents=True)
    place.symlink_to(outside / "target")
    before, watch = snapshot(outside), Watch(outside)
    error = error_of(use, work)
    assert error is None or "got a link, expected a" in str(error)
    assert not watch.has_seen()
    assert snapshot(outside) == before


def put_sparse(place: Path) -> None:
    place.touch()
    os.truncate(place, 1 << 40)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("put", [os.mkfifo, put_sparse])
def test_no_command_waits_or_reads_without_end(
    complete: Path, tmp_path: Path, put: Callable[[Path], None], name: str, use: str
) -> None:
    """A pipe, or a file that says that it is larger than the disk."""
    work = Path(shutil.copytree(complete, tmp_path / "work"))
    place = place_in(work / "cache", name)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    put(place)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error_of(use, work)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB
