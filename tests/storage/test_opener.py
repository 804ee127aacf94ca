"""The opener: what is below a cache is opened without following a link, and never waits or reads without bound."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import chdir, nullcontext
from pathlib import Path

import pytest

from chordcache.errors import ChordcacheError, DamageError, StorageError, UsageError
from chordcache.storage import atomic, opener
from chordcache.storage.artefacts.open_files import open_artefact

FILE = "videos/ab/x.json"
"""A file that is three levels deep, as most files of a cache are"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with one file, beside a folder with a file of the same name."""
    for folder in ("cache", "outside"):
        (tmp_path / folder / "videos/ab").mkdir(parents=True)
        (tmp_path / folder / FILE).write_text(f"in {folder}\n")
    return tmp_path / "cache"


@pytest.fixture
def sparse(cache: Path) -> Path:
    """A file of 3 GiB, of which a page in the middle and one at the end are on the disk."""
    path = cache / FILE
    with path.open("wb") as file:
        for place in (1 << 30, (3 << 30) - 4096):
            file.seek(place)
            file.write(b"x" * 4096)
    return path


def test_a_file_of_holes_is_not_read(cache: Path, sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=f"'{sparse}': got a sparse file, .*8192 of 3221225472 bytes are on the"):
        opener.open_binary(cache, FILE)
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "3GiB")
    with opener.open_binary(cache, FILE) as file:
        assert file.read(1) == b"\0"
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "much")
    with pytest.raises(UsageError, match="CHORDCACHE_READ_LIMIT: got 'much', expected a size with a unit"):
        opener.open_file(cache, FILE)


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDONLY])
def test_a_sparse_file_of_ranges_is_opened(cache: Path, sparse: Path, flags: int) -> None:
    os.close(opener.open_file(cache, FILE, flags, may_be_sparse=flags == os.O_RDONLY))


def test_a_file_whose_blocks_are_few_is_read(cache: Path, sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may compress, or count no blocks. One that knows no holes says that all of the file is there."""
    lseek = os.lseek
    data = {os.SEEK_DATA: lambda start: start, os.SEEK_HOLE: lambda start: 3 << 30}

    def whole(fd: int, place: int, how: int) -> int:
        return data[how](place) if how in data else lseek(fd, place, how)

    def unknown(fd: int, place: int, how: int) -> int:
        if how in data:
            raise OSError(errno.EINVAL, "Invalid argument")
        return lseek(fd, place, how)

    for seek in (whole, unknown):
        monkeypatch.setattr(os, "lseek", seek)
        with opener.open_binary(cache, FILE) as file:
            assert file.tell() == 0


def test_a_file_with_some_holes_is_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy with ``cp --sparse=always`` has holes, where for example the sound is silent."""
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "1MiB")
    for num_bytes, is_right in ((1 << 20, True), (64 << 12, False)):
        with (cache / FILE).open("wb") as file:
            file.truncate(64 * num_bytes + (0 if is_right else 4 << 20))
            file.write(bytes(num_bytes) if is_right else b"x")
        with nullcontext() if is_right else pytest.raises(StorageError, match="a sparse file"):
            os.close(opener.open_file(cache, FILE))


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Each file of a folder: its links, the time of its last change, and its content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_nlink, path.stat().st_mtime_ns, path.read_bytes()) for path in files} | {
        str(path): (0, 0, b"") for path in folder.rglob("*") if path.is_dir()
    }


def put_socket(place: Path) -> None:
    with chdir(place.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(place.name)  # without its folder, since the name of a socket has at most 107 bytes


def put_device(place: Path) -> None:
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


OTHERS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": put_socket,
    "device": put_device,
    "folder": Path.mkdir,
}


