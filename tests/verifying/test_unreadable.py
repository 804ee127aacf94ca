"""Lists of a cache that are missing, not copied yet or not readable: no command takes them for empty."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from helpers import processes

import chordcache as cc
from chordcache.building.pack import pack
from chordcache.cli import cli
from chordcache.engine.choice import Engine

NAMES = ("a.mp4", "b.mp4", "c.mp4", "d.mp4")

INLINE = Engine("inline")
"""Tasks run in this process, as this user, and without the time that a process takes to start"""

LISTS = ("chordcache.json", "sidecar", "index.jsonl", "quarantine.jsonl", "runs.jsonl", "catalog.bin")

COMMANDS = ("info", "ls", "verify", "gc", "merge", "build", "open_cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with videos/, index.json, cache/, other/: four videos cached, and one input in quarantine."""
    folder = tmp_path_factory.mktemp("whole")
    for name in NAMES:
        make_video(folder / "videos" / name, num_frames=4, size=(64, 48))
    (folder / "videos/text.mp4").write_text("no video")
    index = cc.scan([folder / "videos"], output=folder / "index.json", jobs=INLINE)
    assert cc.build(index, folder / "cache", features=["frames"], jobs=INLINE).num_failed == 1
    return folder


@pytest.fixture
def cache(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "cache", tmp_path / "cache"))


def run(whole: Path, cache: Path, command: str) -> Result:
    """Run a command in this process. Merges have the whole cache as the other input."""
    arguments = {
        "verify": ["verify", cache, "--quick", "-q"],
        "gc": ["gc", cache],
        "merge": ["merge", whole / "cache", cache, "-o", cache.with_name("merged")],
        "build": ["build", whole / "index.json", "-o", cache, "--features", "frames", "--engine", "inline", "-q"],
        "open_cache": ["show", cache, "a-", "-o", cache.with_name("a.png")],
    }.get(command, [command, cache])
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="chordcache")


def sidecar_of(cache: Path, name: str = "a.mp4") -> Path:
    return Path(processes.sidecars(cache)[name]["_sidecar"])


def artefacts(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in (cache / "lmdb").rglob("*") if path.is_file()}


