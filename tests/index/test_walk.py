"""Walking real folders with hostile names and links, and giving roots their labels."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chordcache.errors import NotFoundError, UsageError
from chordcache.index.file_names import VIDEO_SUFFIXES
from chordcache.index.walk import CorpusFile, iter_files, parse_roots

HOSTILE_NAMES = [
    b"new\nline.mp4",
    b"\xff\xfe.mp4",
    b"n" * 251 + b".mp4",
    b"-rf.mp4",
    b"=cmd.mp4",
    b"+1.mp4",
    b"@x.mp4",
    b"'tis.mp4",
    b'"quoted".mp4',
    b"tab\t.mp4",
    b"\tfirst.mp4",
    b"\x1b[31mred.mp4",
    b"\x7f.mp4",
    b"a,b;c.mp4",
    b" space .mp4",
    b"back\\slash.mp4",
    b"%03d.mp4",
    "caf\u00e9.mp4".encode(),
    "cafe\u0301.mp4".encode(),
    "\u202egpj.mp4".encode(),
    "\u2028.mp4".encode(),
    b"#.mp4",
    b"....mp4",
]

FTYP = b"\0\0\0\x18ftypisom\0\0\0\0"


def write(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def videos(root: Path, **options: bool) -> list[str]:
    return [file.path for file in iter_files(str(root), **options) if file.is_video]


# Order and names


def test_hostile_names_all_come_out_as_they_are(tmp_path: Path) -> None:
    for name in HOSTILE_NAMES:
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).touch()
    assert [os.fsencode(path) for path in videos(tmp_path)] == sorted(HOSTILE_NAMES)


def test_walk_is_in_order_of_the_whole_paths_bytes(tmp_path: Path) -> None:
    # "a" as a folder sorts as "a/": after "a.mp4" and "a-b/", before "a0.mp4" and "a_b.mp4".
    names = [
        "a.mp4",
        "a-b/x.mp4",
        "a/x.mp4",
        "a/x/y.mp4",
        "a/x.mp4.d/z.mp4",
        "a0.mp4",
        "a_b.mp4",
        "B/c.mp4",
        "\u00e9.mp4",
    ]
    for name in names:
        write(tmp_path / name)
    assert videos(tmp_path) == sorted(names, key=os.fsencode)


@contextmanager
def nested(folder: Path, name: str, depth: int) -> Iterator[None]:
    """Folders in each other, with a video in the last, deeper than pytest could remove."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("x.mp4", os.O_CREAT, dir_fd=fd))
    os.close(fd)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", folder / name], check=True)


def test_very_deep_folder_does_not_exhaust_the_stack(tmp_path: Path) -> None:
    with nested(tmp_path, "d", 1100):  # more than Python's recursion limit
        assert videos(tmp_path) == ["d/" * 1100 + "x.mp4"]


def test_path_longer_than_the_system_allows_is_a_visible_problem(tmp_path: Path) -> None:
    with nested(tmp_path, "d" * 250, 20):
        (file,) = iter_files(str(tmp_path))
    assert file.problem == "cannot list the folder: File name too long"


# Which files


@pytest.mark.parametrize("suffix", sorted(VIDEO_SUFFIXES))
def test_suffix_of_any_case_makes_a_candidate(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"x.{suffix.upper()}")
    assert videos(tmp_path) == [f"x.{suffix.upper()}"]


@pytest.mark.parametrize("name", "a.mp3 a.wav a.m4a a.aac a.flac a.ogg a.jpg a.txt a.m3u8 a.json a.csv a.h5".split())
def test_other_types_are_not_candidates_whatever_they_hold(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, FTYP)
    assert list(iter_files(str(tmp_path))) == [CorpusFile(name, is_video=False)]


@pytest.mark.parametrize(
    "content",
    [
        FTYP,
        b"\x1a\x45\xdf\xa3" + bytes(20),
        b"RIFF\x10\0\0\0AVI LIST",
        b"OggS" + bytes(20),
        b"FLV\x01" + bytes(20),
        b"\0\0\x01\xba" + bytes(20),
    ],
)
@pytest.mark.parametrize("name", ["no_suffix", "x.mp4.part", ".mp4", "x.", "x.unknown"])
def test_magic_bytes_make_a_candidate_of_an_unknown_suffix(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path / name, content)
    assert videos(tmp_path) == [name]


