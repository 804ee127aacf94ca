"""Sources that change: under the decoder, within one tick of a clock, or without a trace in size and times."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT, SOURCE_CHANGER
from helpers.inline import HERE

import chordcache as cc
from chordcache.media import source_file
from chordcache.media.source_file import TICK_SECONDS, SourceState, look, open_source

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]
Maker = Callable[..., Path]

DAMAGE = ("decode", "truncated", "short", "changed")
"""Causes of a file that stays as a change in the middle of its decode left it"""

# Under the decoder


@pytest.fixture
def build_changing(
    tmp_path: Path, clips: Path, run_cli: Cli, workers: None
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Build root/sub/a.mp4, a real clip, with a plug-in that changes the source when it sees frame 20."""
    source = tmp_path / "root/sub/a.mp4"
    source.parent.mkdir(parents=True)
    shutil.copy(clips / "street/bikes.mp4", source)
    assert source.stat().st_size > 200_000  # far more than a demuxer has read at frame 20

    def build(change: str) -> subprocess.CompletedProcess[str]:
        cc.scan([tmp_path / "root"], output=tmp_path / "index.json", jobs=HERE)
        other = tmp_path / ("elsewhere/a.mp4" if change == "replace_folder" else "new.mp4")
        mine = {"extractor": SOURCE_CHANGER, "change": change, "source": str(source), "other": str(other)}
        (tmp_path / "c.yaml").write_text(yaml.dump({"features": {"mine": mine}}))
        args = ["build", "index.json", "-c", "c.yaml", "--tier", "npz", "--features", "mine", "-j1"]
        return run_cli(*args, cwd=tmp_path, env=ENVIRONMENT)

    return build


@pytest.mark.parametrize("change", ["append", "replace"])
def test_a_change_during_the_decode_is_reported_and_nothing_is_published(
    tmp_path: Path, build_changing: Callable[[str], subprocess.CompletedProcess[str]], change: str
) -> None:
    done = build_changing(change)
    assert done.returncode == 3, done.stdout + done.stderr
    line = processes.quarantine(tmp_path / "cache")["sub/a.mp4"]
    assert (line["cause"], line["message"]) == ("changed", "the file changed while it was read")
    assert processes.sidecars(tmp_path / "cache") == {}
    assert not (tmp_path / "cache/npz").exists()
    # at rest it is tried again without being asked, even if its size and mtime are the same
    again = cc.build(tmp_path / "index.json", tmp_path / "cache", config=tmp_path / "c.yaml", jobs=HERE)
    line = processes.quarantine(tmp_path / "cache").get("sub/a.mp4", {})
    assert (again.num_done, line.get("cause")) in {(1, None), *((0, cause) for cause in DAMAGE)}