def put_in_place(path: Path, what: str) -> None:
    """Replace a file or a folder by something that cannot be read in its place."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if what == "folder":
        path.mkdir()
    elif what == "file":
        path.write_text("x")
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "broken disk":
        path.symlink_to("/proc/self/mem")  # its first bytes cannot be read: EIO
    elif what == "socket":
        place = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(place)


@contextlib.contextmanager
def as_another_user(folder: Path) -> Iterator[None]:
    """Run the block as a user who owns a folder and is not root, since root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_cache(whole: Path) -> Iterator[Path]:
    """A copy of the cache that other users may reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield Path(shutil.copytree(whole / "cache", folder / "cache"))
    shutil.rmtree(folder)


# Packs


@pytest.mark.parametrize("level", ["quick", "deep"])
def test_a_pack_that_cannot_be_read_is_unreadable(cache: Path, level: str) -> None:
    """It is named beside the files in it."""
    packed = cache.with_name("packed")
    pack(cache, packed)
    (path,) = packed.glob("packs/*.pack")
    path.rename(path.with_name("hidden"))
    path.mkdir()
    report = cc.verify(packed, level=level, jobs=INLINE)
    findings = {(finding.kind, finding.file) for finding in report.damage}
    assert ("unreadable", f"packs/{path.name}") in findings
    assert report.num_videos == 4


def test_a_tier_that_cannot_be_listed_is_a_finding(open_cache: Path) -> None:
    with as_another_user(open_cache.parent):
        (open_cache / "lmdb").chmod(0)
        try:
            report = cc.verify(open_cache, jobs=INLINE)
        finally:
            (open_cache / "lmdb").chmod(0o755)
    assert {finding.kind for finding in report.damage} == {"unreadable"}
    assert len(report.damage) == len(NAMES) + 1
    assert report.exit_code == 15


# The folder of the sidecars


@pytest.mark.parametrize("what", ["missing", "file", "loop"])
@pytest.mark.parametrize("command", ["verify", "gc", "merge", "build"])
def test_a_cache_without_its_folder_of_sidecars_is_not_an_empty_one(
    whole: Path, cache: Path, command: str, what: str
) -> None:
    before = artefacts(cache)
    put_in_place(cache / "videos", what)
    done = run(whole, cache, command)
    assert done.exit_code == 15, done.output
    assert f"'{cache / 'videos'}': got " in done.output
    assert artefacts(cache) == before
    assert (cache / "videos").exists() is (what == "file")
    assert not (cache.with_name("merged") / "chordcache.json").exists()


@pytest.mark.parametrize("command", ["verify", "gc", "build", "merge"])
def test_a_folder_of_sidecars_without_permission_is_not_empty(open_cache: Path, whole: Path, command: str) -> None:
    before = artefacts(open_cache)
    shutil.copytree(open_cache, open_cache.with_name("copy"))
    with as_another_user(open_cache.parent):
        (open_cache / "videos").chmod(0)
        try:
            with pytest.raises(cc.StorageError, match="videos': got Permission denied, expected .* Let this user read"):
                call(open_cache, whole, command)
        finally:
            (open_cache / "videos").chmod(0o755)
    assert artefacts(open_cache) == before


def call(cache: Path, whole: Path, command: str) -> None:
    if command == "verify":
        cc.verify(cache, level="quick")
    elif command == "gc":
        cc.collect_garbage(cache)
    elif command == "build":
        cc.build(cc.read_index(cache / "index.jsonl"), cache, features=["frames"], jobs=INLINE)
    else:
        cc.merge([cache, cache.with_name("copy")], cache.with_name("merged"))


def test_a_sidecar_without_permission_is_not_built_again(open_cache: Path, whole: Path) -> None:
    shutil.copytree(open_cache, open_cache.with_name("copy"))
    before = processes.files_of(open_cache)
    sidecar = sidecar_of(open_cache)
    with as_another_user(open_cache.parent):
        sidecar.chmod(0)
        for command in ("gc", "build", "merge"):
            with pytest.raises(cc.StorageError, match=rf"{sidecar.name}': got Permission denied"):
                call(open_cache, whole, command)
        (finding,) = cc.verify(open_cache, level="quick").damage
        assert (finding.kind, finding.fix_command) == ("unreadable", "")
        assert cc.verify(open_cache, level="quick").exit_code == 15
    assert {file for file in processes.files_of(open_cache) if "/" in file} == {file for file in before if "/" in file}


def test_an_artefact_without_permission_is_not_repaired(open_cache: Path) -> None:
    artefact = processes.sidecars(open_cache)["a.mp4"]["_artefact"]
    shutil.copytree(open_cache, open_cache.with_name("copy"))
    with as_another_user(open_cache.parent):
        artefact.chmod(0)
        findings = cc.verify(open_cache, jobs=INLINE).damage
        with pytest.raises(cc.StorageError, match=f"{artefact.name}': got Permission denied"):
            cc.merge([open_cache, open_cache.with_name("copy")], open_cache.with_name("merged"))
    assert [(finding.kind, finding.fix_command) for finding in findings] == [("unreadable", "")]
    assert "Permission denied" in findings[0].message


def test_a_cache_with_no_video_yet_works(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs/text.mp4").write_text("no video")
    for name in ("cache", "other"):
        index = cc.scan([tmp_path / "inputs"], output=tmp_path / "index.json", jobs=INLINE)
        assert cc.build(index, tmp_path / name, jobs=INLINE).num_failed == 1
    for _ in ("as it is", "as earlier versions left it, without the folder"):
        assert (tmp_path / "cache/videos").is_dir() or _ != "as it is"
        assert cc.verify(tmp_path / "cache", jobs=INLINE).damage == []
        assert cc.collect_garbage(tmp_path / "cache") == []
        summary = cc.merge([tmp_path / "cache", tmp_path / "other"], tmp_path / f"merged {_[:5]}")
        assert (summary.num_inputs, summary.num_failed) == (1, 1)
        shutil.rmtree(tmp_path / "cache/videos", ignore_errors=True)


# Lists that are not complete


def test_gc_refuses_while_the_catalog_names_a_video_without_a_sidecar(whole: Path, cache: Path) -> None:
    before = artefacts(cache)
    shutil.rmtree(sidecar_of(cache).parent)
    done = run(whole, cache, "gc")
    assert done.exit_code == 5
    assert f"run the same build again, or 'chordcache verify --repair {cache}' first" in done.output
    assert artefacts(cache) == before
    assert cc.repair(cache, cc.verify(cache, level="quick").damage, jobs=INLINE).num_up_to_date >= 1
    assert run(whole, cache, "gc").exit_code == 0
    assert cc.verify(cache, level="quick").damage == []


def test_gc_keeps_artefacts_whose_sidecars_may_still_be_copied(whole: Path, cache: Path) -> None:
    before = artefacts(cache)
    sidecar = sidecar_of(cache)
    line = sidecar.read_text()
    sidecar.unlink()
    cc.repair(cache, [], jobs=INLINE)  # the catalog does not name the video any more
    assert cc.collect_garbage(cache) == []
    assert [(finding.kind, finding.count) for finding in cc.verify(cache, level="quick").damage] == [("incomplete", 1)]
    assert artefacts(cache) == before
    sidecar.write_text(line)
    cc.repair(cache, [], jobs=INLINE)
    assert cc.verify(cache, level="quick").damage == []


def test_a_merge_of_a_cache_that_is_not_complete_fails(whole: Path, cache: Path) -> None:
    sidecar_of(cache).unlink()
    done = run(whole, cache, "merge")
    assert done.exit_code == 5  # the catalog names the video
    assert f"'{cache / 'videos'}': got no sidecars of 1 video" in done.output
    cc.repair(cache, [], jobs=INLINE)
    shutil.copytree(cache, cache.with_name("copy"))
    with pytest.raises(cc.UsageError, match=r"^caches: got '.*cache', which lacks 1 of 5 indexed videos"):
        cc.merge([cache, cache.with_name("copy")], cache.with_name("merged"))
    assert not cache.with_name("merged").exists()
    assert cc.merge([cache, whole / "cache"], cache.with_name("merged")).num_done == 4  # together they are complete


# One error for every list


READS = {
    "chordcache.json": set(COMMANDS),
    "sidecar": {"verify", "gc", "merge", "build"},
    "index.jsonl": {"verify", "gc", "merge", "build"},
    "quarantine.jsonl": {"info", "verify", "merge", "build"},
    "runs.jsonl": {"verify"},
    "catalog.bin": {"info", "ls", "verify", "gc", "merge", "open_cache"},
}
"""Commands that read each list. The others end as if it could be read"""


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("what", ["folder", "loop", "broken disk", "socket"])
def test_every_command_says_which_list_it_cannot_read(whole: Path, cache: Path, name: str, what: str) -> None:
    path = sidecar_of(cache) if name == "sidecar" else cache / name
    before = artefacts(cache)
    for command in COMMANDS:
        put_in_place(path, what)  # again, since a build replaces the catalog
        done = run(whole, cache, command)
        text = f"{name}, {what}, {command}: {done.exit_code}: {done.output}"
        assert "a bug" not in done.output, text
        assert artefacts(cache) >= before, text
        if command in READS[name]:
            assert done.exit_code == 15, text
            assert f"'{path}': got " in done.output, text
            assert "--repair" not in done.output, text
    with contextlib.suppress(cc.StorageError):
        cc.open_cache(cache)
        assert name not in ("chordcache.json", "catalog.bin")


# What is left over


def test_verify_and_gc_agree_about_orphans(whole: Path, cache: Path) -> None:
    (cache / "lmdb/notes.txt").write_text("mine")
    sidecar = sidecar_of(cache)
    temporary = sidecar.with_name(f".{sidecar.name}.Xa3f9Q")  # as rsync names it
    temporary.write_text(sidecar.read_text()[:100])
    old = next(iter(sorted(artefacts(cache))))
    name, generation = old.rsplit(".", 2)[0], "0123abcd"
    shutil.copy(cache / old, cache / f"{name}.{generation}.lmdb")
    orphans = {finding.file: finding for finding in cc.verify(cache, level="quick").damage}
    assert orphans.keys() == {"lmdb/notes.txt", str(temporary.relative_to(cache)), f"{name}.{generation}.lmdb"}
    done = run(whole, cache, "gc")
    assert done.exit_code == 6
    assert "removed 1 file" in done.output
    left = [finding for finding in orphans.values() if not finding.fix_command]
    assert {finding.message for finding in left} == {"chordcache did not make it, and gc leaves it; move it away"}
    for finding in left:
        assert f"chordcache gc: left {finding}" in done.output
    as_json = CliRunner().invoke(cli, ["gc", str(cache), "--json"])
    assert as_json.exit_code == 6
    assert json.loads(as_json.stdout)["kept"] == sorted(finding.file for finding in left)
    assert {finding.file for finding in cc.verify(cache, level="quick").damage} == {finding.file for finding in left}


# Interrupted builds


def test_videos_that_are_not_built_yet_are_one_finding(whole: Path, cache: Path) -> None:
    for name in ("b.mp4", "c.mp4", "d.mp4"):
        sidecar_of(cache, name).unlink()
    cc.repair(cache, [], jobs=INLINE)
    (finding,) = cc.verify(cache, level="quick").damage
    assert (finding.kind, finding.count) == ("incomplete", 3)
    assert finding.message.startswith("not built yet: 3 of 5 indexed videos, such as '")
    assert finding.fix_command.startswith("chordcache build ")
    done = run(whole, cache, "verify")
    assert done.exit_code == 6
    assert done.output == f"incomplete: {finding}\n"
    (data,) = json.loads(CliRunner().invoke(cli, ["verify", str(cache), "--quick", "--json"]).stdout)["damage"]
    assert (data["kind"], data["count"]) == ("incomplete", 3)
    assert json.loads((cache / "runs.jsonl").read_text().splitlines()[-1])["counts"]["num_incomplete"] == 3


def test_a_feature_that_many_videos_lack_is_one_finding(whole: Path, cache: Path) -> None:
    options = cc.BuildOptions(max_failures=0)
    (cache.parent / "videos").mkdir()
    for name in NAMES:
        shutil.copy2(whole / "videos" / name, cache.parent / "videos")
    (cache.parent / "videos/b.mp4").write_text("no video any more")
    with pytest.raises(cc.StoppedError):
        roots = {"videos": cache.parent / "videos"}
        index = whole / "index.json"
        cc.build(index, cache, tiers=["npz"], features=["motion"], roots=roots, jobs=INLINE, options=options)
    findings = [finding for finding in cc.verify(cache, level="quick").damage if "'motion'" in finding.message]
    assert len(findings) == 1
    assert findings[0].count >= 2
    assert f"{findings[0].count} of 4 videos, such as this one: 'motion' was requested" in findings[0].message


# Copies that are not complete


def needed(whole: Path) -> set[str]:
    return artefacts(whole / "cache") | {str(path.relative_to(whole / "cache")) for path in every_file(whole / "cache")}


def every_file(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "runs.jsonl"))


def half_copies(whole: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield names of half copies, and the files that are missing."""
    files = sorted(needed(whole))
    tops = sorted({file.partition("/")[0] for file in files})
    for count in (1, 2):
        for lost in itertools.combinations(tops, count):
            yield f"without {', '.join(lost)}", {file for file in files if file.partition("/")[0] in lost}
    draw = random.Random(0)
    for number in range(10):
        yield f"random {number}", set(draw.sample(files, draw.randrange(1, len(files))))


