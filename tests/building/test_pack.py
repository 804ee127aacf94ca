"""Packs: a cache of few files reads as before, also after each way in which packing can end."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes, small_disks

import chordcache as cc
from chordcache.building.merge import merge
from chordcache.building.pack import PackSummary, pack, unpack
from chordcache.index.index_files import IndexWriter
from chordcache.records import RunSummary
from chordcache.storage import atomic, sealed_json
from chordcache.storage.catalog_file import HEAD_BYTES
from chordcache.storage.find_sidecars import Sidecars, write_catalog
from chordcache.storage.layout import sidecar_file
from chordcache.storage.packs import write_pack
from chordcache.train.misses import background
from chordcache.verifying.repair import repair

pytestmark = [pytest.mark.usefixtures("inline"), pytest.mark.timeout(300)]

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
    """The cache, packed and without former files."""
    cache = work / "cache"
    pack(cache)
    cc.collect_garbage(cache)
    return cache


def source_of(cache: Path, name: str) -> str:
    return next(video.key for video in cc.open_cache(cache) if video.path == f"{name}.mp4")


def damage(path: Path, position: int, value: int | None = None) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10 if value is None else value]))


def test_packed_and_unpacked_caches_read_as_before(work: Path) -> None:
    cache = work / "cache"
    before, files = everything(cache), files_of(cache)
    summary = pack(cache)
    assert (summary.num_videos, summary.num_packs) == (5, 1)
    assert_same(cache, before)
    cc.collect_garbage(cache)
    hdf5 = {name for name in files if name.startswith("hdf5")}
    assert files_of(cache) == {*hdf5, f"packs/{packs_of(cache)[0].name}"}
    assert_same(cache, before)
    assert deep(cache) == []
    assert cc.verify(cache, level="quick").damage == []
    assert cc.verify(cache, source=True, jobs=1, roots={"videos": str(work / "videos")}).damage == []
    assert build(work).num_up_to_date == 5
    assert pack(cache) == PackSummary(0, 0, 0)
    assert unpack(cache).num_videos == 5
    assert_same(cache, before)
    cc.collect_garbage(cache)
    assert files_of(cache) == files
    assert deep(cache) == []


def test_artefacts_lie_in_a_pack_as_they_were(work: Path) -> None:
    """Read without the package: sealed lines, places and bytes."""
    cache = work / "cache"
    bytes_of = {name: (cache / name).read_bytes() for name in files_of(cache)}
    (path,) = packs_of(packed(work))
    content = path.read_bytes()
    head = json.loads(content[:HEAD_BYTES])
    assert (head["format"], head["number"], head["num_videos"]) == ("chordcache-pack", 1, 5)
    start, size, _ = head["sections"]["offsets"]
    offsets = np.frombuffer(content[start : start + size], "<i8")
    for begin, end in itertools.pairwise(offsets):
        for info in json.loads(content[begin:end])["features"]:
            if info["tier"] == "hdf5":
                assert "packed" not in info["file"]
                continue
            place = info["file"]["packed"]
            assert place["pack"] == path.stem
            assert place["offset"] % 4096 == 0
            assert (
                content[place["offset"] : place["offset"] + info["file"]["num_bytes"]] == bytes_of[info["file"]["name"]]
            )


def test_sizes_of_packs(work: Path) -> None:
    cache = work / "cache"
    assert pack(cache, size=1 << 20).num_packs == 1
    with pytest.raises(cc.UsageError, match="size: got 1000 bytes, expected at least 1 MiB"):
        pack(cache, size=1000)


def test_a_video_that_is_built_again_is_read_instead_of_its_packed_one(work: Path) -> None:
    cache = packed(work)
    key = source_of(cache, "b")
    before = everything(cache)
    (work / "config.yaml").write_text(CONFIG.replace("n_mels: 20", "n_mels: 30"))
    assert build(work).num_done == 5
    for place, values in everything(cache).items():
        if place[2] == "mel":
            assert values.shape != before[place].shape
        else:
            np.testing.assert_array_equal(values, before[place])
    after = everything(cache)
    assert pack(cache).num_videos == 5
    cc.collect_garbage(cache)
    assert len(packs_of(cache)) == 1  # all of the former one is superseded
    assert_same(cache, after)
    assert deep(cache) == []
    assert cc.open_cache(cache)[key].sidecar.feature("mel", "npz").file.packed.pack == packs_of(cache)[0].stem


def test_new_videos_lie_beside_packs_until_they_are_packed(work: Path, make_video: Callable[..., Path]) -> None:
    cache = packed(work)
    everything(cache)
    make_video(work / "videos" / "new.mp4", num_frames=9, audio=True)
    cc.scan([work / "videos"], output=work / "index.jsonl", labels="dir", jobs=1)
    summary = build(work)
    assert (summary.num_done, summary.num_up_to_date) == (1, 5)
    assert len(cc.open_cache(cache)) == 6
    with_new = everything(cache)
    pack(cache)
    cc.collect_garbage(cache)
    assert_same(cache, with_new)
    assert len(packs_of(cache)) == 1  # a small pack is packed with the rest
    assert deep(cache) == []


def test_pruned_videos_stay_away(work: Path) -> None:
    cache = packed(work)
    key = source_of(cache, "c")
    os.remove(work / "videos" / "c.mp4")
    cc.scan([work / "videos"], output=work / "index.jsonl", labels="dir", jobs=1)
    assert build(work, options=cc.BuildOptions(prune=True, prune_many=True)).num_pruned == 1
    os.remove(cache / "catalog.bin")
    cc.repair(cache, cc.verify(cache, jobs=1).damage, jobs=1)
    assert key not in cc.open_cache(cache)
    cc.collect_garbage(cache)
    assert deep(cache) == []
    pack(cache)
    cc.collect_garbage(cache)
    assert len(cc.open_cache(cache)) == 4
    assert deep(cache) == []


def test_a_pruned_video_comes_back_when_it_is_built_again(work: Path) -> None:
    cache = packed(work)
    before = everything(cache)
    source = work / "videos" / "c.mp4"
    source.rename(work / "c.mp4")
    cc.scan([work / "videos"], output=work / "index.jsonl", labels="dir", jobs=1)
    build(work, options=cc.BuildOptions(prune=True, prune_many=True))
    (work / "c.mp4").rename(source)
    cc.scan([work / "videos"], output=work / "index.jsonl", labels="dir", jobs=1)
    assert build(work).num_done == 1
    assert_same(cache, before)
    pack(cache)
    cc.collect_garbage(cache)
    assert_same(cache, before)
    assert deep(cache) == []


def test_a_pruned_video_that_came_back_is_missed(work: Path) -> None:
    cache = packed(work)
    pruned(work, "c")
    build(work)
    before = everything(cache)
    key = source_of(cache, "c")
    (cache / sidecar_file(key)).unlink()
    for level in ("quick", "default"):
        findings = [damage for damage in cc.verify(cache, level=level, jobs=1).damage if damage.kind == "missing"]
        assert [finding.key for finding in findings] == [key]
    with pytest.raises(cc.DamageError, match="got no sidecars of 1 video"):
        cc.collect_garbage(cache)
    cc.repair(cache, findings, jobs=1)
    assert_same(cache, before)
    assert deep(cache) == []


def pruned(work: Path, *names: str, tiers: Sequence[str] = TIERS) -> None:
    """Prune videos as a run does whose index does not name them, with sources that stay as they are."""
    index = cc.read_index(work / "index.jsonl")
    with IndexWriter(work / "fewer.jsonl", roots=index.roots, level=index.level, whole_roots=index.roots) as writer:
        for record in index:
            if record.path.removesuffix(".mp4") not in names:
                writer.write(record)
    options = cc.BuildOptions(prune=True, prune_many=True)
    roots = {"videos": work / "videos"}
    summary = cc.build(work / "fewer.jsonl", work / "cache", tiers=tiers, jobs=1, roots=roots, options=options)
    assert summary.num_pruned == len(names)


def test_a_pruned_video_is_packed_again_with_equal_content(work: Path) -> None:
    """A pack of equal content is another pack: the former one does not count for what was removed from it."""
    cache = packed(work)
    before = everything(cache)
    for _ in range(2):
        pruned(work, "c")
        assert len(cc.open_cache(cache)) == 4
        build(work)
        pack(cache)
        cc.collect_garbage(cache)
        assert_same(cache, before)
        assert deep(cache) == []


def test_a_video_pruned_in_a_hard_linked_copy_stays_in_the_first_cache(work: Path) -> None:
    cache = packed(work)
    pruned(work, "e")  # so that both caches have a list of removed videos
    before = everything(cache)
    first = cache.with_name("first")
    shutil.copytree(cache, first, copy_function=os.link)
    pruned(work, "c")
    assert len(cc.open_cache(cache)) == 4
    write_catalog(first)
    assert_same(first, before)
    assert deep(first) == []


def test_numbers_of_packs_never_go_down(work: Path) -> None:
    """The list of removed videos outlives the pack that they were in."""
    cache = packed(work)
    before = everything(cache)
    pruned(work, "c")
    build(work)
    key = source_of(cache, "c")
    write_pack(cache, [Sidecars(cache).read(key)], 2)
    (cache / sidecar_file(key)).unlink()
    write_catalog(cache)
    assert_same(cache, before)
    pruned(work, "c")
    cc.collect_garbage(cache)
    assert len(packs_of(cache)) == 1
    build(work)
    pack(cache)
    assert Sidecars(cache).packs.last_number == 3
    cc.collect_garbage(cache)
    assert_same(cache, before)
    assert deep(cache) == []


def test_a_repaired_pack_does_not_come_back(work: Path) -> None:
    cache = packed(work)
    before = everything(cache)
    place = cc.open_cache(cache)[source_of(cache, "b")].sidecar.feature("flow", "npz").file
    damage(packs_of(cache)[0], place.packed.offset + place.num_bytes // 2)
    cc.repair(cache, cc.verify(cache, jobs=1).damage, jobs=1, roots={"videos": str(work / "videos")})
    pack(cache)
    cc.collect_garbage(cache)
    assert_same(cache, before)
    assert deep(cache) == []


def test_labels_that_change_there_and_back(work: Path) -> None:
    cache = packed(work)
    records = [*cc.read_index(work / "index.jsonl")]
    index = cc.read_index(work / "index.jsonl")
    for label in ("x", "y", "x"):
        with IndexWriter(work / "labels.jsonl", roots=index.roots, level=index.level) as writer:
            for record in records:
                writer.write(record.replace(label=label))
        cc.build(work / "labels.jsonl", cache, tiers=TIERS, jobs=1, roots={"videos": work / "videos"})
        pack(cache)
        assert {video.label for video in cc.open_cache(cache)} == {label}
    cc.collect_garbage(cache)
    assert {video.label for video in cc.open_cache(cache)} == {"x"}
    assert deep(cache) == []


def test_a_damaged_list_of_removed_videos(work: Path) -> None:
    shutil.rmtree(work / "cache")
    build(work, tiers=("lmdb", "npz"))
    cache = packed(work)
    before = everything(cache)
    pruned(work, "c", "d", tiers=("lmdb", "npz"))
    path = cache / "packs" / "removed.jsonl"
    damage(path, path.stat().st_size - 20)
    with pytest.raises(cc.DamageError, match="removed.jsonl.*verify --repair"):
        build(work, tiers=("lmdb", "npz"))
    report = cc.verify(cache, jobs=1)
    assert "packs/removed.jsonl" in {finding.file for finding in report.damage}
    cc.repair(cache, report.damage, jobs=1, roots={"videos": str(work / "videos")})
    assert cc.verify(cache, jobs=1).exit_code in (0, 6)
    assert build(work, tiers=("lmdb", "npz")).num_failed == 0
    assert_same(cache, before)


def test_a_copy_without_empty_folders(work: Path) -> None:
    """As made by tools that copy files alone."""
    cache = packed(work)
    before = everything(cache)
    shutil.rmtree(cache / "videos")
    assert cc.verify(cache, jobs=1).damage == []
    assert build(work).num_up_to_date == 5
    assert_same(cache, before)


def test_a_pack_without_a_second_copy_of_its_sidecars_is_not_removed(work: Path) -> None:
    cache = packed(work)
    (path,) = packs_of(cache)
    damage(path, 100)
    (cache / "catalog.bin").unlink()
    with pytest.raises(cc.DamageError, match="Move the pack away to build its videos again"):
        cc.repair(cache, cc.verify(cache, jobs=1).damage, jobs=1)
    assert path.exists()


@pytest.mark.parametrize("number", [0, -1, 1 << 70, "7", 1.5, True])
def test_a_forged_number_is_damage(work: Path, number: object) -> None:
    cache = packed(work)
    (path,) = packs_of(cache)
    content = path.read_bytes()
    head = sealed_json.unseal(content[:HEAD_BYTES].decode().rstrip(), "")
    line = sealed_json.seal({**head, "number": number}).encode().ljust(HEAD_BYTES - 1) + b"\n"
    path.write_bytes(line + content[HEAD_BYTES:])
    assert f"packs/{path.name}" in {finding.file for finding in cc.verify(cache, jobs=1).damage}
    with pytest.raises(cc.DamageError, match="its number is not one of a pack"):
        cc.collect_garbage(cache)


def test_a_video_that_was_built_while_it_was_missed_is_repaired(work: Path) -> None:
    """The broken piece of a pack is one of those that a reader's child builds again."""
    cache = packed(work)
    key = source_of(cache, "b")
    place = cc.open_cache(cache)[key].sidecar.feature("flow", "npz").file
    assert [*background._broken_files(cache, key)] == []
    damage(packs_of(cache)[0], place.packed.offset + place.num_bytes // 2)
    assert [*background._broken_files(cache, key)] == [place.name]


def test_hdf5_alone_is_packed_once(work: Path) -> None:
    roots = {"videos": work / "videos"}
    cc.build(work / "index.jsonl", work / "mixed", tiers=["hdf5"], config=work / "config.yaml", jobs=1, roots=roots)
    before = everything(work / "mixed")
    assert pack(work / "mixed").num_videos == 5
    assert pack(work / "mixed") == PackSummary(0, 0, 0)
    cc.collect_garbage(work / "mixed")
    assert_same(work / "mixed", before)
    assert deep(work / "mixed") == []


def test_dropped_features_of_packed_videos(work: Path) -> None:
    cache = packed(work)
    build(work, config=None, tiers=None, options=cc.BuildOptions(drop=("motion",), prune_many=True))
    names = {place[1:] for place in everything(cache)}
    assert ("npz", "motion") not in names
    assert ("npz", "flow") in names
    assert deep(cache) == []


def test_damage_in_a_pack_is_found_and_repaired(work: Path) -> None:
    cache = packed(work)
    before = everything(cache)
    key = source_of(cache, "b")
    place = cc.open_cache(cache)[key].sidecar.feature("flow", "npz").file
    damage(packs_of(cache)[0], place.packed.offset + place.num_bytes // 2)
    for level in ("default", "deep"):
        (finding,) = cc.verify(cache, level=level, jobs=1).damage
        assert (finding.kind, finding.file, finding.key) == ("damaged", place.name, key)
    with pytest.raises(cc.DamageError, match=f"'{cache}/{place.name}' is damaged"):
        unpack(cache)
    cc.repair(cache, [finding], jobs=1, roots={"videos": str(work / "videos")})
    assert_same(cache, before)
    assert deep(cache) == []


@pytest.mark.parametrize("part", ["head", "sidecars", "keys", "cut", "missing"])
def test_a_pack_whose_table_is_damaged(work: Path, part: str) -> None:
    """The catalog is the second copy of its sidecars: nothing is decoded."""
    cache = packed(work)
    before = everything(cache)
    (path,) = packs_of(cache)
    head = json.loads(path.read_bytes()[:HEAD_BYTES])
    position = {
        "head": 100,
        "sidecars": head["sections"]["offsets"][0] - 300,
        "keys": head["sections"]["keys"][0] + 3,
        "cut": 0,
        "missing": 0,
    }[part]
    if part == "cut":
        os.truncate(path, path.stat().st_size - 10)
    elif part == "missing":
        path.unlink()
    else:
        damage(path, position)
    report = cc.verify(cache, jobs=1)
    assert report.exit_code == 5
    if part != "missing":
        assert f"packs/{path.name}" in {finding.file for finding in report.damage}
        assert_same(cache, before)  # readers need the catalog, not the table
        shutil.rmtree(work / "videos")
    with pytest.raises(cc.DamageError):
        cc.collect_garbage(cache)
    cc.repair(cache, report.damage, jobs=1, roots={"videos": str(work / "videos")})
    assert_same(cache, before)
    cc.collect_garbage(cache)
    assert deep(cache) == []


def test_every_flip_in_a_pack_is_found(work: Path) -> None:
    cache = packed(work)
    (path,) = packs_of(cache)
    content = path.read_bytes()
    random = np.random.default_rng(7)
    positions = random.integers(0, len(content), 60).tolist() + random.integers(0, HEAD_BYTES, 10).tolist()
    missed = []
    for position in positions:
        damage(path, position)
        try:
            if cc.verify(cache, jobs=1).exit_code != 5:
                missed.append(position)
        finally:
            path.write_bytes(content)
    assert missed == []


def test_of_two_packs_with_one_video_the_later_counts(work: Path) -> None:
    cache = packed(work)
    (first,) = packs_of(cache)
    kept = first.read_bytes()
    (work / "config.yaml").write_text(CONFIG.replace("n_mels: 20", "n_mels: 30"))
    build(work)
    pack(cache)
    cc.collect_garbage(cache)
    after = everything(cache)
    first.write_bytes(kept)
    (cache / "catalog.bin").unlink()
    cc.repair(cache, cc.verify(cache, jobs=1).damage, jobs=1)
    assert_same(cache, after)
    assert cc.collect_garbage(cache) == [f"packs/{first.name}"]


CHANGES = {"renameat": 1, "rename": 4, "unlinkat": 9}
"""System calls of a pack and how often each is made, at least"""


def kills() -> Iterator[tuple[str, int]]:
    yield from ((call, number) for call, most in CHANGES.items() for number in range(1, most + 1))


@pytest.mark.parametrize(("call", "number"), list(kills()))
def test_a_pack_that_is_killed(work: Path, call: str, number: int, run_process: Cli) -> None:
    cache = work / "cache"
    before = everything(cache)
    command = [
        "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}",
        shutil.which("python") or "python", "-m", "chordcache", "pack", str(cache),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=120)
    assert_same(cache, before)
    assert cc.verify(cache, jobs=1).exit_code in (0, 6)
    pack(cache)
    cc.collect_garbage(cache)
    assert_same(cache, before)
    assert deep(cache) == []
    assert len(packs_of(cache)) == 1


def test_full_disk(work: Path, tmp_path: Path) -> None:
    with small_disks.tmpfs(tmp_path / "disk", "3m", may_be_open=True) as disk:
        shutil.copytree(work / "cache", disk / "cache")
        before = everything(disk / "cache")
        filler = disk / "filler"
        filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - 200_000)))
        size = sum(path.stat().st_size for tier in ("lmdb", "npz") for path in (disk / "cache" / tier).glob("*/*"))
        message = f"no space left for {size / 2**20:.1f} MiB in cache"
        with pytest.raises(cc.NoSpaceError, match=message):  # before anything is written
            pack(disk / "cache")
        assert packs_of(disk / "cache") == []
        assert_same(disk / "cache", before)
        filler.unlink()
        assert pack(disk / "cache").num_videos == 5
        assert_same(disk / "cache", before)
        cc.collect_garbage(disk / "cache")
        filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - 200_000)))
        with pytest.raises(cc.NoSpaceError, match=message):
            unpack(disk / "cache")
        assert_same(disk / "cache", before)


