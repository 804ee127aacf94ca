"""Sources that are copied to memory: members of tar files and frames that are picture files."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg, frame_digests

import chordcache as cc
from chordcache.errors import MediaError
from chordcache.media import inner_source, tar_members
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.source_file import FolderLooks, check_unchanged, look, open_source

NUM_FRAMES = 12


def decoded(path: Path) -> tuple[list[str], list[float]]:
    """Return the MD5 digest of the samples of each frame of a source, and the times."""
    root = next(folder for folder in path.parents if folder.is_dir())
    with (
        open_source(os.fspath(path), os.fspath(root), settled=True) as source,
        open_media(source.place) as media,
    ):
        frames = [
            (hashlib.md5(frame.picture.to_ndarray()).hexdigest(), frame.pts_seconds) for frame in decode_frames(media)
        ]
    return [digest for digest, _ in frames], [seconds for _, seconds in frames]


def cause_of(path: Path) -> tuple[str, str]:
    """Return cause and message of the error that opening and decoding a source raises."""
    with pytest.raises(MediaError) as error:
        decoded(path)
    return error.value.cause, error.value.message


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def make_tar(path: Path, members: list[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            add(tar, name, data)
    return path


@pytest.fixture(scope="module")
def frames(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the frames of a real clip: img_1.jpg to img_12.jpg."""
    folder = tmp_path_factory.mktemp("frames") / "clip"
    folder.mkdir()
    source = clips / "animation" / "bigbuckbunny.mp4"
    ffmpeg("-i", source, "-frames:v", str(NUM_FRAMES), "-vf", "scale=320:180", "-q:v", "3", folder / "img_%d.jpg")
    return folder


@pytest.fixture
def copy(frames: Path, tmp_path: Path) -> Path:
    """Copy of the frames that may be changed."""
    return Path(shutil.copytree(frames, tmp_path / "clip"))


@pytest.fixture(scope="module")
def digests(frames: Path) -> list[str]:
    """MD5 digest of each frame, as ffmpeg decodes it."""
    return frame_digests(frames / "img_%d.jpg", "-framerate", "25")[0]


# Folders of frames


def test_frames_of_a_folder_are_those_of_its_pictures(frames: Path, digests: list[str]) -> None:
    assert len(digests) == NUM_FRAMES
    shown, times = decoded(frames)
    assert shown == digests
    assert times == pytest.approx([number / 25 for number in range(NUM_FRAMES)])


def test_png_frames_are_exact(tmp_path: Path, frames: Path) -> None:
    (tmp_path / "clip").mkdir()
    ffmpeg("-i", frames / "img_%d.jpg", "-pix_fmt", "rgb24", tmp_path / "clip" / "%04d.png")
    assert decoded(tmp_path / "clip")[0] == frame_digests(tmp_path / "clip" / "%04d.png")[0]


def test_other_files_of_a_folder_are_left_out(copy: Path, digests: list[str]) -> None:
    for name in ("flow_x_1.jpg", "flow_y_1.jpg", "cover.jpg", "facts.json"):
        (copy / name).write_bytes(b"other")
    (copy / "sub").mkdir()
    assert decoded(copy)[0] == digests


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "empty": (
        lambda folder: [path.unlink() for path in folder.iterdir()],
        "not-regular",
        "nor a folder of numbered pictures",
    ),
    "gap": (lambda folder: (folder / "img_7.jpg").unlink(), "short", "'img_6.jpg' and 'img_8.jpg' have a gap"),
    "twice": (lambda folder: (folder / "img_07.jpg").write_bytes(b""), "short", "have the same number"),
    "two sets": (lambda folder: (folder / "mask_1.jpg").write_bytes(b""), "not-regular", "'img_' (mjpeg) and 'mask_'"),
    "png too": (lambda folder: (folder / "img_13.png").write_bytes(b""), "not-regular", "pictures of two kinds"),
    "link": (lambda folder: swap(folder, lambda path: path.symlink_to("img_8.jpg")), "io", "symbolic links"),
    "pipe": (lambda folder: swap(folder, os.mkfifo), "not-regular", "'img_7.jpg' is not a regular file"),
    "first is text": (lambda folder: (folder / "img_1.jpg").write_bytes(b"text"), "decode", "cannot be read"),
    "one is empty": (lambda folder: (folder / "img_7.jpg").write_bytes(b""), "truncated", "picture 7 has no bytes"),
    "one is cut": (lambda folder: os.truncate(folder / "img_7.jpg", 2000), "decode", "after frame 6"),
}


def swap(folder: Path, make: Callable[[Path], object]) -> None:
    (folder / "img_7.jpg").unlink()
    make(folder / "img_7.jpg")


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_damage_to_a_folder_is_an_error(copy: Path, name: str) -> None:
    change, cause, message = BAD_FOLDERS[name]
    change(copy)
    assert cause_of(copy)[0] == cause
    assert message in cause_of(copy)[1]


