"""Caches in object_stores. No test_*.py, since they need the environment of `make test-formats`: obstore and moto."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import object_stores, small_disks
from helpers.object_stores import CONFIG, NUM_VIDEOS, assert_equal, contents

import chordcache as cc
from chordcache.object_stores.client import ObjectStore
from chordcache.object_stores.pull import pull
from chordcache.object_stores.push import push
from chordcache.read.video import open_feature
from chordcache.storage.layout import place_of
from chordcache.storage.origin import Origin, write_origin

pytest_plugins = ["helpers.object_store_fixtures"]
pytestmark = pytest.mark.usefixtures("environment")

Cli = Callable[..., subprocess.CompletedProcess[str]]


def artefacts(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for tier in ("lmdb", "npz", "hdf5") for path in folder.glob(f"{tier}/*/*")}


# push and pull


def test_a_pulled_cache_is_the_pushed_one(cache: Path, url: str, tmp_path: Path, run_cli: Cli) -> None:
    assert push(cache, url).num_videos == NUM_VIDEOS
    summary = pull(url, tmp_path / "pulled")
    assert summary.num_files > 0
    assert_equal(cc.open_cache(cache), cc.open_cache(tmp_path / "pulled"))
    names = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()} - {".lock"}
    pulled = tmp_path / "pulled"
    assert {str(path.relative_to(pulled)) for path in pulled.rglob("*") if path.is_file()} - {".lock"} == names
    for name in names:
        assert (pulled / name).read_bytes() == (cache / name).read_bytes()
    result = run_cli("verify", str(tmp_path / "pulled"))
    assert result.returncode == 0, result.stdout + result.stderr
    again = pull(url, tmp_path / "pulled")
    assert (again.num_files, again.num_present) == (0, summary.num_files)


def test_a_push_sends_what_has_changed(
    work: Path, loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path, run_cli: Cli
) -> None:
    cache = loose
    first = push(cache, url)
    reader = cc.open_cache(url, local=tmp_path / "reader")
    proxy.reset()
    again = push(cache, url)
    assert (again.num_files, again.num_bytes, again.num_present) == (0, 0, first.num_files)
    sent = [path.rpartition("/cache/")[2] for method, path, _ in proxy.requests if method in ("PUT", "POST")]
    assert sent[-2:] == ["chordcache.json", "catalog.bin"]
    assert not [name for name in sent if "/" in name]
    # Another config: other artefacts and sidecars. What was there stays for readers
    cc.build(work / "index.json", cache, config=with_more_mels(work), tiers=("lmdb", "npz", "hdf5"), jobs=1)
    changed = push(cache, url)
    assert 0 < changed.num_bytes < first.num_bytes
    assert contents(reader)
    pull(url, tmp_path / "pulled")
    assert_equal(cc.open_cache(cache), cc.open_cache(tmp_path / "pulled"))
    result = run_cli("verify", str(tmp_path / "pulled"))
    assert result.returncode == 0, result.stdout + result.stderr


def with_more_mels(work: Path) -> Path:
    path = work / "other.yaml"
    path.write_text(CONFIG.replace("n_mels: 20", "n_mels: 30"))
    return path


def test_a_stopped_push_has_no_list_and_resumes(
    cache: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path
) -> None:
    order: list[str] = []

    def fault(_handler: Any, method: str, path: str, answer: object_stores.Answer) -> object_stores.Answer:
        if method in ("PUT", "POST") and "cache/" in path:
            name = path.partition("?")[0].rpartition("/cache/")[2]
            order.append(name)
            if name == "index.jsonl":
                return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
        return answer

    proxy.fault = fault
    with pytest.raises(cc.UsageError, match="AccessDenied, expected credentials that may write it"):
        push(cache, url)
    assert order[0] == "runs.jsonl"
    proxy.reset()
    for call in (lambda: pull(url, tmp_path / "pulled"), lambda: cc.open_cache(url, local=tmp_path / "local")):
        with pytest.raises(cc.NotFoundError, match="no cache at 's3://"):
            call()
    summary = push(cache, url)
    assert summary.num_files == 0
    assert summary.num_present > 0
    pull(url, tmp_path / "pulled")
    assert_equal(cc.open_cache(cache), cc.open_cache(tmp_path / "pulled"))


def test_a_push_does_not_overwrite(work: Path, loose: Path, url: str, tmp_path: Path) -> None:
    cc.build(work / "index.json", tmp_path / "other", config=work / "config.yaml", tiers=("lmdb",), jobs=1)
    earlier = shutil.copytree(loose, tmp_path / "earlier")
    cc.build(work / "index.json", loose, config=work / "config.yaml", tiers=("lmdb", "npz", "hdf5"), jobs=1)
    push(loose, url)
    for folder in (tmp_path / "other", earlier):
        with pytest.raises(cc.UsageError, match="another cache or a later state of this one"):
            push(folder, url)
    with pytest.raises(cc.UsageError, match="which holds 'cache/"):
        push(loose, url.removesuffix("/cache"))
    pull(url, tmp_path / "pulled")
    assert_equal(cc.open_cache(loose), cc.open_cache(tmp_path / "pulled"))
    with pytest.raises(cc.UsageError, match="which holds something else"):
        pull(url, tmp_path / "other")
    with pytest.raises(cc.UsageError, match="which holds something else"):
        pull(url, work / "videos")
    push(tmp_path / "pulled", url)  # the same cache


def test_a_damaged_artefact_is_not_pushed(loose: Path, url: str) -> None:
    name = sorted(artefacts(loose))[0]
    data = bytearray((loose / name).read_bytes())
    data[len(data) // 2] ^= 1
    (loose / name).write_bytes(data)
    with pytest.raises(cc.DamageError, match="its content is not what was written"):
        push(loose, url)
    with pytest.raises(cc.NotFoundError, match="no cache at"):
        cc.open_cache(url, local=loose.parent / "local")


def test_a_remote_cache_reads_as_its_folder(cache: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path) -> None:
    push(cache, url)
    proxy.reset()
    local = tmp_path / "local"
    reader = cc.open_cache(url, local=local)
    assert reader.keys() == cc.open_cache(cache).keys()
    assert not artefacts(local)
    video = reader[0]
    info = video.feature("frames")
    reader.read(video, "frames", 0, 4)
    assert artefacts(local) == {info.file.name}
    name, start = place_of(info.file)
    (request,) = proxy.gets(name)
    if info.file.packed:
        assert request[2] == f"bytes={start}-{start + info.file.num_bytes - 1}"
    assert_equal(cc.open_cache(cache), reader)
    assert_equal(reader, pickle.loads(pickle.dumps(reader)))
    gets = [get for tier in ("lmdb", "npz", "hdf5", "packs") for get in proxy.gets(f"/{tier}/")]
    assert len(gets) == len(set(gets)) == len(artefacts(local))


def test_a_folder_from_a_stranger_connects_to_nothing(
    loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its mark names an object store that the user of this process did not name."""
    push(loose, url)
    with cc.open_cache(url, local=tmp_path / "local") as reader:
        reader.read(0, "frames", 0, 1)
    received = tmp_path / "received"
    shutil.copytree(tmp_path / "local", received)
    proxy.reset()
    for read in (cc.open_cache, cc.ChordVideoDataset, cc.verify):
        with pytest.raises(cc.UsageError, match=r"received', which holds some files of 's3://.*open_cache\('s3://"):
            read(received)
    assert not proxy.requests
    forged = tmp_path / "forged"
    shutil.copytree(loose, forged)
    write_origin(forged, Origin(url, 1 << 40))
    with pytest.raises(cc.UsageError, match="which holds some files of"):
        cc.open_cache(forged)
    assert not proxy.requests