def test_a_source_that_is_removed_during_the_decode(
    tmp_path: Path, build_changing: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    done = build_changing("remove")
    assert done.returncode == 3, done.stdout + done.stderr
    assert processes.quarantine(tmp_path / "cache")["sub/a.mp4"]["cause"] == "io"
    assert processes.sidecars(tmp_path / "cache") == {}


def test_a_file_of_the_same_size_and_times_is_detected_by_its_inode(
    tmp_path: Path, build_changing: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    """Two files of one size, mtime and ctime, made in one tick of the clock; renaming their folders changes neither."""
    source, twin = tmp_path / "root/sub/a.mp4", tmp_path / "elsewhere/a.mp4"
    data = source.read_bytes()
    twin.parent.mkdir()
    twin.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def are_twins() -> bool:
        for path in (source, twin):
            os.utime(path, ns=(10**18, 10**18))
        states = [look(str(path)) for path in (source, twin)]
        return len({(state.identity, state.ctime_ns) for state in states}) == 1

    if not processes.wait_until(are_twins, 60, step=0):
        pytest.skip("the clock of this file system is too fine for twins")
    done = build_changing("replace_folder")
    assert done.returncode == 3, done.stdout + done.stderr
    line = processes.quarantine(tmp_path / "cache")["sub/a.mp4"]
    assert (line["cause"], line["message"]) == ("changed", "the file changed while it was read")


# Within one tick


def settled(path: Path) -> SourceState:
    with open_source(str(path), settled=True) as source:
        return source.state


def test_a_write_right_after_a_settled_look_always_shows(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for number in range(30):
        path.write_bytes(b"%d" % (number % 2))
        state = settled(path)
        mtime_ns = path.stat().st_mtime_ns
        path.write_bytes(b"%d" % ((number + 1) % 2))
        os.utime(path, ns=(mtime_ns, mtime_ns))
        assert look(str(path)) != state


def test_a_file_that_is_written_to_all_the_time_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    stop = threading.Event()

    def write() -> None:
        with open(path, "ab", buffering=0) as file:
            while not stop.wait(0.002):
                file.write(b"x")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert processes.wait_until(lambda: path.stat().st_size > 3, 60)
        match = "the file is being written to; build again when it is complete"
        with pytest.raises(cc.MediaError, match=match) as caught:
            settled(path)
        assert caught.value.cause == "changed"
    finally:
        stop.set()
        thread.join()


def test_an_old_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a")
    time.sleep(2 * TICK_SECONDS)
    naps: list[float] = []
    monkeypatch.setattr(source_file.time, "sleep", naps.append)
    assert settled(path) == look(str(path))
    assert naps == []


@pytest.fixture
def plain(tmp_path: Path, make_video: Maker) -> Path:
    """Two videos, their index, and cache/."""
    for name in ("a", "b"):
        make_video(tmp_path / f"root/{name}.mp4", num_frames=6, audio=True)
    cc.scan([tmp_path / "root"], output=tmp_path / "index.json", jobs=HERE)
    cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=HERE)
    return tmp_path


def test_a_touched_file_is_reported(plain: Path) -> None:
    """A file that was touched is reported as changed, whatever its bytes."""
    (plain / "root/a.mp4").touch()
    damage = cc.verify(plain / "cache", source=True, jobs=HERE).damage
    assert [(finding.kind, finding.message) for finding in damage] == [
        ("stale", "the source changed after it was cached")
    ]


def test_videos_that_moved_are_not_found(plain: Path) -> None:
    """The message names the option that helps. A link to itself is not a missing file."""
    (plain / "root/b.mp4").unlink()
    (plain / "root/b.mp4").symlink_to("b.mp4")
    shutil.move(plain / "root/a.mp4", plain / "a.mp4")
    first, second = sorted(cc.verify(plain / "cache", source=True, jobs=HERE).damage, key=lambda damage: damage.file)
    assert first.message == "the source is not found. If it moved, name its folder: --root root=PATH"
    assert "the source cannot be compared: " in second.message
    shutil.move(plain / "root", plain / "there")
    moved = cc.verify(plain / "cache", source=True, jobs=HERE).damage
    assert {damage.message for damage in moved} == {first.message}
    shutil.move(plain / "a.mp4", plain / "there/a.mp4")
    links = cc.verify(plain / "cache", source=True, jobs=HERE, roots={"root": plain / "root/../there"}).damage
    assert [damage.file for damage in links] == [str(plain / "there/b.mp4")]


# The same file elsewhere, and another file that looks the same


def move_to_another_disk(folder: Path) -> Path:
    """To memory, if the folder is on a disk."""
    other = Path(tempfile.mkdtemp(dir="/dev/shm"))
    subprocess.run(["mv", folder / "root", other / "root"], check=True)
    return other / "root"


def copy_with_times(folder: Path) -> Path:
    subprocess.run(["cp", "-a", folder / "root", folder / "copy"], check=True)
    return folder / "copy"


def change_mode_and_owner(folder: Path) -> Path:
    for path in (folder / "root").iterdir():
        path.chmod(0o400)
        os.chown(path, 12, 34)
    return folder / "root"


def add_hard_links(folder: Path) -> Path:
    for path in (folder / "root").iterdir():
        os.link(path, folder / f"link-to-{path.name}")
    return folder / "root"


@pytest.mark.parametrize("change", [move_to_another_disk, copy_with_times, change_mode_and_owner, add_hard_links])
def test_the_same_file_elsewhere_is_not_built_again(plain: Path, change: Callable[[Path], Path]) -> None:
    before = {n: f for n, f in processes.files_of(plain / "cache").items() if n.startswith("lmdb/")}
    ctimes = {path.name: path.stat().st_ctime_ns for path in (plain / "root").iterdir()}
    now = change(plain)
    try:
        assert all(path.stat().st_ctime_ns != ctimes[path.name] for path in now.iterdir())
        summary = cc.build(plain / "index.json", plain / "cache", jobs=HERE, roots={"root": str(now)})
        assert (summary.num_done, summary.num_up_to_date) == (0, 2)
        assert {n: f for n, f in processes.files_of(plain / "cache").items() if n.startswith("lmdb/")} == before
        assert cc.verify(plain / "cache", source=True, jobs=HERE).damage == []
        rescanned = cc.scan([f"root={now}"], output=plain / "index.json", jobs=HERE).summary
        assert (rescanned.num_done, rescanned.num_up_to_date) == (0, 2)
    finally:
        if now.is_relative_to("/dev/shm"):
            shutil.rmtree(now.parent)
