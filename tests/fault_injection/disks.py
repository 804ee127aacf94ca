"""R3: disks that fill up, anywhere in a build or a scan."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml
from conftest import run_chordcache
from helpers import processes
from helpers.cache_contents import Arrays, arrays, differing
from helpers.small_disks import ext4, tmpfs

import chordcache as cc
from fault_injection import fixtures
from fault_injection.fixtures import TIERS, build_args, differs, make_corpus, needs_root
from fault_injection.harness import Figures, Trial, experiment

FULL = re.compile(
    r"chordcache \w+: error: .*(no space left|no room|file too large).*run the same command", re.IGNORECASE
)
"""All that a user may see of a full disk."""

NOTICE = re.compile(r"chordcache: \w+: builds \d+ cached videos .* again: ")
"""First lines of a build with other settings."""

REFUSED = re.compile(r"no space left for cache ")
"""In the message where less is free than a build begins a video with: nothing was written into a full disk."""

CONFIG = {**fixtures.CONFIG, "frames": {"short_side": 128, "codec": "raw"}}
"""Artefacts of several times that much, so that most disks are found full by writing."""

OLDER_SHORT_SIDE = 96
"""[pixels] of the frames of a cache that was there before."""


def _free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def _fill(disk: Path, room_bytes: int) -> None:
    """Leave that much room and no more; ``_make_room`` undoes it."""
    os.sync()  # what ext4 has yet to give blocks to is not counted
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, _free_bytes(disk) - room_bytes))


def _make_room(disk: Path) -> None:
    (disk / "ballast").unlink()


def _disk_usage(folder: Path) -> int:
    """Bytes on the disk of all files below a folder, and of the folders."""
    return sum(path.lstat().st_blocks * 512 for path in [folder, *folder.rglob("*")])


def _make_corpus(folder: Path) -> None:
    make_corpus(folder, height=128, config=CONFIG)


class _Case:
    """A build of one tier on a disk with little room, where an older cache is."""

    def __init__(self, trial: Trial, tier: str) -> None:
        self._tier = tier
        self._feature = "frames" if tier == "lmdb" else "flow"
        self._corpus = trial.once("corpus", _make_corpus)
        self._older = trial.once(f"older-{tier}", self._make_older)
        self.need_bytes = _disk_usage(self._corpus / "whole" / tier) * 5 // 4 + 150_000
        """Somewhat more than the build takes"""
        self._is_rebuild = trial.number % 2 == 1
        """True to build the older cache itself again, with other parameters; false to build another one beside it"""

    def _make_older(self, folder: Path) -> None:
        config = folder.with_suffix(".yaml")
        config.write_text(yaml.dump({**CONFIG, "frames": {**CONFIG["frames"], "short_side": OLDER_SHORT_SIDE}}))
        cc.build(self._corpus / "index.json", folder, tiers=[self._tier], config=config, jobs=2)

    def prepare(self, folder: Path) -> None:
        """Put the older cache there."""
        self._there = folder / ("cache" if self._is_rebuild else "older")
        subprocess.run(["cp", "-a", self._older, self._there], check=True)
        self._files = self._files_of_older()

    def _files_of_older(self) -> dict[str, tuple[int, int, int]]:
        """Its artefacts, and its sidecars unless they are to be replaced."""
        tops = ("lmdb", "npz", "hdf5") if self._is_rebuild else ("videos", "lmdb", "npz", "hdf5")
        return {name: status for name, status in processes.files_of(self._there).items() if name.startswith(tops)}

    def num_new_files(self, folder: Path) -> int:
        """Artefacts and sidecars that were published since."""
        return len(processes.files_of(folder / "cache").items() - self._files.items())

    def args(self, folder: Path) -> list[str | Path]:
        """Return the arguments of the command."""
        return build_args(self._corpus, self._tier, folder / "cache")

    def check(self, folder: Path, code: int, stderr: str) -> Figures:
        """After the command: either there was room for everything, or nothing that is there is wrong."""
        if code == 0:
            assert differs(folder / "cache", self._corpus / "whole", self._tier) == []
            return {"sum_had_room": 1}
        _check_message(code, stderr)
        assert processes.partials(folder / "cache") == []
        assert processes.quarantine(folder / "cache") == {}
        self._check_older()
        num_published = self._check_published(folder / "cache")
        is_refused = REFUSED.search(stderr) is not None
        return {
            "sum_had_room": 0,
            "sum_full_before_writing": is_refused,
            "sum_full_while_writing": not is_refused,
            "sum_videos_published_before": num_published,
        }

    def _check_older(self) -> None:
        """Every file of the older cache is as it was, and who opens it reads it."""
        now = self._files_of_older()
        assert {file: now.get(file) for file in self._files} == self._files
        with cc.open_cache(self._there) as cache, cc.open_cache(self._older) as expected:
            for video in expected:
                read, wanted = (opened.read(video, self._feature, tier=self._tier) for opened in (cache, expected))
                assert np.array_equal(read, wanted), video.key

    def _check_published(self, cache: Path) -> int:
        """Every video is as the older build left it or as an undisturbed one leaves it; the number of the latter."""
        older, whole = arrays(self._older), arrays(self._corpus / "whole")
        current = arrays(cache)
        paths = {path for path, _, _ in current}
        is_new = {path: not _differing_at(path, self._tier, current, whole) for path in paths}
        wrong = [path for path in paths if not is_new[path] and _differing_at(path, self._tier, current, older)]
        assert wrong == []
        assert self._is_rebuild or all(is_new.values())
        return sum(is_new.values())

    def check_resumed(self, folder: Path) -> None:
        """With room, the same command makes the cache whole."""
        done = run_chordcache(*self.args(folder))
        assert (done.returncode, _messages(done.stderr)) == (0, [])
        assert differs(folder / "cache", self._corpus / "whole", self._tier) == []
        assert processes.partials(folder / "cache") == []
        damage = cc.verify(folder / "cache", jobs=1).damage
        assert [finding for finding in damage if finding.kind != "orphan" or not self._is_rebuild] == []


def _differing_at(path: str, tier: str, a: Arrays, b: Arrays) -> bool:
    """Return whether two caches differ in one video in one tier."""
    of_a, of_b = ({name: value for name, value in contents.items() if name[:2] == (path, tier)} for contents in (a, b))
    return differing(of_a, of_b) != []


def _check_message(code: int, stderr: str) -> None:
    assert code == 12, (code, stderr)
    messages = _messages(stderr)
    assert len(messages) == 1, stderr
    assert FULL.match(messages[0]), stderr


def _messages(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if not NOTICE.match(line)]


def _build_with_little_room(trial: Trial, disk: Path, tier: str) -> Figures:
    case = _Case(trial, tier)
    case.prepare(disk)
    _fill(disk, int(trial.rng.random() * case.need_bytes))
    done = run_chordcache(*case.args(disk))
    figures = case.check(disk, done.returncode, done.stderr)
    _make_room(disk)
    case.check_resumed(disk)
    return figures


@experiment(
    "R3", "build on a tmpfs that fills up at a random point, then room and the same command",
    trials=40, variants=TIERS,
)  # fmt: skip
def tmpfs_fills_up(trial: Trial) -> Figures:
    """Every second time it is a rebuild of a cache that is there. Some builds have room: 50 disks of a tier fill up."""
    needs_root()
    with tmpfs(trial.folder / "disk", "64m", may_be_open=True) as disk:
        return _build_with_little_room(trial, disk, trial.variant)


@experiment("R3", "the same on ext4, which gives out blocks late", trials=20)
def ext4_fills_up(trial: Trial) -> Figures:
    """The tiers in turn."""
    needs_root()
    with ext4(trial.folder / "disk", "64m", may_be_open=True) as disk:
        return _build_with_little_room(trial, disk, TIERS[trial.number // 2 % 3])


@experiment("R3", "build on a disk that another process fills meanwhile", trials=20)
def another_process_fills_the_disk(trial: Trial) -> Figures:
    """At a random moment of the build, in the tiers in turn."""
    needs_root()
    with tmpfs(trial.folder / "disk", "64m", may_be_open=True) as disk:
        case = _Case(trial, TIERS[trial.number // 2 % 3])
        case.prepare(disk)
        with processes.running(trial.folder, *case.args(disk)) as run:
            wanted = trial.rng.randrange(8)
            processes.wait_until(lambda: case.num_new_files(disk) >= wanted or run.process.poll() is not None, 60)
            time.sleep(trial.rng.random() * 0.3)
            subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'ballast'}", "bs=64k"], capture_output=True)
            code = run.wait()
            assert run.survivors() == []
        figures = case.check(disk, code, run.stderr)
        _make_room(disk)
        case.check_resumed(disk)
        return figures


@experiment("R3", "build under a random limit on the size of files", trials=20)
def files_are_limited(trial: Trial) -> Figures:
    """RLIMIT_FSIZE, in the tiers in turn."""
    case = _Case(trial, TIERS[trial.number // 2 % 3])
    case.prepare(trial.folder)
    limit = int(trial.rng.random() * case.need_bytes / 3)
    done = subprocess.run(
        [sys.executable, "-m", "chordcache", *map(str, case.args(trial.folder))],
        capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    figures = case.check(trial.folder, done.returncode, processes.without_progress(done.stderr))
    case.check_resumed(trial.folder)
    return figures


def _make_many(folder: Path) -> None:
    """Files that are not videos, and half of them again: an index of them is long, and quick to make."""
    for name, num_files in (("all", 200), ("half", 100)):
        (folder / name).mkdir(parents=True)
        for number in range(num_files):
            (folder / name / f"{number:04}.mp4").write_bytes(b"no video" * 8)


@experiment("R3", "scan onto a disk that fills up at a random point", trials=20)
def scan_fills_the_disk(trial: Trial) -> Figures:
    """The earlier index, of half of the files, stays as it was. The kinds of index in turn."""
    needs_root()
    corpus = trial.once("many", _make_many)
    with tmpfs(trial.folder / "disk", "16m", may_be_open=True) as disk:
        index = disk / f"index{('.json', '.jsonl', '.csv')[trial.number % 3]}"
        cc.scan([corpus / "all"], output=index, jobs=1)
        whole = index.read_bytes()
        index.unlink()
        cc.scan([f"all={corpus / 'half'}"], output=index, jobs=1)
        earlier = index.read_bytes()
        _fill(disk, int(trial.rng.random() * 1.2 * len(whole)))
        done = run_chordcache("scan", corpus / "all", "-o", index, "-j1")
        is_full = done.returncode != 3  # 3: all there is to scan is broken
        if is_full:
            _check_message(done.returncode, done.stderr)
        assert index.read_bytes() == (earlier if is_full else whole)
        assert {path.name for path in disk.iterdir()} - {f"{index.name}.runs.jsonl"} == {index.name, "ballast"}
        _make_room(disk)
        done = run_chordcache("scan", corpus / "all", "-o", index, "-j1")
        assert done.returncode == 3
        assert "every file was read again" in done.stderr if index.suffix == ".csv" else not done.stderr
        assert index.read_bytes() == whole
        return {"sum_had_room": not is_full, "sum_full": is_full}