def test_no_command_removes_what_a_complete_copy_needs(whole: Path, tmp_path: Path) -> None:
    """The copy goes on after the commands, and the cache is sound then."""
    for number, (what, lost) in enumerate(half_copies(whole)):
        cache = tmp_path / str(number) / "cache"
        shutil.copytree(whole / "cache", cache)
        for file in lost:
            (cache / file).unlink()
        for path in sorted(cache.rglob("*"), reverse=True):  # a folder that was not copied yet
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if (cache / "videos").exists():
            (cache / "videos/.x.json.a1B2c3").write_text("{")
        before = {str(path.relative_to(cache)) for path in every_file(cache)}
        for command in ("info", "ls", "open_cache", "verify", "gc", "merge"):
            done = run(whole, cache, command)
            expected = expected_codes(command, lost)
            assert done.exit_code in expected, f"{what}: {command}: {done.exit_code}: {done.output}"
            now = {str(path.relative_to(cache)) for path in every_file(cache)}
            assert before <= now, f"{what}: {command} removed {sorted(before - now)}"
        shutil.copytree(whole / "cache", cache, dirs_exist_ok=True)
        (cache / "videos/.x.json.a1B2c3").unlink(missing_ok=True)
        assert cc.verify(cache, level="quick").damage == [], what
        shutil.rmtree(cache.parent)


def expected_codes(command: str, lost: set[str]) -> set[int]:
    """Return the exit codes that a command may end with if files of a cache are missing."""
    if "chordcache.json" in lost:
        return {10}
    if command in ("info", "ls", "open_cache"):
        return {10} if "catalog.bin" in lost else {0, 5} if command == "open_cache" else {0}
    if not lost - {"quarantine.jsonl"} and command in ("merge", "gc"):
        return {0, 6} if command == "gc" else {0}
    return {5, 6, 15} if command != "merge" else {0, 2, 5, 15}
