"""Builds with a scratch: the same cache, few calls on its disk, and nothing left on the scratch."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers import clusters, processes, small_disks
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN

import chordcache as cc
from chordcache.digests import digest_file
from chordcache.errors import CacheWriteError, UsageError
from chordcache.storage import scratch as scratch_module
from chordcache.storage.node_check import check_for
from chordcache.storage.scratch import checked_scratch, copy_checked, scratch_folder, tidy

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

TIERS = ("--tier", "lmdb", "--tier", "npz", "--tier", "hdf5", "--features", "frames,flow,mel")

CALLS = (
    "stat,lstat,newfstatat,fstat,statx,open,openat,openat2,creat,mkdir,mkdirat,rmdir,rename,renameat,renameat2,unlink,"
    "unlinkat,fsync,fdatasync,link,linkat,access,faccessat,faccessat2,readlink,readlinkat,truncate,ftruncate,utimensat"
)
"""System calls about the names, the sizes and the durability of files"""

NUM_VIDEOS = 10


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("scratch")
    for number in range(NUM_VIDEOS):
        make_video(folder / f"videos/{number}.mp4", num_frames=6 + number)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def sidecars(cache: Path) -> dict[str, bytes]:
    """Name of each sidecar to its bytes. They hold the digests of all artefacts."""
    return {path.name: path.read_bytes() for path in cache.glob("videos/*/*.json")}


def is_sound(cache: Path) -> bool:
    return not cc.verify(cache, level="deep", jobs=1).damage and processes.partials(cache) == []


# The same cache


def test_a_scratch_changes_nothing_in_the_cache(videos: Path, scratch: Path, tmp_path: Path, run_cli: Cli) -> None:
    for cache, options in (("without", []), ("with", ["--scratch", scratch])):
        done = run_cli("build", videos / "index.json", "-o", cache, "-j1", *TIERS, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert sidecars(tmp_path / "with") == sidecars(tmp_path / "without")
    assert len(sidecars(tmp_path / "with")) == NUM_VIDEOS
    assert is_sound(tmp_path / "with")
    assert os.listdir(scratch) == []
    modes = {file.suffix: file.stat().st_mode for file in (tmp_path / "without").glob("*/*/*.*")}
    assert {file.suffix: file.stat().st_mode for file in (tmp_path / "with").glob("*/*/*.*")} == modes


def test_features_that_are_added_and_repairs_use_the_scratch(
    videos: Path, scratch: Path, tmp_path: Path, run_cli: Cli
) -> None:
    cache, index = tmp_path / "cache", videos / "index.json"
    options = cc.BuildOptions(scratch=scratch)
    cc.build(index, cache, features=["frames"], jobs=1, options=options)
    assert cc.build(index, cache, tiers=["npz"], features=["mel", "flow"], jobs=1, options=options).num_done == 10
    before = sidecars(cache)
    artefact = next(cache.glob("lmdb/*/*"))
    processes.flip(artefact, artefact.stat().st_size // 2)
    done = run_cli("verify", cache, "--repair", "-j1", "--scratch", scratch)
    assert done.returncode == 0, done.stderr
    assert sidecars(cache) == before
    assert is_sound(cache)
    assert os.listdir(scratch) == []


# Calls on the disk of the cache


def num_calls(folder: Path, videos: Path, num_videos: int, options: list[str]) -> Counter[str]:
    """Build so many videos under strace. Return the number of each call on the paths of the cache."""
    cache, trace = folder / f"cache{num_videos}", folder / f"trace{num_videos}"
    index = videos / f"videos/first{num_videos}.csv"
    index.write_text("\n".join(["path", *(f"{number}.mp4" for number in range(num_videos))]) + "\n")
    command = [sys.executable, "-m", "chordcache", "build", index, "-o", cache, "-j1", "--features", "frames", *options]
    done = subprocess.run(
        ["strace", "--seccomp-bpf", "-f", "-qq", "-y", "-e", f"trace={CALLS}", "-o", trace, *map(str, command)],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(rf"^(\d+) +(\w+)\(.*({cache}[^\">]*)", trace.read_text(), re.MULTILINE)
    # The thread that counts up in the record of the owner does so as long as the build takes
    counts = {process for process, _, path in found if not path.endswith("/.owner")}
    return Counter(call for process, call, path in found if process in counts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("with_scratch", "limit"), [(True, 25), (False, 60)])
def test_calls_on_the_disk_of_the_cache(
    with_scratch: bool, limit: int, videos: Path, scratch: Path, tmp_path: Path
) -> None:
    """Count also the calls that make the folders of a video, since in a small cache hardly two videos share them."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    options = ["--scratch", str(scratch)] if with_scratch else []
    few, many = (num_calls(tmp_path, videos, number, options) for number in (NUM_VIDEOS // 2, NUM_VIDEOS))
    assert is_sound(tmp_path / f"cache{NUM_VIDEOS}")
    calls = {name: (many[name] - few[name]) / (NUM_VIDEOS - NUM_VIDEOS // 2) for name in many}
    written_there = re.findall(r"/\.partial/[^/\">]+/\d+\.lmdb", (tmp_path / f"trace{NUM_VIDEOS}").read_text())
    assert bool(written_there) != with_scratch, "LMDB does not write on the disk of the cache"
    assert calls["fsync"] >= 4, "an artefact, a sidecar and their folders are made durable"
    assert sum(calls.values()) <= limit, calls


# Disks that fail


@pytest.mark.parametrize(("tier", "feature"), [("lmdb", "frames"), ("npz", "flow"), ("hdf5", "frames")])
def test_a_scratch_that_is_full(
    tier: str, feature: str, small_disk: tuple, tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    disk, limit, free = small_disk
    (disk / "scratch").mkdir()
    make_video(tmp_path / "videos/a.mp4", num_frames=12, size=(640, 480))
    (tmp_path / "c.yaml").write_text("frames: {codec: raw, short_side: null}\nfeatures: {flow: {method: dis}}\n")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    command = [sys.executable, "-m", "chordcache", "build", "-c", "c.yaml", "-j1", "--scratch", disk / "scratch"]
    command += ["--tier", tier, "--features", feature]
    done = subprocess.run(
        list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=90, preexec_fn=limit
    )
    assert done.returncode == 12, done.stdout + done.stderr
    assert processes.fine(done.stderr), done.stderr
    assert f"scratch: on {socket.gethostname()}, " in done.stderr
    assert str(disk / "scratch") in done.stderr
    assert processes.partials(tmp_path / "cache") == []
    assert [*(tmp_path / "cache").glob("*/*/*.*")] == []
    assert os.listdir(disk / "scratch") == []
    free()
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert is_sound(tmp_path / "cache")


def test_a_full_disk_of_the_cache_is_not_the_scratch(
    small_disk: tuple, tmp_path: Path, scratch: Path, make_video: Callable[..., Path], run_cli: Cli
) -> None:
    disk, _, _ = small_disk
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("cannot mount a disk")
    make_video(tmp_path / "videos/a.mp4", num_frames=12, size=(640, 480))
    (tmp_path / "c.yaml").write_text("frames: {codec: raw, short_side: null}\n")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    command = ["build", "-o", disk / "cache", "-c", "c.yaml", "-j1", "--features", "frames", "--scratch", scratch]
    done = run_cli(*command, cwd=tmp_path)
    assert done.returncode == 12, done.stderr
    assert "scratch" not in done.stderr
    assert processes.partials(disk / "cache") == []
    assert os.listdir(scratch) == []


def test_a_copy_is_compared_with_its_digest(tmp_path: Path, scratch: Path) -> None:
    (scratch / "a").write_bytes(b"as written" * 100_000)
    digest = digest_file(scratch / "a")
    copy_checked(scratch / "a", tmp_path / ".partial/copy", digest)
    assert (tmp_path / ".partial/copy").read_bytes() == (scratch / "a").read_bytes()
    processes.flip(scratch / "a", 70_000)
    with pytest.raises(CacheWriteError, match="scratch: .*is not what was written"):
        copy_checked(scratch / "a", tmp_path / ".partial/other", digest)


# Workers that are killed


@pytest.fixture
def with_fault(tmp_path: Path, make_video: Callable[..., Path]) -> Callable[[str], list[str | Path]]:
    """Function that returns the arguments of a build of three videos, one of which has a fault."""

    def arguments(fault: str) -> list[str | Path]:
        for number, width in enumerate((64, 64, 96)):
            make_video(tmp_path / f"videos/{number}.mp4", size=(width, 48), num_frames=8)
        mine = {"extractor": PLUG_IN, "fault_of_width": {"96": fault}}
        (tmp_path / "mine.yaml").write_text(yaml.dump({"features": {"mine": mine}}))
        cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
        command: list[str | Path] = ["build", "-c", "mine.yaml", "-j2", "--scratch", tmp_path / "scratch"]
        return [*command, "--tier", "lmdb", "--tier", "npz", "--features", "frames,mine"]

    return arguments


def test_a_worker_that_is_killed_while_it_writes(
    with_fault: Callable[[str], list[str]], scratch: Path, tmp_path: Path, run_cli: Cli
) -> None:
    done = run_cli(*with_fault("SIGKILL"), cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 3, done.stderr
    assert os.listdir(scratch) == []
    assert len(sidecars(tmp_path / "cache")) == 2
    assert processes.partials(tmp_path / "cache") == []


def test_a_run_that_is_killed_is_tidied_by_the_next(
    with_fault: Callable[[str], list[str]], scratch: Path, tmp_path: Path, run_cli: Cli
) -> None:
    arguments = with_fault("sleep")
    with processes.running(tmp_path, *arguments, env=ENVIRONMENT) as run:
        assert processes.wait_until(
            lambda: len(sidecars(tmp_path / "cache")) == 2 and len(os.listdir(scratch)) == 1, 60
        )
        (mine,) = os.listdir(scratch)
        done = run_cli("build", tmp_path / "index.json", "-o", "other", "-j1", "--features", "frames", "--scratch",
                       scratch, cwd=tmp_path)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert os.listdir(scratch) == [mine], "the folder of a process that lives stays"
        run.kill_all()
    assert os.listdir(scratch) == [mine]
    done = run_cli(*arguments, cwd=tmp_path, env={**ENVIRONMENT, "FAULTS_ARE_FIXED": "1"})
    assert done.returncode == 0, done.stderr
    assert os.listdir(scratch) == []
    assert len(sidecars(tmp_path / "cache")) == 3
    assert processes.partials(tmp_path / "cache") == []


# What lies on the scratch


def name_of(digit: str, boot: str | None = None, host: str = socket.gethostname()) -> str:
    return f"chordcache-{host}-{boot or scratch_module._boot()}-{digit * 32}"


def test_only_what_dead_processes_left_is_removed(scratch: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    left, restarted = scratch / name_of("0"), scratch / name_of("1", boot="f" * 16)
    for folder in (left, restarted):
        folder.mkdir()
        (folder / "0.lmdb").touch()
        (folder / "link").symlink_to(tmp_path / "outside")
    (scratch / name_of("2")).symlink_to(tmp_path / "outside")
    (scratch / name_of("3")).write_text("a file")
    os.mkfifo(scratch / name_of("4"))
    (scratch / name_of("5", boot="f" * 16, host="another")).mkdir()
    (scratch / "chordcache-notes").mkdir()
    alive = scratch / name_of("6")
    alive.mkdir()
    if os.geteuid() == 0:
        (scratch / name_of("7")).mkdir()
        os.chown(scratch / name_of("7"), 65534, 65534)
    before = {path.name for path in scratch.iterdir()}
    lock = os.open(alive, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tidy(scratch)
        with scratch_folder(scratch) as folder:
            tidy(scratch)
            assert folder.is_dir()
            assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.close(lock)
    assert {path.name for path in scratch.iterdir()} == before - {left.name, restarted.name}
    assert (tmp_path / "outside/kept").exists()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing", "is not a folder"),
        ("file", "is not a folder"),
        ("/proc", "is not writable"),
        ("cache/inside", "is in the folder of the cache"),
        ("cache", "is in the folder of the cache"),
        (".", "holds the folder of the cache"),
        ("link", "is in the folder of the cache"),
        ("s3://bucket", "expected a path on a mounted disk"),
    ],
)
def test_a_folder_that_cannot_be_the_scratch(
    name: str, problem: str, videos: Path, tmp_path: Path, run_cli: Cli
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "cache/inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("cache/inside")
    done = run_cli("build", videos / "index.json", "--scratch", name, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "scratch: got '" in done.stderr
    assert problem in done.stderr
    assert os.listdir(tmp_path / "cache") == ["inside"]


def test_the_scratch_of_other_machines(tmp_path: Path, videos: Path) -> None:
    cache, missing = tmp_path / "cache", tmp_path / "missing"
    assert checked_scratch(missing, cache, is_elsewhere=True) == missing
    with pytest.raises(UsageError, match="in the folder of the cache"):
        checked_scratch(cache / "a", cache, is_elsewhere=True)
    cache.mkdir()
    assert check_for([], cache, scratch=tmp_path)() == f"scratch '{tmp_path}' there holds the folder of the cache"
    assert check_for([], cache, scratch=missing)() == f"scratch '{missing}' there is not a folder"
    assert "there is not writable" in str(check_for([], cache, scratch=Path("/proc"))())
    missing.mkdir()
    assert check_for([], cache, scratch=missing)() is None


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_node_without_the_scratch_gets_no_work(videos: Path, tmp_path: Path, run_cli: Cli) -> None:
    """The scratch is a disk of the first node. The second node and the driver do not have it."""
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("cannot mount a disk")
    (tmp_path / "local").mkdir()
    scratch = tmp_path / "local/scratch"
    own_disk = f'mount -t tmpfs none {tmp_path}/local && mkdir {scratch} && exec "$@"'
    nodes = [{"prefix": ["unshare", "-m", "sh", "-c", own_disk, "sh"]}, {}]
    with clusters.dask(tmp_path / "cluster", nodes) as cluster:
        command = ["build", videos / "index.json", "-o", "cache", "--scratch", scratch, "--features", "frames"]
        done = run_cli(*command, "--engine", "dask", "--address", cluster.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"gets no work: scratch '{scratch}' there is not a folder") == 1
    assert len(sidecars(tmp_path / "cache")) == NUM_VIDEOS
    assert is_sound(tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_node_whose_scratch_is_full_gets_no_work(videos: Path, scratch: Path, tmp_path: Path, run_cli: Cli) -> None:
    """The check of the node passes: a folder can be made there. Nothing can be written into it."""
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("cannot mount a disk")
    own_disk = f'mount -t tmpfs -o size=4k none {scratch} && exec "$@"'
    nodes = [{"prefix": ["unshare", "-m", "sh", "-c", own_disk, "sh"]}, {}]
    command = ["build", videos / "index.json", "-o", "cache", "--scratch", scratch, "--features", "frames"]
    with clusters.dask(tmp_path / "cluster", nodes) as cluster:
        engine = ["--engine", "dask", "--address", cluster.address]
        done = run_cli(*command, *engine, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"gets no work: scratch: on {socket.gethostname()}, ") == 1
    assert len(sidecars(tmp_path / "cache")) == NUM_VIDEOS
    assert is_sound(tmp_path / "cache")
    with clusters.dask(tmp_path / "full", nodes[:1]) as cluster:
        engine = ["--engine", "dask", "--address", cluster.address]
        done = run_cli(*command[:3], "other", *command[4:], *engine, cwd=tmp_path)
    assert done.returncode == 12, done.stderr