READER = """
import hashlib, sys, chordcache as cc
cache = cc.open_cache(sys.argv[1], local=sys.argv[2], limit=int(sys.argv[3]))
for _ in range(int(sys.argv[4])):
    digest = hashlib.sha256()
    for video in cache:
        digest.update(cache.read(video, "frames").tobytes())
    print(digest.hexdigest())
"""


def start_reader(url: str, local: Path, limit: int = 1 << 40, times: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, url, str(local), str(limit), str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_fetch_each_file_once(packed: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path) -> None:
    push(packed, url)
    proxy.reset()
    proxy.fault = lambda _handler, _method, _path, answer: (time.sleep(0.05), answer)[1]
    readers = [start_reader(url, tmp_path / "local") for _ in range(4)]
    outputs = {reader.communicate(timeout=60)[0] for reader in readers}
    assert len(outputs) == 1
    assert len(next(iter(outputs))) == 65
    gets = proxy.gets("/packs/")
    assert len(gets) == len(set(gets)) == NUM_VIDEOS
    for name in ("catalog.bin", "chordcache.json"):
        assert len(proxy.gets(name)) == 1


def test_readers_that_are_killed_at_random(loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path) -> None:
    """Among lists and artefacts. The other reader of the folder goes on, and so does a new one."""
    push(loose, url)
    source = cc.open_cache(loose)
    largest = max(video.feature("frames").file.num_bytes for video in source)
    expected = start_reader(url, tmp_path / "alone").communicate(timeout=60)[0]
    for seed in range(4):
        chance, local = random.Random(seed), tmp_path / str(seed)
        proxy.reset()
        proxy.fault = object_stores.of_objects("/cache/", object_stores.drip)
        readers = [start_reader(url, local, (1 << 40, 2 * largest)[seed // 2 % 2]) for _ in range(2)]
        end = time.monotonic() + 60
        while not proxy.gets(("catalog.bin", "/lmdb/")[seed % 2]):
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(chance.random() / 2)
        readers[0].kill()
        assert readers[1].communicate(timeout=60)[0] == expected
        readers[0].communicate()
        assert_complete(local, loose)
        assert_equal(source, cc.open_cache(url, local=local))


def assert_complete(local: Path, cache: Path) -> None:
    """Check that the folder has artefacts, and that each is that of a loose cache."""
    assert artefacts(local)
    for name in artefacts(local):
        assert (local / name).read_bytes() == (cache / name).read_bytes()


def test_the_files_that_were_read_least_lately_go(loose: Path, url: str, tmp_path: Path) -> None:
    push(loose, url)
    source = cc.open_cache(loose)
    infos = [video.feature("frames") for video in source]
    local, limit = tmp_path / "local", 3 * max(info.file.num_bytes for info in infos) + 1
    reader = cc.open_cache(url, local=local, limit=limit)
    with reader_of_frames(reader[1]) as artefact:
        for number in range(3):
            reader.read(number, "frames", 0, 1)
            past = time.time() - 1000 + number
            os.utime(local / infos[number].file.name, (past, past))
        reader.read(0, "frames", 0, 1)  # so that the others were read less lately
        reader.read(3, "frames", 0, 1)
        assert artefacts(local) == {infos[0].file.name, infos[3].file.name}
        assert len(list(artefact.records("frames", range(infos[1].shape[0])))) == infos[1].shape[0]
    np.testing.assert_array_equal(reader.read(1, "frames"), source.read(1, "frames"))
    assert sum((local / name).stat().st_size for name in artefacts(local)) <= limit
    assert_equal(source, cc.open_cache(url, local=local, limit="1GB"))
    with pytest.raises(cc.UsageError, match="limit: got 1000 bytes, expected at least"):
        small = cc.open_cache(url, local=tmp_path / "small", limit="1kB")
        small.read(0, "frames")


def reader_of_frames(video: cc.Video) -> Any:
    return open_feature(video, video.feature("frames"))


FORKING = """
import os, sys, threading, time, chordcache as cc
cache = cc.open_cache(sys.argv[1], local=sys.argv[2])
%s
"""


def run_forking(url: str, local: Path, code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FORKING % code, url, str(local)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_fork_after_a_fetch_is_an_error(loose: Path, url: str, tmp_path: Path) -> None:
    """The threads of obstore do not survive it: a request would hang. What is in the folder is read."""
    push(loose, url)
    code = """
cache.read(0, "frames")
if os.fork() == 0:
    cache.read(0, "frames")
    try:
        cache.read(1, "frames")
    except cc.UsageError as error:
        print(error, flush=True)
        os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    output = run_forking(url, tmp_path / "local", code).communicate(timeout=60)[0].splitlines()
    assert output[0].startswith("start_method: got 'fork' after a request to an object store")
    assert output[1] == "3"
    dataset = cc.ChordVideoDataset(
        cc.open_cache(url, local=tmp_path / "other"), clip_sampler=cc.RegularClipSampler(num_frames=8)
    )
    dataset[0]  # by the parent
    with pytest.raises(cc.UsageError, match="expected 'forkserver' or 'spawn'"):
        list(cc.make_loader(dataset, batch_size=2, num_workers=2, start_method="fork"))
    assert len(list(cc.make_loader(dataset, batch_size=2, num_workers=2))) == NUM_VIDEOS // 2


def test_a_fork_in_the_middle_of_a_fetch(loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path) -> None:
    """The child does not hold the lock of a file after its parent was killed."""
    push(loose, url)
    proxy.fault = object_stores.of_objects("/lmdb/", object_stores.stall, times=1)
    code = """
threading.Thread(target=cache.read, args=(0, "frames"), daemon=True).start()
while not os.path.isdir(sys.argv[2] + "/.partial"):
    time.sleep(0.01)
time.sleep(1)
if os.fork():
    print("forked", flush=True)
time.sleep(60)
"""
    parent = run_forking(url, tmp_path / "local", code)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "forked\n"
    parent.kill()
    proxy.reset()
    (expected,) = {start_reader(url, tmp_path / "alone").communicate(timeout=60)[0]}
    started = start_reader(url, tmp_path / "local")
    assert started.communicate(timeout=30)[0] == expected  # the child sleeps for longer
    parent.stdout.close()
    parent.wait()


def test_a_clip_loader_fetches_ahead(packed: Path, url: str, tmp_path: Path) -> None:
    push(packed, url)
    cache = cc.open_cache(url, local=tmp_path / "local")
    datasets = [cc.ChordVideoDataset(of, clip_sampler=cc.RegularClipSampler(num_frames=8)) for of in (cache, packed)]
    joined = cc.subset(cc.concat([datasets[0]]), [3, 0, 2, 1])
    loader = cc.ClipLoader(joined, batch_size=1, num_threads=1, prefetch=0, shuffle=False)
    batches = iter(loader)
    first = next(batches)
    end = time.monotonic() + 30
    while len(artefacts(tmp_path / "local")) < NUM_VIDEOS:  # of all batches, though one was read
        assert time.monotonic() < end
        time.sleep(0.01)
    for batch, number in zip([first, *batches], (3, 0, 2, 1), strict=True):
        np.testing.assert_array_equal(batch["frames"][0], datasets[1][number]["frames"])


def test_other_folders_are_refused(loose: Path, url: str, tmp_path: Path, run_cli: Cli) -> None:
    push(loose, url)
    with pytest.raises(cc.UsageError, match="local: got None with 's3://"):
        cc.open_cache(url)
    with pytest.raises(cc.UsageError, match="which holds something else"):
        cc.open_cache(url, local=loose)
    assert artefacts(loose)
    cc.open_cache(url, local=tmp_path / "local")
    with pytest.raises(cc.UsageError, match=f"which has files of '{url}'"):
        cc.open_cache(f"{url}2", local=tmp_path / "local")
    for command in (["info"], ["ls"], ["show"]):
        result = run_cli(*command, str(tmp_path / "local"), *(["0"] if command == ["show"] else []), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert artefacts(tmp_path / "local")  # of show
    for command in (["verify"], ["gc"], ["pack", "-o", "packed"], ["build"]):
        arguments = ["build", "index.json", "-o"] if command == ["build"] else command
        result = run_cli(*arguments, str(tmp_path / "local"), cwd=loose.parent)
        assert result.returncode in (2, 10), (command, result.stderr)
        assert "chordcache pull" in result.stderr or command == ["build"]
    for command in ("info", "verify", "ls", "gc", "pack", "build"):
        result = run_cli(command, *{"build": ["-o"], "pack": ["-o", "packed"]}.get(command, []), url)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1
        assert "expected a path on a mounted disk" in result.stderr


def test_503_twice_and_a_cut_are_tried_again(cache: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path) -> None:
    proxy.fault = object_stores.fail_first(2)
    push(cache, url)
    proxy.fault = object_stores.fail_first(2)
    pull(url, tmp_path / "pulled")
    assert_equal(cc.open_cache(cache), cc.open_cache(tmp_path / "pulled"))
    proxy.fault = object_stores.of_objects("/cache/", object_stores.cut, times=2)
    reader = cc.open_cache(url, local=tmp_path / "local")
    proxy.fault = object_stores.of_objects("/cache/", object_stores.cut, times=2)
    assert_equal(cc.open_cache(cache), reader)


FAULTS = {
    "flipped": (object_stores.flip, cc.DamageError, "other bytes|damaged|is not what was written"),
    "cut": (object_stores.cut, cc.StorageError, "expected its content"),
}


def assert_nothing_has_come(folder: Path) -> None:
    for name in ("local", "new", "pulled"):
        assert not artefacts(folder / name)
        assert not list((folder / name).glob("packs/*"))
        assert name == "local" or not (folder / name / "catalog.bin").exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_lasting_faults_are_errors(
    request: pytest.FixtureRequest, url: str, proxy: object_stores.Proxy, tmp_path: Path, fault: str
) -> None:
    cache: Path = request.getfixturevalue("packed" if fault == "flipped" else "loose")
    change, error, text = FAULTS[fault]
    push(cache, url)
    reader = cc.open_cache(url, local=tmp_path / "local")
    proxy.fault = object_stores.of_objects("/cache/", change)
    calls: list[Callable[[], object]] = [
        lambda: reader.read(0, "frames"),
        lambda: cc.open_cache(url, local=tmp_path / "new"),
        lambda: pull(url, tmp_path / "pulled"),
    ]
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(call) for call in calls]:
            with pytest.raises(error, match=text):
                future.result(timeout=60)
    assert_nothing_has_come(tmp_path)
    proxy.reset()
    assert_equal(cc.open_cache(cache), reader)


def test_a_server_that_stalls(loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path) -> None:
    """It sends half of each object, and does not answer when it gets an artefact. All calls wait at once."""
    push(loose, url)
    reader, other = cc.open_cache(url, local=tmp_path / "local"), f"{url.removesuffix('/cache')}-other"
    dataset = cc.ChordVideoDataset(reader, clip_sampler=cc.RegularClipSampler(num_frames=8))
    batches = iter(cc.ClipLoader(cc.subset(dataset, [1]), batch_size=1, num_threads=1))
    stalled = object_stores.of_objects("/cache/", object_stores.stall)

    def fault(handler: Any, method: str, path: str, answer: object_stores.Answer) -> object_stores.Answer | None:
        if method == "PUT" and "-other/lmdb/" in path:
            time.sleep(60)
            return None
        got: object_stores.Answer | None = stalled(handler, method, path, answer)
        return got

    proxy.fault = fault
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: reader.read(0, "frames"), cc.StorageError, "expected its content"),
        (lambda: next(batches), cc.StorageError, "expected its content"),
        (lambda: dataset.__getitems__([2, 3]), cc.StorageError, "expected its content"),
        (lambda: cc.open_cache(url, local=tmp_path / "new"), cc.StorageError, "expected its content"),
        (lambda: pull(url, tmp_path / "pulled"), cc.StorageError, "expected its content"),
        (
            lambda: push(loose, other),
            cc.StorageError,
            "the object store does not take it: .*The same command resumes",
        ),
    ]
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(call) for call, _, _ in calls]
        for future, (_, error, text) in zip(futures, calls, strict=True):
            with pytest.raises(error, match=text):
                future.result(timeout=60)
    assert_nothing_has_come(tmp_path)
    proxy.reset()
    assert_equal(cc.open_cache(loose), reader)
    assert push(loose, other).num_present > 0


def test_an_object_that_is_cut_short_or_missing(loose: Path, url: str, tmp_path: Path) -> None:
    push(loose, url)
    reader = cc.open_cache(url, local=tmp_path / "local")
    files = [reader[number].feature("frames").file for number in range(2)]
    store = ObjectStore(url)
    store.write(files[0].name, [(loose / files[0].name).read_bytes()[:5000]])
    store.remove([files[1].name])
    for number, text in enumerate(("got other bytes", "got no object")):
        with pytest.raises(cc.DamageError, match=text):
            reader.read(number, "frames")
    assert not artefacts(tmp_path / "local")
    push(loose, url)
    assert_equal(cc.open_cache(loose), reader)


def test_a_damaged_file_is_fetched_again(loose: Path, url: str, tmp_path: Path) -> None:
    push(loose, url)
    reader = cc.open_cache(url, local=tmp_path / "local")
    file = reader[0].feature("frames").file
    expected = reader.read(0, "frames")
    path = tmp_path / "local" / file.name
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(bytes(255 - byte for byte in data))
    with pytest.raises(cc.DamageError, match="is damaged: .*Run the same command again"):
        reader.read(0, "frames")
    np.testing.assert_array_equal(reader.read(0, "frames"), expected)


@pytest.mark.parametrize("num_bytes", [1 << 45, 1 << 63])
def test_a_sidecar_that_claims_an_absurd_size(loose: Path, url: str, tmp_path: Path, num_bytes: int) -> None:
    push(loose, url)
    for limit in (1 << 40, 1 << 64):
        reader = cc.open_cache(url, local=tmp_path / f"local{limit}", limit=min(limit, (1 << 63) - 1))
        video = reader[0]
        info = video.feature("frames")
        forged = info.replace(file=info.file.replace(num_bytes=num_bytes))
        with pytest.raises((cc.UsageError, cc.DamageError, cc.StorageError)), open_feature(video, forged):
            pass
        assert not artefacts(tmp_path / f"local{limit}")


@pytest.mark.parametrize("new_disk", [small_disks.tmpfs, small_disks.ext4], ids=["tmpfs", "ext4"])
def test_a_full_disk(
    cache: Path, loose: Path, url: str, tmp_path: Path, new_disk: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    push(cache, url)
    with new_disk(tmp_path / "disk", "8m", may_be_open=True) as disk:
        reader = cc.open_cache(url, local=disk / "local", limit=1 << 40)
        filler = disk / "filler"
        filler.write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize - (300 << 10)))
        with pytest.raises(cc.StorageError, match=r"no space left for \d\.\d MiB in cache .* make room"):
            pull(url, disk / "pulled")
        assert not list((disk / "pulled").glob("*/*/*")), "the sizes were compared before the first copy"
        with pytest.raises(cc.StorageError, match=f"no space left on device at '{disk / 'local'}/.*make room"):
            contents(reader)
        assert not artefacts(disk / "pulled")
        assert not list(disk.glob("*/packs/*.pack"))
        assert not (disk / "pulled" / "catalog.bin").exists()
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(512))
        process = start_reader(url, disk / "local")
        assert (process.communicate(timeout=60)[0], process.returncode) == ("", 1)
        assert f"StorageError: no space left on device at '{disk / 'local'}/" in capfd.readouterr().err
        assert_complete(disk / "local", loose)
        filler.unlink()
        assert len(start_reader(url, disk / "local").communicate(timeout=60)[0]) == 65
        assert_equal(cc.open_cache(cache), reader)
        shutil.rmtree(disk / "local")
        pull(url, disk / "pulled")
        assert_equal(cc.open_cache(cache), cc.open_cache(disk / "pulled"))


def test_a_large_object_is_sent_in_parts(url: str, proxy: object_stores.Proxy) -> None:
    """An object of more than 8 MiB, also with errors between. One that is damaged on its way leaves nothing."""
    store = ObjectStore(url)
    blocks = [np.random.default_rng(number).bytes(1 << 20) for number in range(19)]
    proxy.fault = object_stores.fail_first(2)
    store.write("packs/large", iter(blocks))
    assert len([path for method, path, _ in proxy.requests if method == "PUT" and "partNumber" in path]) >= 3
    entry = store.entries()["packs/large"]
    assert entry.num_bytes == 19 << 20
    assert b"".join(store.whole("packs/large", entry)) == b"".join(blocks)

    def damaged() -> Iterator[bytes]:
        yield from blocks
        raise cc.DamageError("damaged")

    with pytest.raises(cc.DamageError, match="damaged"):
        store.write("packs/other", damaged())
    assert list(store.entries()) == ["packs/large"]


def test_an_object_that_changes_while_it_is_read(
    loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path
) -> None:
    push(loose, url)

    def fault(_handler: Any, method: str, path: str, answer: object_stores.Answer) -> object_stores.Answer:
        if method == "HEAD" and path.endswith("catalog.bin"):
            return answer[0], {**answer[1], "ETag": '"0123"'}, answer[2]
        return answer

    proxy.fault = fault
    for call in (lambda: pull(url, tmp_path / "pulled"), lambda: cc.open_cache(url, local=tmp_path / "local")):
        with pytest.raises(cc.DamageError, match=r"catalog.bin': it changed while it was read"):
            call()
    assert not (tmp_path / "pulled" / "catalog.bin").exists()
    assert not (tmp_path / "local" / "catalog.bin").exists()


def test_a_missing_store_prefix_or_key(loose: Path, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = "s3://not-there/cache"
    for call in (
        lambda: push(loose, missing),
        lambda: pull(missing, tmp_path / "pulled"),
        lambda: cc.open_cache(missing, local=tmp_path / "local"),
    ):
        with pytest.raises(cc.NotFoundError, match="no object store 's3://not-there'"):
            call()
    for call in (lambda: pull(url, tmp_path / "pulled"), lambda: cc.open_cache(url, local=tmp_path / "local")):
        with pytest.raises(cc.NotFoundError, match=f"no cache at '{url}'"):
            call()
    with pytest.raises(cc.UsageError, match="expected s3://NAME/PREFIX"):
        push(loose, "ftp://store/cache")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(cc.UsageError, match="AWS_ACCESS_KEY_ID: got nothing, expected credentials"):
        push(loose, url)
    assert not (tmp_path / "pulled").exists()


def test_a_server_that_does_not_answer(loose: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(cc.StorageError, match="expected its content"):
        push(loose, url)


def test_without_obstore(loose: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(cc.UsageError, match=r"pip install 'chordcache\[store\]'"):
        push(loose, url)


def test_names_of_objects_are_never_names_on_the_disk(
    loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path
) -> None:
    """A listing with names that leave the folder, and an object that claims an absurd size."""
    push(loose, url)
    entry = b"<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>1</ETag><Size>3</Size>"
    prefix = url.removeprefix("s3://data/").encode()

    def fault(_handler: Any, method: str, path: str, answer: object_stores.Answer) -> object_stores.Answer:
        if "list-type" in path:
            names = [prefix + b"/packs/evil.pack", prefix + b"/packs/" + b"0" * 32 + b".pack", *leaving]
            items = b"".join(entry % name + b"</Contents>" for name in names)
            return answer[0], answer[1], answer[2].replace(b"</ListBucketResult>", items + b"</ListBucketResult>")
        return answer

    leaving = [prefix + b"/packs/../../../../evil.pack"]
    proxy.fault = fault
    with pytest.raises(cc.UsageError, match="evil.pack', expected names without"):
        push(loose, url)
    pull(url, tmp_path / "a" / "pulled")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["pulled"]
    assert not list(tmp_path.rglob("evil*"))
    assert not list((tmp_path / "a" / "pulled").glob("packs/*"))
    assert_equal(cc.open_cache(loose), cc.open_cache(tmp_path / "a" / "pulled"))

    proxy.fault = lambda _handler, method, path, answer: (
        (answer[0], {**answer[1], "Content-Length": str(1 << 60)}, b"")
        if method == "HEAD" and path.endswith("catalog.bin")
        else answer
    )
    with pytest.raises((cc.DamageError, cc.StorageError, cc.StorageError)):
        pull(url, tmp_path / "b")


def test_another_region(loose: Path, url: str, proxy: object_stores.Proxy, tmp_path: Path) -> None:
    body = b"<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"
    proxy.fault = lambda _handler, _method, _path, _answer: (301, {"x-amz-store-region": "eu-west-1"}, body)
    for call in (lambda: push(loose, url), lambda: pull(url, tmp_path / "pulled")):
        with pytest.raises(cc.UsageError, match="AWS_REGION: got us-east-1, and 's3://data"):
            call()
