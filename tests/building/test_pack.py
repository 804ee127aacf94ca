"""Packed caches: few files that read as before, also after each way in which packing can end."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes, small_disks

import chordcache as cc
from chordcache.building.dry_run import dry_run
from chordcache.building.merge import merge
from chordcache.building.pack import pack, unpack
from chordcache.records import RunSummary
from chordcache.storage import atomic, packs
from chordcache.storage.catalog_file import HEAD_BYTES
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.layout import sidecar_file
from chordcache.verifying.repair import repair

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

CONFIG = "frames: {short_side: 32}\nfeatures: {flow: {method: dis}, mel: {n_mels: 20}, motion: {}}\n"
TIERS = ("lmdb", "npz", "hdf5")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """videos/ with five clips, their index, config and cache/ in all tiers."""
    work = tmp_path_factory.mktemp("packs")
    for number, name in enumerate("abcde"):
        make_video(work / "videos" / f"{name}.mp4", num_frames=8 + number, audio=True)
    (work / "config.yaml").write_text(CONFIG)
    cc.scan([work / "videos"], output=work / "index.jsonl", labels="dir", jobs=1)
    build(work)
    return work


@pytest.fixture
def work(built: Path, tmp_path: Path) -> Path:
    """A copy of ``built`` that a test may change, at another place."""
    shutil.copytree(built, tmp_path / "work")
    return tmp_path / "work"


def build(work: Path, **options: Any) -> RunSummary:
    arguments = {"tiers": TIERS, "config": work / "config.yaml", "jobs": 1, "roots": {"videos": work / "videos"}}
    return cc.build(work / "index.jsonl", work / "cache", **{**arguments, **options})


def everything(cache: Path) -> dict[tuple[str, str, str], Any]:
    """All arrays of all videos as users read them, by key, tier and feature."""
    arrays: dict[tuple[str, str, str], Any] = {}
    with cc.open_cache(cache) as opened:
        for video in opened:
            arrays[video.key, "", "pts_seconds"] = video.pts_seconds
            arrays[video.key, "", "label"] = video.label
            for info in video.sidecar.features:
                arrays[video.key, info.tier, info.feature] = opened.read(
                    video, info.feature, 0, video.num_frames, tier=info.tier
                )
    return arrays


def assert_same(cache: Path, before: dict[tuple[str, str, str], Any]) -> None:
    now = everything(cache)
    assert now.keys() == before.keys()
    for place, values in before.items():
        np.testing.assert_array_equal(now[place], values, err_msg=str(place))


def deep(cache: Path) -> list[str]:
    return [str(finding) for finding in cc.verify(cache, level="deep", jobs=1).damage]


def files_of(cache: Path) -> set[str]:
    """Files of the cache, without lists and logs."""
    names = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
    return {name for name in names if name.startswith((*TIERS, "videos", "packs"))}


def packs_of(cache: Path) -> list[Path]:
    return sorted((cache / "packs").glob("*.pack"))


def packed(work: Path) -> Path:
    """The packed form of the cache."""
    pack(work / "cache", work / "packed")
    return work / "packed"


def source_of(cache: Path, name: str) -> str:
    return next(video.key for video in cc.open_cache(cache) if video.path == f"{name}.mp4")


def damage(path: Path, position: int, value: int | None = None) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10 if value is None else value]))


def test_packed_and_unpacked_caches_read_as_before(work: Path) -> None:
    cache, small = work / "cache", work / "packed"
    before, files = everything(cache), files_of(cache)
    summary = pack(cache, small)
    assert (summary.num_videos, summary.num_packs) == (5, 1)
    assert files_of(small) == {f"packs/{packs_of(small)[0].name}"}
    assert_same(small, before)
    assert deep(small) == []
    assert cc.verify(small, level="quick").damage == []
    assert cc.verify(small, source=True, jobs=1, roots={"videos": str(work / "videos")}).damage == []
    assert unpack(small, work / "again") == summary
    assert_same(work / "again", before)
    assert files_of(work / "again") == files
    assert deep(work / "again") == []
    (work / "cache").rename(work / "before")
    (work / "again").rename(cache)
    assert build(work).num_up_to_date == 5


def test_artefacts_lie_in_a_pack_as_they_were(work: Path) -> None:
    """Read without the package: rows of the catalog, places and bytes."""
    cache = work / "cache"
    bytes_of = {name: (cache / name).read_bytes() for name in files_of(cache)}
    (path,) = packs_of(packed(work))
    content, catalog = path.read_bytes(), (work / "packed/catalog.bin").read_bytes()
    start, size, _ = json.loads(catalog[:HEAD_BYTES])["sections"]["offsets"]
    for begin, end in itertools.pairwise(np.frombuffer(catalog[start : start + size], "<i8")):
        for file in (info["file"] for info in json.loads(catalog[begin:end])["features"]):
            place = file["packed"]
            assert (place["pack"], place["offset"] % 4096) == (path.stem, 0)
            assert content[place["offset"] : place["offset"] + file["num_bytes"]] == bytes_of[file["name"]]


def test_sizes_of_packs(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cc.UsageError, match="size: got 1000 bytes, expected at least 1 MiB"):
        pack(work / "cache", work / "packed", size=1000)
    monkeypatch.setattr(packs, "_MAX_VIDEOS", 2)
    assert pack(work / "cache", work / "packed").num_packs == 3
    assert_same(work / "packed", everything(work / "cache"))
    assert deep(work / "packed") == []


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_a_moved_cache(work: Path, command: str) -> None:
    """A file of the user stays. The one that is removed is complete in the other form."""
    before = everything(work / "cache")
    source = work / "cache" if command == "pack" else packed(work)
    (source / "mine.txt").write_text("of the user")
    (pack if command == "pack" else unpack)(source, work / "new", move=True)
    assert [path.name for path in source.iterdir()] == ["mine.txt"]
    assert_same(work / "new", before)
    assert deep(work / "new") == []


REFUSALS = {
    "build": lambda work: build(work),
    "dry run": lambda work: dry_run(work / "index.jsonl", work / "cache"),
    "repair": lambda work: cc.repair(work / "cache", [], jobs=1),
    "gc": lambda work: cc.collect_garbage(work / "cache"),
    "prune": lambda work: build(work, options=cc.BuildOptions(prune="10%")),
    "merge": lambda work: merge([work / "cache", work / "other"], work / "merged"),
    "pack": lambda work: pack(work / "cache", work / "new"),
    "on_miss": lambda work: cc.ChordVideoDataset(
        cc.videos.indexed(work / "index.jsonl", work / "cache", on_miss="build"), features=["mel"]
    ),
}


@pytest.mark.parametrize("command", REFUSALS)
def test_commands_that_change_a_cache_refuse_a_packed_one(work: Path, command: str) -> None:
    shutil.copytree(work / "cache", work / "other")
    pack(work / "cache", work / "packed", move=True)
    (work / "packed").rename(work / "cache")
    files = {path: path.read_bytes() for path in (work / "cache").rglob("*") if path.is_file()}
    message = (
        f"cache: got '{work}/cache', which is packed and read-only.* Run 'chordcache unpack {work}/cache -o CACHE'"
    )
    with pytest.raises(cc.UsageError, match=message):
        REFUSALS[command](work)
    assert {path: path.read_bytes() for path in (work / "cache").rglob("*") if path.is_file()} == files


def test_folders_that_are_not_new(work: Path) -> None:
    cache = work / "cache"
    for output in (cache, work / "videos", packed(work)):
        with pytest.raises(cc.UsageError, match=f"output: got '{output}', which"):
            pack(cache, output)
    with pytest.raises(cc.UsageError, match=f"cache: got '{cache}', which is not packed"):
        unpack(cache, work / "new")
    with pytest.raises(cc.NotFoundError):
        pack(work / "nothing", work / "new")
    assert not (work / "new").exists()


def test_another_cache_is_not_removed(work: Path) -> None:
    """The second call meets a complete output of the first one, and a cache that has changed."""
    packed(work)
    header = (work / "packed/chordcache.json").read_bytes()
    key = source_of(work / "cache", "b")
    label = (work / "index.jsonl").read_text().replace('"label": "videos"', '"label": "other"')
    (work / "index.jsonl").write_text(label)
    sidecar = Sidecars(work / "cache").read(key)
    other = sidecar.replace(about=sidecar.about.replace(label="other"))
    (work / "cache" / sidecar_file(key)).write_text(other.to_line() + "\n")
    with pytest.raises(cc.UsageError, match="another 'b-"):
        pack(work / "cache", work / "packed", move=True)
    assert (work / "packed/chordcache.json").read_bytes() == header
    assert len(cc.open_cache(work / "cache")) == 5


def test_damage_in_a_pack_is_found_and_repaired(work: Path) -> None:
    cache = packed(work)
    before = everything(cache)
    key = source_of(cache, "b")
    place = cc.open_cache(cache)[key].sidecar.feature("flow", "npz").file
    damage(packs_of(cache)[0], place.packed.offset + place.num_bytes // 2)
    for level in ("default", "deep"):
        (finding,) = cc.verify(cache, level=level, jobs=1).damage
        assert (finding.kind, finding.file, finding.key) == ("damaged", place.name, key)
        assert finding.fix_command == f"chordcache unpack {cache} -o CACHE"
    with pytest.raises(cc.DamageError, match=f"1 video of '{cache}' .* run 'chordcache verify --repair {work}/new'"):
        unpack(cache, work / "new", move=True)
    assert len(cc.open_cache(cache)) == 5
    (finding,) = cc.verify(work / "new", jobs=1).damage
    assert (finding.kind, finding.file) == ("missing", place.name)
    cc.repair(work / "new", [finding], jobs=1, roots={"videos": str(work / "videos")})
    assert_same(work / "new", before)
    assert deep(work / "new") == []


@pytest.mark.parametrize("part", ["gap", "longer", "cut", "missing", "catalog"])
def test_a_damaged_packed_cache(work: Path, part: str) -> None:
    cache = packed(work)
    (path,) = packs_of(cache)
    file = cc.open_cache(cache)[source_of(cache, "a")].sidecar.files[0]
    if part == "gap":
        damage(path, file.packed.offset + file.num_bytes)
    elif part == "longer":
        os.truncate(path, path.stat().st_size + 1)
    elif part == "cut":
        os.truncate(path, path.stat().st_size - 10)
    elif part == "missing":
        path.unlink()
    else:
        damage(cache / "catalog.bin", HEAD_BYTES + 100)
    report = cc.verify(cache, jobs=1)
    assert report.exit_code == 5
    assert ("catalog.bin" if part == "catalog" else f"packs/{path.name}") in {finding.file for finding in report.damage}


KILLS = [("renameat", 3), ("rename", 1), ("unlinkat", 1), ("unlinkat", 11), ("rmdir", 3)]
"""System calls at which a command is killed, and which of them. R25 kills it at random moments"""


@pytest.mark.parametrize("command", ["pack", "unpack"])
@pytest.mark.parametrize(("call", "number"), KILLS)
def test_a_command_that_is_killed(work: Path, command: str, call: str, number: int) -> None:
    """One of the two is whole at each moment, and the same command completes the other."""
    source = work / "cache" if command == "pack" else packed(work)
    before = everything(source)
    line = [
        "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}",
        shutil.which("python") or "python", "-m", "chordcache", command, source, "-o", work / "new", "--move",
    ]  # fmt: skip
    subprocess.run([*map(str, line)], capture_output=True, timeout=120)
    if (work / "new/chordcache.json").exists():
        assert_same(work / "new", before)
    else:
        assert_same(source, before)
    if (source / "chordcache.json").exists():
        (pack if command == "pack" else unpack)(source, work / "new", move=True)
    assert_same(work / "new", before)
    assert deep(work / "new") == []
    assert not [name for name in files_of(source) if source.exists()]


def test_full_disk(work: Path, tmp_path: Path) -> None:
    with small_disks.tmpfs(tmp_path / "disk", "3m", may_be_open=True) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - 200_000)))
        with pytest.raises(cc.StorageError, match="no space left for 0.6 MiB in cache"):  # before anything is written
            pack(work / "cache", disk / "packed")
        assert files_of(disk / "packed") == set()
        filler.unlink()
        assert pack(work / "cache", disk / "packed").num_videos == 5
        filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - 200_000)))
        with pytest.raises(cc.StorageError, match="no space left for"):
            unpack(disk / "packed", disk / "again")
        assert_same(disk / "packed", everything(work / "cache"))


def test_indexed_videos_come_from_packs(work: Path) -> None:
    cache = packed(work)
    shutil.rmtree(work / "videos")
    videos = cc.videos.indexed(cache / "index.jsonl", cache, on_miss="error")
    dataset = cc.ChordVideoDataset(
        videos, clip_sampler=cc.RandomClipSampler(num_frames=4, stride=1), features=("frames", "flow"), size=None
    )
    with cc.open_cache(cache) as opened:
        for sample in (dataset[number] for number in range(len(dataset))):
            start = int(np.searchsorted(opened[sample["video"]].pts_seconds, float(sample["pts_seconds"][0])))
            frames = opened.read(sample["video"], "frames", start, start + 4)
            np.testing.assert_array_equal(sample["frames"].permute(0, 2, 3, 1).numpy(), frames)


def test_commands(work: Path, run_cli: Cli) -> None:
    cache = work / "cache"
    done = run_cli("pack", cache, "-o", work / "packed")
    assert done.returncode == 0
    assert re.fullmatch(r"packed 5 videos, \d+ kB, into 1 pack\n", done.stdout)
    again = json.loads(run_cli("unpack", work / "packed", "-o", work / "again", "--json").stdout)
    assert again.items() >= {"num_videos": 5, "num_packs": 1}.items()
    assert run_cli("verify", work / "packed").returncode == 0
    assert run_cli("verify", work / "packed", "--repair").returncode == 0
    assert run_cli("unpack", work / "packed", "-o", work / "third").stdout.startswith("unpacked 5 videos, ")
    assert run_cli("pack", cache).returncode == 2
    assert run_cli("pack", work / "nothing", "-o", work / "new").returncode == 10
    assert processes.fine(done.stderr)


# A disk that fails


@pytest.mark.parametrize(
    ("call", "number"),
    [("fsync", errno.EIO), ("replace", errno.EACCES), ("write", errno.EDQUOT), ("unlink", errno.EIO)],
)
@pytest.mark.parametrize("command", ["pack", "unpack", "gc", "merge", "repair"])
def test_a_disk_that_fails_is_not_a_bug(
    work: Path, monkeypatch: pytest.MonkeyPatch, command: str, call: str, number: int
) -> None:
    """Each command either does not need the call, or says why it cannot write, and the same command then continues."""
    cache, merged = work / "cache", work / "merged"
    if command == "unpack":
        packed(work)
    if command == "gc":
        (work / "config.yaml").write_text(CONFIG.replace("n_mels: 20", "n_mels: 30"))
        build(work)
    if command == "repair":
        next(iter(cache.rglob("*.npz"))).write_bytes(b"")
        (cache / "runs.jsonl").write_text("x\n")
    outputs = {"merge": merged, "pack": work / "packed", "unpack": work / "unpacked"}
    run = {
        "pack": lambda: pack(cache, work / "packed", move=True),
        "unpack": lambda: unpack(work / "packed", work / "unpacked", move=True),
        "gc": lambda: cc.collect_garbage(cache),
        "merge": lambda: merge([cache, shutil.copytree(cache, work / "copy", dirs_exist_ok=True)], merged),
        "repair": lambda: repair(cache, cc.verify(cache).damage, jobs=1, roots={"videos": work / "videos"}),
    }[command]

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(atomic, "open", fail, raising=False)
        else:
            patch.setattr(os, call, fail)
        message = ""
        try:
            run()
        except cc.StorageError as error:
            message = f"{error.exit_code}: {error}".lower()
        except cc.UsageError as error:  # a folder that this user may not make
            assert (command in outputs, number) == (True, errno.EACCES), error  # noqa: PT017
    assert not message or re.fullmatch(rf"12: .*{os.strerror(number).lower()}.*run the same command", message)
    run()
    checked = cc.verify(outputs.get(command, cache))
    assert not [finding for finding in checked.damage if finding.kind in ("damaged", "missing")]
