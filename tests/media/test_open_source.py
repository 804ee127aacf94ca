"""Sources are opened once: what is read is the file that was checked, also if another one takes its name."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import processes
from helpers.exchange import exchange
from helpers.inline import HERE

import chordcache as cc
from chordcache.index import scan as scan_module
from chordcache.media.source_file import FolderLooks, check_unchanged, look, look_or_none, open_source
from chordcache.sources.mapped_mp4 import MappedMP4Source

pytestmark = pytest.mark.timeout(300)

Maker = Callable[..., Path]

INSIDE, OUTSIDE = 4, 7
"""Number of frames of the video in the root, and of the one that a link leads to"""


@pytest.fixture
def work(tmp_path: Path, make_video: Maker) -> Path:
    """root/sub/a.mp4, outside/a.mp4, links to the latter and to its folder, and the index of root."""
    make_video(tmp_path / "root/sub/a.mp4", num_frames=INSIDE)
    make_video(tmp_path / "outside/a.mp4", num_frames=OUTSIDE)
    (tmp_path / "link.mp4").symlink_to(tmp_path / "outside/a.mp4")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    cc.scan([tmp_path / "root"], output=tmp_path / "index.json", jobs=HERE)
    return tmp_path


PLACES = {"folder": ("root/sub", "link"), "file": ("root/sub/a.mp4", "link.mp4")}
"""Names that change places"""


def cached(cache: Path) -> list[int]:
    """Return the number of frames of each video of a cache, as its artefacts have them."""
    return [rows for rows, _, _ in processes.contents(cache).values()]


# Links that take a name between the check and the open


@pytest.fixture(params=PLACES)
def change_after_check(work: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each look at the links of a path see none, and whatever follows see a link out of the root."""
    one, other = (work / name for name in PLACES[request.param])
    resolve, is_linked = os.path.realpath, False

    def resolved(path: str) -> str:
        nonlocal is_linked
        if not str(path).endswith("a.mp4"):
            return resolve(path)
        if is_linked:
            exchange(one, other)
        target = resolve(path)
        exchange(one, other)
        is_linked = True
        return target

    monkeypatch.setattr(os.path, "realpath", resolved)
    yield
    if is_linked:
        exchange(one, other)


@pytest.mark.usefixtures("change_after_check")
def test_a_build_reads_nothing_behind_a_link_that_came_after_the_check(work: Path) -> None:
    summary = cc.build(work / "index.json", work / "cache", jobs=HERE)
    assert cached(work / "cache") == []
    assert summary.num_failed == 1
    (line,) = processes.quarantine(work / "cache").values()
    assert (line["stage"], line["cause"]) == ("open", "io")
    assert line["message"] in {
        "Not a directory: a link or a file has the place of a folder in its path",
        "Too many levels of symbolic links",
    }