@pytest.mark.parametrize("what", ["bytes", "name"])
def test_change_to_a_picture_is_a_change_of_the_source(copy: Path, what: str) -> None:
    before = look(os.fspath(copy))
    assert before == FolderLooks().look_or_none(os.fspath(copy), os.fspath(copy.parent))
    if what == "bytes":
        (copy / "img_7.jpg").write_bytes((copy / "img_7.jpg").read_bytes())
    else:
        for old, new in (("img_7", "x"), ("img_8", "img_7"), ("x", "img_8")):
            (copy / f"{old}.jpg").rename(copy / f"{new}.jpg")
    with pytest.raises(MediaError, match="changed while it was read"):
        check_unchanged(os.fspath(copy), before)


# Members of tar files


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_read_in_place(tmp_path: Path, clips: Path, frames: Path, digests: list[str], form: int) -> None:
    clip = (clips / "people" / "carphone_distorted.mp4").read_bytes()
    long = "/".join(["n" * 45] * 4) + ".mp4"
    pictures = [path.read_bytes() for path in sorted(frames.iterdir(), key=lambda path: int(path.stem[4:]))]
    tar = make_tar(
        tmp_path / "0.tar",
        [
            ("./a.mp4", clip),
            (long, clip),
            ("ü.mp4", clip),
            *((f"b.{number:03}.jpg", data) for number, data in enumerate(pictures)),
            *((f"c/{number}.jpg", data) for number, data in enumerate(pictures)),
        ],
        form,
    )
    for name in ("a.mp4", long, "ü.mp4"):
        with open_source(os.fspath(tar / name), os.fspath(tmp_path)) as source:
            assert Path(source.place).read_bytes() == clip
            assert source.state.identity.size == len(clip)
    for name in ("b", "c"):
        assert decoded(tar / name)[0] == digests
    looks = FolderLooks()
    assert looks.has_source(os.fspath(tar / "b"))
    assert not looks.has_source(os.fspath(tar / "d"))
    assert cause_of(tar / "d") == ("io", "the tar file has no member 'd'")


def test_a_folder_may_end_with_tar(tmp_path: Path, clips: Path) -> None:
    (tmp_path / "a.tar").mkdir()
    shutil.copy(clips / "people" / "carphone_distorted.mp4", tmp_path / "a.tar" / "b.mp4")
    tar = make_tar(tmp_path / "a.tar" / "c.tar", [("d.mp4", b"d")])
    assert look(os.fspath(tmp_path / "a.tar/b.mp4")).identity.size > 1
    assert look(os.fspath(tar / "d.mp4")).identity.size == 1


def test_link_to_a_tar_file_is_refused_as_one_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    tar = make_tar(tmp_path / "0.tar", [("a.mp4", b"a")])
    (tmp_path / "root" / "0.tar").symlink_to(tar)
    path = os.fspath(tmp_path / "root/0.tar/a.mp4")
    assert look(path).identity.size == 1
    with pytest.raises(MediaError) as error:
        look(path, os.fspath(tmp_path / "root"))
    assert error.value.cause == "refused-link"
    assert FolderLooks().look_or_none(path, os.fspath(tmp_path / "root")) is None


def sample(number: int) -> tuple[str, bytes]:
    return f"{number}.mp4", bytes([number]) * 1000


def test_a_member_that_is_there_twice_is_not_guessed(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "0.tar", [sample(1), sample(2), ("1.mp4", b"other"), sample(1)])
    assert cause_of(tar / "1.mp4") == ("io", "the tar file has two members '1.mp4'; give them other names")
    assert look(os.fspath(tar / "2.mp4")).identity.size == 1000


BAD_TARS: dict[str, Callable[[bytearray], object]] = {
    "flipped": lambda data: data.__setitem__(2 * 1536 + 20, 255),
    "cut in a member": lambda data: data.__delitem__(slice(3 * 1536 + 700, None)),
    "cut in a header": lambda data: data.__delitem__(slice(2 * 1536 + 100, None)),
    "cut between members": lambda data: data.__delitem__(slice(2 * 1536, None)),
    "larger than the file": lambda data: resize(data, b"77777777777\0"),
    "negative": lambda data: resize(data, b"\xff" * 11 + b"\0"),
    "8 EiB": lambda data: resize(data, b"\x80\0\0\0\x7f" + b"\xff" * 7),
}


def resize(data: bytearray, size: bytes) -> None:
    """Let the header of the third member state another size, with a checksum that is right."""
    header = slice(2 * 1536, 2 * 1536 + 512)
    block = bytearray(data[header])
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    data[header] = block