@pytest.mark.parametrize("content", [b"", b"f", b"RIFF\x10\0\0\0WAVEfmt ", b"hello, world", b"\0\0\0\x18ftyq"])
def test_other_bytes_do_not(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "no_suffix", content)
    assert videos(tmp_path) == []


def test_resource_forks_of_macos_are_not_videos(tmp_path: Path) -> None:
    write(tmp_path / "._a.mp4", b"\x00\x05\x16\x07" + bytes(20))
    write(tmp_path / "._b.mp4", FTYP)
    assert videos(tmp_path) == ["._b.mp4"]


def test_fifos_and_sockets_never_hang_and_are_candidates_only_by_suffix(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "fifo.mp4")
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/s")
        os.rename(f"{short}/s", tmp_path / "socket")
    assert list(iter_files(str(tmp_path))) == [
        CorpusFile("fifo", is_video=False),
        CorpusFile("fifo.mp4", is_video=True),
        CorpusFile("socket", is_video=False),
    ]


def test_folder_with_the_name_of_a_video_is_walked(tmp_path: Path) -> None:
    write(tmp_path / "x.mp4" / "y.mp4")
    assert videos(tmp_path) == ["x.mp4/y.mp4"]


# Permissions


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A folder, and within the block no right to read what is closed to its owner."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        other_user = 65534
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(folder, other_user, other_user)
            os.seteuid(other_user)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            for inner in folder.rglob("*"):
                inner.chmod(0o755)


def test_unreadable_folder_is_a_visible_problem_and_the_walk_goes_on() -> None:
    with unprivileged() as folder:
        write(folder / "a" / "x.mp4")
        write(folder / "b" / "x.mp4")
        write(folder / "c.mp4")
        (folder / "a").chmod(0)
        assert list(iter_files(str(folder))) == [
            CorpusFile("a", is_video=False, problem="cannot list the folder: Permission denied"),
            CorpusFile("b/x.mp4", is_video=True),
            CorpusFile("c.mp4", is_video=True),
        ]


def test_unreadable_root_is_a_visible_problem() -> None:
    with unprivileged() as folder:
        folder.chmod(0)
        (file,) = iter_files(str(folder))
        folder.chmod(0o755)
    assert file == CorpusFile(".", is_video=False, problem="cannot list the folder: Permission denied")


def test_unreadable_file_of_unknown_type_is_left_for_the_probe_to_refuse() -> None:
    with unprivileged() as folder:
        write(folder / "no_suffix", FTYP).chmod(0)
        assert videos(folder) == ["no_suffix"]


# Links


def test_file_links_are_followed_only_inside_the_root(tmp_path: Path) -> None:
    outside = write(tmp_path / "root2" / "x.mp4")  # "root2" begins as the root's name does
    root = tmp_path / "root"
    write(root / "a" / "real.mp4")
    (root / "inside.mp4").symlink_to("a/real.mp4")
    (root / "outside.mp4").symlink_to(outside)
    (root / "passwd.mp4").symlink_to("/etc/passwd")
    (root / "twice.mp4").symlink_to("outside.mp4")
    assert list(iter_files(str(root))) == [
        CorpusFile("a/real.mp4", is_video=True),
        CorpusFile("inside.mp4", is_video=True),
        *(CorpusFile(f"{n}.mp4", is_video=False, is_unfollowed_link=True) for n in ("outside", "passwd", "twice")),
    ]
    assert videos(root, follow_symlinks=True) == [
        "a/real.mp4",
        "inside.mp4",
        "outside.mp4",
        "passwd.mp4",
        "twice.mp4",
    ]


def test_root_that_is_itself_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real" / "x.mp4")
    (tmp_path / "real" / "y.mp4").symlink_to("x.mp4")
    (tmp_path / "root").symlink_to("real")
    assert videos(tmp_path / "root") == ["x.mp4", "y.mp4"]