def test_packed_caches_are_merged(work: Path, run_cli: Cli) -> None:
    cache = packed(work)
    before = everything(cache)
    shutil.copytree(cache, work / "other")
    unpack(work / "other")
    for _ in range(2):
        done = run_cli("merge", cache, work / "other", "-o", work / "merged", "--pack")
        assert done.returncode == 0, done.stderr
        assert_same(work / "merged", before)
        cc.collect_garbage(work / "merged")
    assert not [name for name in files_of(work / "merged") if not name.startswith(("packs", "hdf5"))]
    assert deep(work / "merged") == []


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
    done = run_cli("pack", cache, "--size", "512MiB")
    assert done.returncode == 0
    assert done.stdout.startswith("packed 5 videos, ")
    assert f"into 1 pack; 'chordcache gc {cache}' removes their former files" in done.stdout
    again = json.loads(run_cli("pack", cache, "--json").stdout)
    assert again.items() >= {"num_videos": 0, "num_packs": 0, "num_bytes": 0}.items()
    assert run_cli("pack", cache).stdout == "nothing to pack\n"
    assert run_cli("gc", cache, "--yes").returncode == 0
    assert run_cli("verify", cache).returncode == 0
    assert run_cli("unpack", cache).stdout.startswith("unpacked 5 videos, ")
    assert run_cli("unpack", cache).stdout == "nothing to unpack\n"
    assert run_cli("pack", cache, "--size", "few").returncode == 2
    assert run_cli("pack", work / "nothing").returncode == 10
    assert processes.fine(done.stderr)