def write(cache: Path, name: str) -> None:
    with os.fdopen(opener.open_file(cache, name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(b"written")


def publish(cache: Path, name: str) -> None:
    with atomic.partial_folder(cache) as folder:
        (folder / "x").write_text("published")
        atomic.publish_all(cache, {folder / "x": name})


def link_or_copy(cache: Path, name: str) -> None:
    with atomic.partial_folder(cache) as folder:
        atomic.link_or_copy(cache, name, folder / "x")


def artefact(cache: Path, name: str) -> None:
    open_artefact(cache / name, (cache / name).stat().st_size)


READS: dict[str, Callable[[Path, str], object]] = {
    "read": opener.read_file,
    "lines": lambda cache, name: list(opener.iter_lines(cache, name)),
    "size": opener.size_of,
    "open": lambda cache, name: opener.open_binary(cache, name).close(),
    "hard link": link_or_copy,
    "npz": lambda cache, name: artefact(cache, f"{name[:-5]}.npz"),
    "hdf5": lambda cache, name: artefact(cache, f"{name[:-5]}.h5"),
    "lmdb": lambda cache, name: artefact(cache, f"{name[:-5]}.lmdb"),
}
ARTEFACTS = ("npz", "hdf5", "lmdb")
WRITES: dict[str, Callable[[Path, str], object]] = {
    "write": write,
    "append": lambda cache, name: atomic.append_lines(cache, name, ["a line"]),
}
IN_FOLDERS: dict[str, Callable[[Path, str], object]] = {
    "publish": publish,
    "text": lambda cache, name: atomic.publish_text(cache, name, "text"),
    "remove": opener.remove,
    "make": lambda cache, name: opener.make_folder(cache, f"{os.path.dirname(name)}/new"),
    "list": lambda cache, name: opener.list_folder(cache, os.path.dirname(name)),
    "walk": lambda cache, name: list(opener.iter_files(cache, os.path.dirname(name))),
}
LEVELS = ["videos", "videos/ab", FILE]


@pytest.mark.parametrize("use", [*READS, *WRITES, *IN_FOLDERS])
@pytest.mark.parametrize("link", LEVELS)
def test_no_part_of_a_name_may_be_a_link(cache: Path, link: str, use: str) -> None:
    uses = READS | WRITES | IN_FOLDERS
    for suffix in (".npz", ".h5", ".lmdb"):
        (cache / FILE).with_suffix(suffix).write_text("x")
    outside = cache.parent / "outside"
    (cache.parent / "aside").mkdir()
    names = [link] if link != FILE else [f"videos/ab/x{suffix}" for suffix in (".json", ".npz", ".h5", ".lmdb")]
    for name in names:
        os.renames(cache / name, cache.parent / "aside" / os.path.basename(name))
        os.makedirs(os.path.dirname(cache / name), exist_ok=True)
        (cache / name).symlink_to(outside / (FILE if link == FILE else name))
    for suffix in (".npz", ".h5", ".lmdb"):
        (outside / FILE).with_suffix(suffix).write_text("x")
    before = snapshot(outside)
    if link == FILE and use in IN_FOLDERS:
        uses[use](cache, FILE)  # replaces or removes the link itself
    else:
        what = rf"{link[:9]}.*': got a link, expected a (file|folder) of the cache"
        with pytest.raises(ChordcacheError, match=what) as info:
            uses[use](cache, FILE)
        assert type(info.value) is (DamageError if use in ARTEFACTS else StorageError)
        assert "ink the whole cache instead" in str(info.value)
    assert snapshot(outside) == before


@pytest.mark.parametrize("use", READS | WRITES)
@pytest.mark.parametrize("kind", OTHERS)
def test_another_kind_of_file_is_an_error_at_once(cache: Path, kind: str, use: str) -> None:
    for suffix in (".json", ".npz", ".h5", ".lmdb"):
        place = (cache / FILE).with_suffix(suffix)
        place.unlink(missing_ok=True)
        OTHERS[kind](place)
    with pytest.raises((ChordcacheError, IsADirectoryError)):
        (READS | WRITES)[use](cache, FILE)


@pytest.mark.parametrize("use", [*READS, *WRITES, *IN_FOLDERS])
def test_the_cache_itself_may_be_a_link(cache: Path, use: str) -> None:
    (cache.parent / "way").symlink_to(cache.parent)
    (cache.parent / "link").symlink_to(cache.parent / "way/cache")
    for suffix in (".npz", ".h5", ".lmdb"):
        (cache / FILE).with_suffix(suffix).write_text("x")
    with pytest.raises(DamageError, match="is damaged") if use in ARTEFACTS else nullcontext():
        (READS | WRITES | IN_FOLDERS)[use](cache.parent / "link", FILE)


def test_a_missing_file_is_missing_by_its_whole_name(cache: Path) -> None:
    for name in ("no.json", "videos/no.json", "no/no/no.json"):
        with pytest.raises(FileNotFoundError) as info:
            opener.read_file(cache, name)
        assert info.value.filename in (str(cache / name), str((cache / name).parent), f"{cache}/no/no")
        assert not opener.exists(cache, name)
        opener.remove(cache, name)
        assert list(opener.iter_lines(cache, name)) == []
        assert list(opener.iter_files(cache, name)) == []
    assert opener.exists(cache, FILE)
    assert opener.exists(cache, "videos")


def test_a_name_does_not_lead_out(cache: Path) -> None:
    for name in ("../outside/videos/ab/x.json", "videos/../../outside/videos/ab/x.json"):
        with pytest.raises(StorageError, match="leads out of the cache"):
            opener.read_file(cache, name)


@pytest.mark.parametrize("num_bytes", [opener.MAX_BYTES + 64, 1 << 29])
def test_a_sparse_file_is_not_read(cache: Path, num_bytes: int) -> None:
    os.truncate(cache / FILE, num_bytes)
    with pytest.raises(StorageError, match="got a file of more than 16 MiB, expected less"):
        opener.read_file(cache, FILE)
    with pytest.raises(StorageError, match="got a line of more than 16 MiB, expected less"):
        list(opener.iter_lines(cache, FILE))
    with pytest.raises(StorageError, match="got a line of more than 16 MiB, expected less"):
        atomic.append_lines(cache, FILE, ["a line"])
    assert (cache / FILE).stat().st_size == num_bytes


def test_a_file_of_the_largest_size_is_read(cache: Path) -> None:
    data = b"x" * (opener.MAX_BYTES - 1) + b"\n"
    (cache / FILE).write_bytes(data)
    assert opener.read_file(cache, FILE) == data
    assert list(opener.iter_lines(cache, FILE)) == [data]


def test_folders_of_any_depth_are_walked(cache: Path) -> None:
    folder = os.open(cache / "videos", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("f", dir_fd=folder)
        inner = os.open("f", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    files = sorted(opener.iter_files(cache, "videos"))
    subprocess.run(["rm", "-rf", cache / "videos"], check=True)  # pytest cannot
    assert files == sorted([FILE, f"videos/{'f/' * 1200}end"])


def test_a_linked_folder_of_partial_files_is_neither_emptied_nor_written_to(cache: Path) -> None:
    outside = cache.parent / "outside"
    before = snapshot(outside)
    (cache / ".partial").symlink_to(outside)
    atomic.remove_partials(cache, of_all_machines=True)
    with pytest.raises(StorageError, match=r"\.partial': got a link, expected a folder of the cache"):
        atomic.publish_text(cache, FILE, "text")
    with pytest.raises(StorageError, match=r"\.partial': got a link"), atomic.partial_folder(cache):
        pass
    assert snapshot(outside) == before


def test_links_to_itself_and_to_nothing(cache: Path) -> None:
    (cache / "loop").symlink_to("loop")
    (cache / "nothing").symlink_to("no such file")
    for name in ("loop", "nothing", "loop/x", "nothing/x"):
        with pytest.raises(StorageError, match="got a link") as info:
            opener.open_file(cache, name, os.O_RDWR | os.O_CREAT)
        assert info.value.errno == errno.ELOOP
    assert not (cache / "no such file").exists()


def test_every_descriptor_is_closed(cache: Path) -> None:
    (cache / "link").symlink_to("videos")
    os.mkfifo(cache / "pipe")
    before = os.listdir("/proc/self/fd")
    for use in (READS | WRITES | IN_FOLDERS).values():
        for name in (FILE, "no/no/no.json", "link/ab/x.json", "videos/no/no.json", "pipe"):
            try:
                use(cache, name)
            except (ChordcacheError, OSError):
                pass
    assert len(os.listdir("/proc/self/fd")) == len(before)