@pytest.mark.parametrize("name", BAD_TARS)
def test_members_after_damage_are_errors(tmp_path: Path, name: str) -> None:
    tar = make_tar(tmp_path / "0.tar", [sample(number) for number in range(5)])
    data = bytearray(tar.read_bytes())
    BAD_TARS[name](data)
    tar.write_bytes(data)
    assert look(os.fspath(tar / "1.mp4")).identity.size == 1000
    cause, message = cause_of(tar / "4.mp4")
    assert cause == "io"
    assert "has no member '4.mp4'; the tar file is damaged after" in message


def test_pictures_of_a_damaged_tar_file_are_not_a_video(tmp_path: Path, frames: Path) -> None:
    pictures = [(f"a.{number}.jpg", (frames / f"img_{number}.jpg").read_bytes()) for number in range(1, 5)]
    tar = make_tar(tmp_path / "0.tar", pictures)
    data = tar.read_bytes()
    tar.write_bytes(data[: data.index(b"a.3.jpg")])
    assert "is damaged after 2 members" in cause_of(tar / "a")[1]


def test_other_kinds_of_members_are_not_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        add(tar, "a.mp4", b"a")
        for name, kind in (("b.mp4", tarfile.SYMTYPE), ("c.mp4", tarfile.LNKTYPE), ("d.mp4", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    assert look(os.fspath(tmp_path / "0.tar/a.mp4")).identity.size == 1
    for name in ("b", "c", "d"):
        assert cause_of(tmp_path / f"0.tar/{name}.mp4")[0] == "io"


@pytest.mark.parametrize("limit", ["_MAX_MEMBERS", "_MAX_HEADER_BYTES"])
def test_members_and_their_headers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(tar_members, limit, 600 if "HEADER" in limit else 2)
    tar = make_tar(tmp_path / "0.tar", [sample(1), sample(2), ("n" * 700, b""), sample(3)], tarfile.PAX_FORMAT)
    assert look(os.fspath(tar / "2.mp4")).identity.size == 1000
    assert "is damaged after 2 members" in cause_of(tar / "3.mp4")[1]


def test_a_tar_file_that_is_written_again_is_another_source(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "0.tar", [sample(1)])
    before = look(os.fspath(tar / "1.mp4"))
    make_tar(tar, [sample(2), sample(1)])
    with pytest.raises(MediaError, match="changed while it was read"):
        check_unchanged(os.fspath(tar / "1.mp4"), before)
    with open_source(os.fspath(tar / "1.mp4")) as source:
        assert Path(source.place).read_bytes() == sample(1)[1]


def test_too_large_a_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_source, "MAX_BYTES", 999)
    tar = make_tar(tmp_path / "0.tar", [sample(1)])
    assert cause_of(tar / "1.mp4")[0] == "refused-size"
    assert look(os.fspath(tar / "1.mp4")).identity.size == 1000  # a look copies nothing


# Animated pictures


@pytest.fixture(scope="module")
def pixels(frames: Path) -> np.ndarray:
    """Pixels of the frames [shape=(T, H, W, 3), dtype=uint8]."""
    data = ffmpeg("-i", frames / "img_%d.jpg", "-f", "rawvideo", "-pix_fmt", "bgra", "-")
    return np.frombuffer(data, np.uint8).reshape(NUM_FRAMES, 180, 320, 4)[..., 2::-1]


def test_animated_pictures_are_exact(tmp_path: Path, frames: Path, pixels: np.ndarray) -> None:
    path = tmp_path / "a.apng"
    ffmpeg("-framerate", "8", "-i", frames / "img_%d.jpg", "-pix_fmt", "bgra", "-f", "apng", path)
    with open_source(os.fspath(path)) as source, open_media(source.place) as media:
        shown = [(frame.picture.to_ndarray(format="rgb24"), frame.pts_seconds) for frame in decode_frames(media)]
    assert [seconds for _, seconds in shown] == pytest.approx([number / 8 for number in range(NUM_FRAMES)])
    np.testing.assert_array_equal(np.stack([picture for picture, _ in shown]), pixels)


def test_animated_webp_is_refused_by_name(tmp_path: Path, frames: Path, run_cli) -> None:
    """Also without its suffix. A picture is not a video, and is left out of a scan."""
    (tmp_path / "clips").mkdir()
    ffmpeg("-i", frames / "img_%d.jpg", "-c:v", "libwebp_anim", tmp_path / "clips" / "a.webp")
    (tmp_path / "clips" / "a.webp").rename(tmp_path / "clips" / "a")
    ffmpeg("-i", frames / "img_1.jpg", tmp_path / "clips" / "b.webp")
    (tmp_path / "clips" / "cut.webp").write_bytes((tmp_path / "clips" / "a").read_bytes()[:20])
    run_cli("scan", "clips", cwd=tmp_path)
    (record,) = cc.read_index(tmp_path / "index.json")
    assert (record.path, record.error_cause) == ("a", "refused-format")
    assert "WebP is not read as a video" in record.error
