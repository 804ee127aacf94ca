"""Verify, repair and gc against every kind of damage that a cache can take."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import processes
from helpers.catalogs import forge, sections_of
from helpers.inline import HERE
from helpers.sealed import reseal

import chordcache as cc
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.sealed_json import seal
from chordcache.verifying.findings import Damage, VerifyReport
from chordcache.verifying.verify_lists import check_catalog

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

NAMES = ("a.mp4", "b.mp4", "c.mkv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with videos/, index.json and cache/: three videos cached, two inputs in quarantine."""
    folder = tmp_path_factory.mktemp("whole")
    for number, name in enumerate(NAMES):
        make_video(folder / "videos" / name, num_frames=10 + 4 * number)
    (folder / "videos/text.mp4").write_text("no video")
    (folder / "videos/zero.mp4").touch()
    index = cc.scan([folder / "videos"], output=folder / "index.json", labels="dir", jobs=HERE)
    assert cc.build(index, folder / "cache", jobs=HERE).num_failed == 2
    assert cc.verify(folder / "cache", jobs=HERE).damage == []
    return folder


@pytest.fixture
def cache(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage; its sources are the original ones."""
    return Path(shutil.copytree(whole / "cache", tmp_path / "cache"))


def verified(cache: Path, **options: object) -> tuple[int, list[Damage]]:
    report = cc.verify(cache, jobs=HERE, **options)
    return report.exit_code, report.damage


def of(cache: Path, name: str) -> tuple[Path, Path]:
    """Sidecar and artefact of a video."""
    data = processes.sidecars(cache)[name]
    return data["_sidecar"], data["_artefact"]


# A sound cache


@pytest.mark.parametrize("options", [[], ["--quick"], ["--deep", "--source"], ["--repair"]])
def test_an_undamaged_cache_passes_and_is_not_written_to(cache: Path, run_cli: Cli, options: list[str]) -> None:
    before = {
        path: path.stat() for path in cache.rglob("*") if path.is_file() and path.name not in (".lock", "runs.jsonl")
    }
    done = run_cli("verify", cache, "-j1", *options)
    compared = "sizes" if "--quick" in options else "checksums"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"intact: 3 videos, all {compared} match\n", "")
    assert {path: path.stat().st_mtime_ns for path in before} == {p: s.st_mtime_ns for p, s in before.items()}


# Damaged artefacts


def test_a_flipped_bit_of_an_artefact(cache: Path) -> None:
    _, artefact = of(cache, "b.mp4")
    processes.flip(artefact, artefact.stat().st_size // 2, 3)
    code, damage = verified(cache)
    assert code == 5
    assert [(finding.kind, finding.file, finding.key, finding.fix_command) for finding in damage] == [
        (
            "damaged",
            str(artefact.relative_to(cache)),
            artefact.name.split(".")[0],
            f"chordcache verify --repair {cache}",
        )
    ]
    assert verified(cache, level="quick")[0] == 0  # sizes only, as it says
    assert verified(cache, level="deep")[0] == 5


@pytest.mark.parametrize("damage", ["deleted", "folder", "fifo"])
@pytest.mark.parametrize("level", ["quick", "default"])
def test_an_artefact_that_changed(cache: Path, damage: str, level: str) -> None:
    _, artefact = of(cache, "a.mp4")
    artefact.unlink()
    if damage == "folder":
        artefact.mkdir()
    elif damage == "fifo":
        os.mkfifo(artefact)
    code, findings = verified(cache, level=level)
    assert code == 5
    assert [(finding.kind, finding.file) for finding in findings] == [
        ("missing" if damage == "deleted" else "damaged", str(artefact.relative_to(cache)))
    ]


@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_sparse_artefact_of_the_stated_size_is_damage(cache: Path, level: str) -> None:
    sidecar, artefact = of(cache, "a.mp4")
    os.truncate(artefact, 3 << 40)
    name = str(artefact.relative_to(cache))
    features = json.loads(sidecar.read_text())["features"]
    for info in features:
        info["file"]["num_bytes"] = 3 << 40 if info["file"]["name"] == name else info["file"]["num_bytes"]
    reseal(sidecar, features=features)
    code, findings = verified(cache, level=level)
    (finding,) = [finding for finding in findings if finding.file == name]
    assert (code, finding.kind) == (5, "damaged")
    assert "a sparse file, which is never written" in finding.message


def facts_of(cache: Path) -> tuple:
    opened = cc.open_cache(cache)
    return (
        opened.keys(),
        opened.labels(),
        [video.sidecar for video in opened],
        [opened[key].sidecar for key in sorted(opened.keys())],
    )


def test_a_flipped_bit_of_the_catalog_is_found(cache: Path) -> None:
    """Around each border of two parts, and at random places, by the check and by the reader that needs the part."""
    path = cache / CATALOG
    data = path.read_bytes()
    random = processes.Rng(5)
    starts = [0, 4095, 4096, *(4096 + match.end() for match in re.finditer(rb"\n", data[4096:]))]
    starts += [start for start, _, _ in json.loads(data[:4096])["sections"].values()]
    bits = [8 * byte + bit for start in starts for byte in (start - 1, start, start + 1) for bit in (0, 2, 5)]
    bits += [random.below(8 * len(data)) for _ in range(150)]
    for bit in [bit for bit in bits if 0 <= bit < 8 * len(data)]:
        processes.flip(path, bit // 8, bit % 8)
        findings = check_catalog(cache, Sidecars(cache), {}, level="default")
        assert [finding.file for finding in findings] == [CATALOG], f"bit {bit}"
        processes.flip(path, bit // 8, bit % 8)
    assert path.read_bytes() == data
    assert verified(cache) == (0, [])


def test_readers_see_a_flipped_bit_of_the_catalog(cache: Path) -> None:
    path = cache / CATALOG
    good = facts_of(cache)
    random = processes.Rng(6)
    for bit in [random.below(8 * path.stat().st_size) for _ in range(100)]:
        processes.flip(path, bit // 8, bit % 8)
        with contextlib.suppress(cc.DamageError):
            assert facts_of(cache) == good, f"bit {bit}"
        processes.flip(path, bit // 8, bit % 8)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("num_frames", lambda content: bytes(4) + content[4:]),
        ("num_frames", lambda content: content[1:]),
        ("label_ids", lambda content: content[4:]),
        ("labels", lambda content: b'["other"]'),
        ("labels", lambda content: b"["),
        ("labels", lambda content: b"[" * 100_000),
        ("labels", lambda content: None),
        ("keys", lambda content: content.replace(b"a", b"/")),
        ("keys", lambda content: content[:-1]),
        ("order", lambda content: b"\xff" * len(content)),
        ("order", lambda content: bytes(len(content))),
        ("hashes", lambda content: content[::-1]),
        ("offsets", lambda content: b"\xff" * len(content)),
        ("offsets", lambda content: content[:8] + b"\xff" * 7 + b"\x7f" + content[16:]),
        ("mtimes", lambda content: content + content),
        ("states", lambda content: content + b"\0"),
        ("states", lambda content: b"\7" * len(content)),
        ("features", lambda content: b'["a", "b"]'),
        ("annotations", lambda content: b'{"labels": ["jump"]}'),
    ],
)
def test_a_catalog_that_contradicts_itself(cache: Path, name: str, content: Callable[[bytes], bytes | None]) -> None:
    forge(cache, sections={name: content(sections_of(cache)[name])})
    code, findings = verified(cache)
    assert code == 5
    assert findings[0].file == CATALOG
    with contextlib.suppress(cc.ChordcacheError):
        facts_of(cache)
    assert cc.repair(cache, findings, jobs=HERE).num_failed == 0
    assert verified(cache)[0] == 0


def test_more_labels_than_videos_are_damage(cache: Path) -> None:
    forge(cache, sections={"labels": json.dumps([f"{number:x}" for number in range(4)]).encode()})
    with pytest.raises(cc.DamageError, match="'labels' has more labels than videos"):
        cc.ChordVideoDataset(cache)


@pytest.mark.parametrize(
    "head",
    [
        {"sections": {"keys": [0, 1 << 62, "0" * 32]}},
        {"sections": {"keys": [-4096, 4096, "0" * 32]}},
        {"sections": {"keys": [1]}},
        {"sections": []},
        {"num_videos": -1},
        {"num_videos": 1 << 62},
        {"num_videos": "many"},
        {"num_bytes": 10**400},
        {"catalog_version": 3},
        {"format": "other"},
    ],
)
def test_a_head_that_contradicts_its_file(cache: Path, head: dict[str, object]) -> None:
    path = cache / CATALOG
    data = path.read_bytes()
    stated = json.loads(data[:4096])
    del stated["xxh3_128"]
    path.write_bytes(seal({**stated, **head}).encode().ljust(4095) + b"\n" + data[4096:])
    code, findings = verified(cache)
    assert (code, findings[0].file) == (5, CATALOG)
    with pytest.raises(cc.DamageError, match=rf"{CATALOG}' is damaged"):
        facts_of(cache)


def test_a_lost_sidecar_comes_back_from_the_catalog_without_its_index(cache: Path, run_cli: Cli) -> None:
    sidecar, artefact = of(cache, "a.mp4")
    line, inode = sidecar.read_bytes(), artefact.stat().st_ino
    sidecar.unlink()
    (cache / "index.jsonl").unlink()
    done = run_cli("verify", cache, "-j1", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "built 0 of 1 video again, 1 needed only a sidecar" in done.stderr
    assert sidecar.read_bytes() == line
    assert artefact.stat().st_ino == inode


@pytest.mark.parametrize("damage", ["deleted", "empty", "text", "truncated", "folder"])
def test_a_file_that_is_not_a_catalog(cache: Path, run_cli: Cli, damage: str) -> None:
    path = cache / CATALOG
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "deleted":
        path.write_bytes({"empty": b"", "text": b"no catalog\n" * 999, "truncated": data[:4096]}[damage])
    code, findings = verified(cache)
    assert code == (15 if damage == "folder" else 5)
    assert [finding.file for finding in findings if finding.kind != "incomplete"] == [CATALOG]
    with pytest.raises(cc.ChordcacheError, match="Is a directory" if damage == "folder" else "--repair"):
        list(cc.open_cache(cache))
    if damage == "folder":
        path.rmdir()
    done = run_cli("verify", cache, "-j1", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr


# Strays


@pytest.mark.parametrize(
    ("name", "fix_command"),
    [
        ("lmdb/00/x-0000000000000000.frames.12345678.lmdb", "chordcache gc {cache}"),
        ("lmdb/notes.txt", ""),
        ("videos/00/x.tmp", ""),
        ("videos/00/x.json", ""),
        ("notes.txt", ""),
        ("npz/ab/x.npz", ""),
    ],
)
def test_an_orphan(cache: Path, run_cli: Cli, name: str, fix_command: str) -> None:
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("orphan")
    code, findings = verified(cache)
    assert code == 6
    assert [finding.kind for finding in findings] == ["orphan"]
    assert name.startswith(findings[0].file)
    assert findings[0].fix_command == fix_command.format(cache=cache)
    if fix_command:
        assert run_cli("gc", cache).returncode == 0
        assert not path.exists()
        assert verified(cache)[0] == 0


# The files at the top


@pytest.mark.parametrize("name", ["index.jsonl", "quarantine.jsonl"])
@pytest.mark.parametrize("damage", ["flipped", "deleted", "empty", "truncated", "folder"])
def test_a_damaged_list_is_found_and_repaired(cache: Path, run_cli: Cli, name: str, damage: str) -> None:
    path = cache / name
    data = path.read_bytes()
    if damage == "flipped":
        processes.flip(path, 100)
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage != "deleted":
            path.write_bytes({"empty": b"", "truncated": data[: len(data) // 3]}[damage])
    done = run_cli("verify", cache, "-j1")
    assert done.returncode == 15 if damage == "folder" else done.returncode in (5, 6)
    assert processes.fine(done.stderr)
    assert name in done.stdout or "zero.mp4" in done.stdout
    if damage != "folder":
        before = processes.files_of(cache)
        done = run_cli("verify", cache, "-j1", "--repair")
        assert processes.fine(done.stderr)
        assert done.returncode in (0, 6), done.stdout + done.stderr
        assert processes.files_of(cache) == before
        assert cc.open_cache(cache).keys()
        if done.returncode == 6:
            assert "run 'chordcache build" in done.stdout


def test_the_next_build_writes_a_lost_list_again(whole: Path, cache: Path, run_cli: Cli) -> None:
    (cache / "index.jsonl").unlink()
    (cache / "quarantine.jsonl").unlink()
    assert run_cli("build", whole / "index.json", "-o", cache, "-j1").returncode == 3
    assert run_cli("verify", cache, "-j1").returncode == 0


@pytest.mark.parametrize("damage", ["flipped", "deleted", "empty"])
def test_a_damaged_header_can_be_repaired(whole: Path, cache: Path, run_cli: Cli, damage: str) -> None:
    """No command can read a cache without chordcache.json: one of them must be able to write it again."""
    path = cache / "chordcache.json"
    if damage == "flipped":
        processes.flip(path, 100)
    else:
        path.unlink()
        if damage == "empty":
            path.touch()
    done = run_cli("verify", cache, "-j1")
    assert done.returncode == (10 if damage == "deleted" else 5)
    assert "run 'chordcache" in done.stderr or "with 'chordcache" in done.stderr
    run_cli("verify", cache, "-j1", "--repair")
    before = processes.files_of(cache)
    done = run_cli("build", whole / "index.json", "-o", cache, "-j1")
    assert done.returncode == 3, done.stderr
    assert processes.files_of(cache) == before
    assert run_cli("verify", cache, "-j1").returncode == 0


# Another version


@pytest.mark.parametrize("name", ["chordcache.json", "index.jsonl", "sidecar"])
@pytest.mark.parametrize("command", ["verify", "build", "gc", "info"])
def test_cache_of_an_older_format_is_refused_and_stays_unchanged(
    whole: Path, cache: Path, run_cli: Cli, name: str, command: str
) -> None:
    path = of(cache, "a.mp4")[0] if name == "sidecar" else cache / name
    reseal(path, format_version=2)
    if (name, command) in {("index.jsonl", "gc"), ("index.jsonl", "info"), ("sidecar", "info")}:
        return  # does not read it
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    args = {"verify": ["-j1"], "build": ["-j1", "-o", cache], "gc": ["--dry-run"], "info": []}[command]
    done = run_cli(command, whole / "index.json" if command == "build" else cache, *args)
    assert done.returncode == 13, done.stdout + done.stderr
    assert "got format version 2, expected 5. Build the cache again in a new folder." in done.stderr
    assert path.name in done.stderr
    assert done.stderr.count("\n") == 1
    after = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    if name == "chordcache.json":  # a real cache of an older format
        assert after == before
    assert after.items() >= {path: data for path, data in before.items() if path.parent != cache}.items()
    assert processes.fine(done.stderr)


def _flat(number: int, width: int, height: int) -> object:
    return (
        np.full((height, width), 16 + number, np.uint8),
        np.full((height // 2, width // 2), 128, np.uint8),
        np.full((height // 2, width // 2), 128, np.uint8),
    )


# Repair


@pytest.mark.parametrize("damage", ["both", "sidecars swapped", "artefacts swapped"])
def test_repair_builds_only_what_is_damaged(whole: Path, cache: Path, run_cli: Cli, damage: str) -> None:
    good = processes.contents(cache)
    before = processes.files_of(cache)
    sidecar, artefact = of(cache, "b.mp4")
    other_sidecar, other_artefact = of(cache, "a.mp4")
    if damage == "both":
        processes.flip(artefact, 9000)
        processes.flip(sidecar, 60)
    elif damage == "sidecars swapped":
        processes.swap(sidecar, other_sidecar)
    else:
        processes.swap(artefact, other_artefact)
    hurt = {str(path.relative_to(cache)) for path in (sidecar, artefact)}
    if "swapped" in damage:
        hurt |= {str(path.relative_to(cache)) for path in (other_sidecar, other_artefact)}
    now = processes.files_of(cache)
    done = run_cli("verify", cache, "-j1", "--repair", "--dry-run")
    assert done.returncode == 5
    assert processes.files_of(cache) == now  # reported, not done
    done = run_cli("verify", cache, "-j1", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert processes.contents(cache) == good
    after = processes.files_of(cache)
    assert {name: status for name, status in after.items() if name not in hurt} == {
        name: status for name, status in before.items() if name not in hurt
    }
    assert run_cli("verify", cache, "-j1", "--deep", "--source").returncode == 0


def test_repair_without_the_source_keeps_the_rest(whole: Path, cache: Path, run_cli: Cli, tmp_path: Path) -> None:
    """The source is gone: the damage cannot be repaired; what is left of the cache stays, and the run says so."""
    header = json.loads((cache / "chordcache.json").read_text())
    reseal(cache / "chordcache.json", roots={name: str(tmp_path / "gone") for name in header["roots"]})
    index = (cache / "index.jsonl").read_text().splitlines()
    roots = json.loads(index[0])["roots"]
    reseal(cache / "index.jsonl", roots={name: str(tmp_path / "gone") for name in roots})
    assert cc.verify(cache, jobs=HERE).exit_code == 0
    _, artefact = of(cache, "b.mp4")
    processes.flip(artefact, 9000)
    done = run_cli("verify", cache, "-j1", "--repair")
    assert processes.fine(done.stderr)
    assert done.returncode == 5, done.stdout + done.stderr
    assert artefact.exists()  # all but a record of it can still be read


def test_dry_run_needs_repair(cache: Path, run_cli: Cli) -> None:
    done = run_cli("verify", cache, "--dry-run")
    assert done.returncode == 2
    assert "--repair" in done.stderr


# Parts


def in_all(reports: list[VerifyReport]) -> Counter[tuple[object, ...]]:
    """Count the findings of reports. One that joins many videos names one of them, which each part chooses itself."""
    counts: Counter[tuple[object, ...]] = Counter()
    for finding in (finding for report in reports for finding in report.damage):
        is_joined = finding.kind == "incomplete" and finding.file.endswith(".mp4")
        where = () if is_joined else (finding.file, finding.key, finding.record)
        message = finding.message.partition(" such as this one: ")[2] if finding.count > 1 else ""
        counts[finding.kind, message or finding.message, finding.fix_command, *where] += finding.count
    return counts


def test_parts_find_what_a_check_of_the_whole_finds(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    names = [f"{number}.mp4" for number in range(12)]
    for name in names:
        make_video(tmp_path / "videos" / name, num_frames=4)
    index, cache = tmp_path / "index.json", tmp_path / "cache"
    cc.build(cc.scan([tmp_path / "videos"], output=index, jobs=1), cache, jobs=1)
    sound = [cc.verify(cache, jobs=1, part=f"{number}/3") for number in (1, 2, 3)]
    assert [report.exit_code for report in sound] == [0, 0, 0]
    assert sum(report.num_videos for report in sound) == len(names)
    one = cc.scan([tmp_path / "videos/11.mp4"], output=tmp_path / "one.json", jobs=1)
    cc.build(one, cache, tiers=["npz"], features=["flow"], jobs=1)  # the others lack it
    files = {name: of(cache, name) for name in names}
    for name in names[:3]:
        processes.flip(files[name][1], 9000)
    files["3.mp4"][1].unlink()
    os.truncate(files["4.mp4"][1], 5000)
    processes.flip(files["5.mp4"][0], 60)
    files["6.mp4"][0].unlink()
    processes.swap(files["7.mp4"][0], files["8.mp4"][0])
    shutil.copy(files["9.mp4"][1], cache / "lmdb/foreign")
    files["9.mp4"][1].with_name(files["9.mp4"][1].name.replace(".frames.", ".frames.00000000.")).touch()
    (cache / "runs.jsonl").write_text("no run\n" + (cache / "runs.jsonl").read_text())
    for level, numbers in (("quick", (1, 2, 20)), ("default", (3,))):
        whole = cc.verify(cache, level=level, jobs=1)
        assert set(whole.counts()) == {"num_damaged", "num_missing", "num_incomplete", "num_orphan"}
        for num_parts in numbers:
            parts = [f"{number + 1}/{num_parts}" for number in range(num_parts)]
            reports = [cc.verify(cache, level=level, jobs=1, part=part) for part in parts]
            assert [report.part for report in reports] == parts
            assert sum(report.num_videos for report in reports) == whole.num_videos
            assert in_all(reports) == in_all([whole])
            assert 5 in {report.exit_code for report in reports} <= {0, 5, 6}


def test_the_output_names_the_part(cache: Path, run_cli: Cli) -> None:
    parts = [json.loads(run_cli("verify", cache, "-j1", "--part", f"{n}/2", "--json").stdout) for n in (1, 2)]
    assert [report["part"] for report in parts] == ["1/2", "2/2"]
    assert [report["damage"] for report in parts] == [[], []]
    assert sum(report["num_videos"] for report in parts) == 3
    done = run_cli("verify", cache, "-j1", "--part", "1/1")
    assert (done.returncode, done.stdout) == (0, "intact: 3 videos in part 1/1, all checksums match\n")
    processes.flip(of(cache, "a.mp4")[1], 9000)
    done = run_cli("verify", cache, "-j1", "--part", "1/1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (5, "1 finding in part 1/1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--part", "3/2"], "--part: got 3/2, expected a number from 1 to 2"),
        (["--part", "0/2"], "--part: got 0/2, expected a number from 1 to 2"),
        (["--part", "half"], "--part: got 'half', expected I/N"),
        (["--part", ""], "--part: got '', expected I/N"),
        (["--part", "1/2", "--repair"], "--part: got --repair too, expected one of the two. Repair the whole cache"),
        (["--part", "1/2", "--repair", "--dry-run"], "--part: got --repair too"),
    ],
)
def test_a_part_that_cannot_be_checked(cache: Path, run_cli: Cli, options: list[str], message: str) -> None:
    done = run_cli("verify", cache, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"chordcache verify: error: {message}")


# Sources


@pytest.fixture
def own(whole: Path, tmp_path: Path) -> Path:
    """videos/, index.json and cache/ of its own."""
    shutil.copytree(whole / "videos", tmp_path / "own/videos")
    index = cc.scan([tmp_path / "own/videos"], output=tmp_path / "own/index.json", jobs=HERE)
    cc.build(index, tmp_path / "own/cache", jobs=HERE)
    return tmp_path / "own"


def test_a_source_that_shows_other_pictures_is_stale(own: Path, run_cli: Cli, make_video: Callable[..., Path]) -> None:
    """All digests right, and still not what the source shows."""
    make_video(own / "videos/a.mp4", num_frames=10, planes=lambda n, w, h: _flat(n * 9, w, h))
    status = (own / "videos/a.mp4").stat()
    source = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    reseal(of(own / "cache", "a.mp4")[0], source=source)
    cc.repair(own / "cache", [], jobs=HERE)
    assert run_cli("verify", own / "cache", "-j1", "--deep").returncode == 0
    done = run_cli("verify", own / "cache", "-j1", "--source")
    assert done.returncode == 6  # the cache is what was written: which of the two is right, a person must say
    assert "PSNR" in done.stdout
    assert "--repair" not in done.stdout


# gc


def test_gc_lists_asks_and_removes_only_superseded_generations(
    own: Path, run_cli: Cli, make_video: Callable[..., Path]
) -> None:
    cache = own / "cache"
    make_video(own / "videos/a.mp4", num_frames=40)
    _, old = of(cache, "a.mp4")
    cc.build(cc.scan([own / "videos"], output=own / "index.json", jobs=HERE), cache, jobs=HERE)
    assert old.exists()
    done = run_cli("verify", cache, "-j1")
    assert done.returncode == 6
    assert "orphan" in done.stdout
    assert "chordcache gc" in done.stdout
    before = processes.files_of(cache)
    name = str(old.relative_to(cache))
    done = run_cli("gc", cache, "--dry-run")
    assert (done.returncode, done.stdout) == (0, f"{name}\n")
    assert processes.files_of(cache) == before
    done = run_cli("gc", cache)
    assert (done.returncode, done.stdout) == (0, f"{name}\nremoved 1 file\n")
    assert processes.files_of(cache) == {file: status for file, status in before.items() if file != name}
    assert run_cli("verify", cache, "-j1").returncode == 0
    assert run_cli("gc", cache).stdout == "nothing to remove\n"


def test_gc_does_nothing_where_a_sidecar_is_damaged(cache: Path, run_cli: Cli) -> None:
    sidecar, artefact = of(cache, "a.mp4")
    processes.flip(sidecar, 60)
    done = run_cli("gc", cache)
    assert done.returncode == 5
    assert sidecar.name in done.stderr
    assert artefact.exists()


@pytest.mark.parametrize("command", ["verify", "gc", "info"])
@pytest.mark.parametrize("what", ["nothing", "empty folder", "other folder", "file"])
def test_a_folder_that_is_not_a_cache(tmp_path: Path, run_cli: Cli, command: str, what: str) -> None:
    path = tmp_path / "thing"
    if what == "file":
        path.write_text("x")
    elif what != "nothing":
        path.mkdir()
        if what == "other folder":
            (path / "thesis.tex").touch()
    done = run_cli(command, path)
    assert done.returncode == (2 if (what, command) == ("file", "info") else 10), done.stderr
    assert "thing" in done.stderr
    assert processes.fine(done.stderr)
    assert not (path / ".lock").exists()