def test_a_lost_sidecar_is_missed_although_a_pack_has_an_older_one(work: Path, make_video: Callable[..., Path]) -> None:
    cache = packed(work)
    make_video(work / "videos/a.mp4", num_frames=12, audio=True)
    cc.scan([work / "videos"], output=work / "index.jsonl", labels="dir", jobs=1)
    build(work)
    cc.collect_garbage(cache)
    before = everything(cache)
    sidecar = sidecar_file(source_of(cache, "a"))
    (cache / sidecar).unlink()
    for level in ("quick", "default"):
        report = cc.verify(cache, level=level, jobs=1)
        assert (report.exit_code, sidecar in [finding.file for finding in report.damage]) == (5, True)
    cc.repair(cache, report.damage, jobs=1)
    assert deep(cache) == []
    assert_same(cache, before)


# A disk that fails


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["fsync", "replace", "write", "unlink"])
@pytest.mark.parametrize("command", ["pack", "unpack", "gc", "merge", "repair"])
def test_a_disk_that_fails_is_not_a_bug(
    work: Path, monkeypatch: pytest.MonkeyPatch, command: str, call: str, number: int
) -> None:
    """Each command either does not need the call, or says why it cannot write, and the same command then continues."""
    cache, merged = work / "cache", work / "merged"
    if command in ("unpack", "gc"):
        pack(cache)
    if command == "repair":
        next(iter(cache.rglob("*.npz"))).write_bytes(b"")
        (cache / "runs.jsonl").write_text("x\n")
    run = {
        "pack": lambda: pack(cache),
        "unpack": lambda: unpack(cache),
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
        except cc.CacheWriteError as error:
            message = f"{error.exit_code}: {error}".lower()
        except cc.UsageError as error:  # a folder that this user may not make
            assert (command, number) == ("merge", errno.EACCES), error  # noqa: PT017
    assert not message or re.fullmatch(rf"12: .*{os.strerror(number).lower()}.*run the same command", message)
    run()
    checked = cc.verify(merged if command == "merge" else cache)
    assert not [finding for finding in checked.damage if finding.kind in ("damaged", "missing")]