@pytest.mark.parametrize("how", PLACES)
def test_a_scan_reads_nothing_behind_a_link_that_came_after_the_walk(
    work: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    one, other = (work / name for name in PLACES[how])
    probe = scan_module.probe

    def probe_changed(*args: object, **options: object) -> object:
        exchange(one, other)
        return probe(*args, **options)

    monkeypatch.setattr(scan_module, "probe", probe_changed)
    (record,) = cc.scan([work / "root"], output=work / "new.json", jobs=HERE)
    assert (record.error_stage, record.error_cause, record.packets) == ("open", "refused-link", None)


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_link_that_is_replaced_while_it_is_resolved_fails_its_own_video(
    work: Path, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """``readlink`` of what was a link a moment ago is an error. It ended the whole command."""
    if is_cached:
        cc.build(work / "index.json", work / "cache", jobs=HERE)
    resolve = os.path.realpath

    def resolved(path: str) -> str:
        if str(path).endswith(("a.mp4", "sub")):
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return resolve(path)

    monkeypatch.setattr(os.path, "realpath", resolved)
    summary = cc.build(work / "index.json", work / "cache", jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (0, 1)
    (line,) = processes.quarantine(work / "cache").values()
    assert line["cause"] == "refused-link"


def test_with_follow_symlinks_links_lead_anywhere(work: Path) -> None:
    exchange(*(work / name for name in PLACES["folder"]))
    options = cc.BuildOptions(follow_symlinks=True)
    cc.build(work / "index.json", work / "cache", jobs=HERE, options=options)
    assert cached(work / "cache") == [OUTSIDE]


# A file that takes the name of an open one


def test_an_open_source_stays_the_same_file(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"first")
    other.write_bytes(b"second")
    with open_source(str(path)) as source:
        os.replace(other, path)
        assert Path(source.place).read_bytes() == b"first"
        assert look(source.place).inode == source.state.inode
        with pytest.raises(cc.MediaError, match="the file changed while it was read"):
            check_unchanged(str(path), source.state)
        path.unlink()
        assert Path(source.place).read_bytes() == b"first"
    assert not os.path.exists(source.place)


@pytest.mark.parametrize("kind", [cc.MP4Source, MappedMP4Source])
@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_sound_and_frames_of_a_source_are_of_one_file(
    tmp_path: Path, make_video: Maker, kind: type[cc.MP4Source], codec: str
) -> None:
    path = make_video(tmp_path / "a.mp4", num_frames=50, audio=True, codec=codec)
    other = make_video(tmp_path / "b.mp4", num_frames=60, size=(96, 64), codec=codec)
    with kind().open(path) as source:
        frames, sound = source.get_frames([0, 49]), source.get_audio_chunk(0.5, 1)
    with kind().open(path) as source:
        os.replace(other, path)
        assert np.array_equal(source.get_frames([49, 0])[::-1], frames)
        assert np.array_equal(source.get_audio_chunk(0.5, 1), sound)
        assert source.sample_rate > 0


def test_an_open_source_is_closed_with_what_it_opened(tmp_path: Path, make_video: Maker) -> None:
    path = make_video(tmp_path / "a.mkv", num_frames=5)
    before = os.listdir("/proc/self/fd")
    for kind in (cc.MP4Source, MappedMP4Source):
        source = kind().open(path)  # the mapped one cannot read Matroska, so it opens a container too
        assert len(source.get_frames([4])) == 1
        source.close()
        with pytest.raises(cc.MediaError, match="not a regular file"):
            source.open(tmp_path)
    assert os.listdir("/proc/self/fd") == before


# What is not a regular file


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a terminal": lambda path: path.symlink_to("/dev/tty"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_nothing_but_a_regular_file_is_opened(tmp_path: Path, kind: str) -> None:
    """Under strace: only descriptors that cannot read, and no error of a device, which an open could act on."""
    path = tmp_path / "a.mp4"
    SPECIAL[kind](path)
    trace = tmp_path / "trace"
    program = "import sys, chordcache as cc; cc.MP4Source().open(sys.argv[1])"
    tracer = shutil.which("strace")
    if tracer is None:
        pytest.skip("no strace")
    command = [tracer, "-f", "-qq", "-y", "-e", "trace=open,openat,openat2", "-o", trace]
    done = subprocess.run([*command, sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    assert f"cannot read '{path}': not a regular file" in done.stderr
    opened = [line for line in trace.read_text().splitlines() if f'"{path}"' in line]
    assert len(opened) == 1
    assert "O_PATH" in opened[0]


def test_looks_at_many_files_are_those_at_one_file(tmp_path: Path) -> None:
    """Files, links inside and out of the root, and what is not a file, one folder after another."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "a", root / "b", outside):
        folder.mkdir(parents=True)
        (folder / "clip.mp4").write_bytes(folder.name.encode())
    (root / "a" / "inner.mp4").symlink_to(root / "b" / "clip.mp4")
    (root / "a" / "outer.mp4").symlink_to(outside / "clip.mp4")
    (root / "linked").symlink_to(root / "b")
    (root / "leads out").symlink_to(outside)
    os.mkfifo(root / "a" / "pipe.mp4")
    names = ["a/clip.mp4", "a/inner.mp4", "a/outer.mp4", "a/pipe.mp4", "a/none.mp4", "b/clip.mp4", "none/clip.mp4"]
    names += ["linked/clip.mp4", "leads out/clip.mp4", "a/clip.mp4", "a"]
    looks = FolderLooks()
    for inside in (str(root), None):
        for name in names:
            assert looks.look_or_none(f"{root}/{name}", inside) == look_or_none(f"{root}/{name}", inside), name
    assert looks.look_or_none(f"{root}/a/outer.mp4", str(root)) is None
    assert looks.look_or_none(f"{root}/leads out/clip.mp4", str(root)) is None


def test_a_look_sees_a_file_that_took_the_name(tmp_path: Path) -> None:
    path, other = tmp_path / "clip.mp4", tmp_path / "other.mp4"
    path.write_bytes(b"one")
    other.write_bytes(b"another")
    looks = FolderLooks()
    assert looks.look_or_none(str(path), str(tmp_path)) == look(str(path))
    os.replace(other, path)
    state = looks.look_or_none(str(path), str(tmp_path))
    assert state == look(str(path))
    assert state is not None
    assert state.identity.size == len("another")