@pytest.mark.parametrize("follow", [False, True])
def test_link_loops_end(tmp_path: Path, follow: bool) -> None:
    root = tmp_path / "root"
    write(root / "a" / "x.mp4")
    (root / "a" / "up").symlink_to("..")
    (root / "self").symlink_to(".")
    (root / "above").symlink_to("../..")
    (root / "knot").symlink_to("knot")
    (root / "knot.mp4").symlink_to("knot.mp4")
    (root / "dangling").symlink_to("nowhere")
    (root / "dangling.mp4").symlink_to("nowhere.mp4")
    (tmp_path / "back").symlink_to("root")
    files = list(iter_files(str(root), follow_symlinks=follow))
    inside = [file.path for file in files if file.is_video and not file.path.startswith("above/")]
    # A link with a video's name that leads nowhere is for the probe to refuse: a visible failure.
    assert inside == ["a/x.mp4", "dangling.mp4", "knot.mp4"]
    assert not [file for file in files if file.path.endswith(("up/a/x.mp4", "root/a/x.mp4", "self/a/x.mp4"))]


def test_folder_links_are_followed_on_request_and_each_folder_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(tmp_path / "other" / "x.mp4")
    write(root / "real" / "y.mp4")
    (root / "one").symlink_to("../other")
    (root / "two").symlink_to("../other")
    (root / "within").symlink_to("real")
    assert videos(root) == ["real/y.mp4"]
    assert list(iter_files(str(root), follow_symlinks=True)) == [
        CorpusFile("one/x.mp4", is_video=True),
        CorpusFile("real/y.mp4", is_video=True),
        CorpusFile("two", is_video=False, is_unfollowed_link=True),
        CorpusFile("within", is_video=False, is_unfollowed_link=True),
    ]


# Roots


def roots_of(*args: object) -> dict[str, str]:
    return {corpus.label: corpus.folder for corpus in parse_roots([str(arg) for arg in args])}


def test_label_is_the_folders_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "more").mkdir()
    monkeypatch.chdir(tmp_path)
    expected = {"videos": f"{tmp_path}/videos", "more": f"{tmp_path}/more"}
    assert roots_of("videos/", "./more/.") == expected
    monkeypatch.chdir("videos")
    assert roots_of(".") == {"videos": f"{tmp_path}/videos"}


def test_files_of_one_folder_are_one_corpus_and_candidates_whatever_their_names(tmp_path: Path) -> None:
    paths = [write(tmp_path / "videos" / name) for name in ("b.txt", "a.mp4", "b.txt")]
    write(tmp_path / "videos" / "c.mp4")
    (corpus,) = parse_roots([str(path) for path in paths])
    assert (corpus.label, corpus.folder) == ("videos", str(tmp_path / "videos"))
    assert list(corpus.files()) == [CorpusFile("a.mp4", is_video=True), CorpusFile("b.txt", is_video=True)]
    (corpus,) = parse_roots([str(paths[0]), str(tmp_path / "videos")])
    assert [file.path for file in corpus.files()] == ["a.mp4", "b.txt", "c.mp4"]


def test_named_roots(tmp_path: Path) -> None:
    for name in ("one/videos", "two/videos", "a=b"):
        (tmp_path / name).mkdir(parents=True)
    one, two = tmp_path / "one" / "videos", tmp_path / "two" / "videos"
    assert roots_of(one, f"other-2.x={two}") == {"videos": str(one), "other-2.x": str(two)}
    assert roots_of(tmp_path / "a=b") == {"a=b": str(tmp_path / "a=b")}
    with pytest.raises(UsageError, match=r"both called 'videos', expected different names. Give one another name"):
        roots_of(one, two)


@pytest.mark.parametrize("arg", ["none", "x=none", "a/b=none", "=none", ""])
def test_missing_root(arg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match="^no such folder or file '"):
        parse_roots([arg])


def test_root_without_a_name() -> None:
    with pytest.raises(UsageError, match=r"^roots: got '/', which has no name, expected NAME=/"):
        parse_roots(["/"])
    assert roots_of("all=/") == {"all": "/"}
