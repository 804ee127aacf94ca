"""Lists of what lies in tar files and in folders of frames: the same videos as from files."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import processes
from helpers.ffmpeg import ffmpeg
from helpers.inline import HERE
from helpers.lists import indexed, write

import chordcache as cc
from chordcache.errors import NotFoundError, UsageError
from chordcache.records import VideoRecord

NAMES = {"a": "animation/bigbuckbunny.mp4", "b.cam0": "street/bikes.mp4", "c": "people/carphone_distorted.mp4"}
TEXTS: dict[str, Any] = {
    "a.json": {"caption": "a rabbit", "score": 0.5, "labels": ["animal", "cartoon"]},
    "b.txt": "two bikes\n",
    "b.cls": "7",
    "c.json": {"text": ["a man", "a car"], "score": 1},
}


@pytest.fixture
def corpus(tmp_path: Path, clips: Path) -> Path:
    """The same videos and texts as files, and in two tar files."""
    for name, clip in NAMES.items():
        target = tmp_path / "files" / f"{name}.mp4"
        target.parent.mkdir(exist_ok=True)
        ffmpeg("-i", clips / clip, "-t", "0.5", "-c", "copy", target)
    for name, value in TEXTS.items():
        write(tmp_path / "files" / name, value if isinstance(value, str) else json.dumps(value))
    (tmp_path / "tars").mkdir()
    for shard, keys in (("0", "ab"), ("1", "c")):
        with tarfile.open(tmp_path / "tars" / f"{shard}.tar", "w") as tar:
            for path in sorted((tmp_path / "files").iterdir()):
                if path.name[0] in keys:
                    tar.add(path, f"./{path.name}")
    return tmp_path


def test_samples_have_their_texts(corpus: Path) -> None:
    records, columns, summary = indexed(corpus / "tars", "webdataset")
    assert records == [
        VideoRecord("tars", "0.tar/a.mp4", labels=("animal", "cartoon"), caption="a rabbit", extra={"score": 0.5}),
        VideoRecord("tars", "0.tar/b.cam0.mp4", label="7", caption="two bikes"),
        VideoRecord("tars", "1.tar/c.mp4", captions=("a man", "a car"), extra={"score": 1}),
    ]
    assert columns == {"score": "float"}
    assert summary.num_missing_files == 0
    one, _, _ = indexed(corpus / "tars" / "1.tar", "webdataset")
    assert one == [records[2]]


def test_cache_of_tar_files_is_that_of_the_files(corpus: Path) -> None:
    indexed(corpus / "tars", "webdataset")
    cc.scan([corpus / "files"], output=corpus / "files.json", jobs=HERE)
    for index, cache in ((corpus / "index.json", "c"), (corpus / "files.json", "d")):
        assert cc.build(index, corpus / cache, jobs=HERE).num_done == 3
    in_tars, in_files = (
        {Path(path).name: video[:2] for path, video in processes.contents(corpus / cache).items()} for cache in "cd"
    )
    assert in_tars == in_files
    again = cc.build(corpus / "index.json", corpus / "c", jobs=HERE)
    assert (again.num_done, again.num_up_to_date) == (0, 3)


def test_a_list_may_name_members(corpus: Path) -> None:
    write(corpus / "list.csv", "path,label\ntars/0.tar/a.mp4,x\ntars/1.tar/gone.mp4,y\n")
    records, _, summary = indexed(corpus / "list.csv", "csv")
    assert records == [VideoRecord(corpus.name, "tars/0.tar/a.mp4", label="x")]
    assert summary.missing_files == ("tars/1.tar/gone.mp4",)


def test_frames_in_tar_files_and_folders_are_the_same_videos(corpus: Path) -> None:
    for name in "ab":
        folder = corpus / "frames" / "class" / name
        folder.mkdir(parents=True)
        ffmpeg("-i", corpus / "files" / f"{'a' if name == 'a' else 'b.cam0'}.mp4", folder / "img_%05d.jpg")
    write(corpus / "frames" / "class" / "a.txt", "a rabbit")
    with tarfile.open(corpus / "tars" / "2.tar", "w") as tar:
        for path in sorted((corpus / "frames/class/a").iterdir()):
            tar.add(path, f"x/a.{path.name[4:]}")
        for path in sorted((corpus / "frames/class/b").iterdir()):
            tar.add(path, f"x/b/{path.name}")
        # pictures with texts of their own are not frames
        tar.add(corpus / "frames/class/a/img_00001.jpg", "images/1.jpg")
        tar.add(corpus / "files/b.txt", "images/1.txt")
    records, _, _ = indexed(corpus / "frames", "frames")
    assert records == [VideoRecord("frames", "class/a", caption="a rabbit"), VideoRecord("frames", "class/b")]
    cc.build(corpus / "index.json", corpus / "c", jobs=HERE)
    records, _, _ = indexed(corpus / "tars" / "2.tar", "webdataset")
    assert [record.path for record in records] == ["2.tar/x/a", "2.tar/x/b"]
    cc.build(corpus / "index.json", corpus / "d", jobs=HERE)
    of_list = write(corpus / "frames" / "train.txt", "class/a 12 3\nclass/b 12 0 1\nclass/z 9 1\n")
    records, _, summary = indexed(of_list, "mmaction")
    assert records[0] == VideoRecord("frames", "class/a", label="3", extra={"num_frames": 12})
    assert (len(records), summary.missing_files) == (2, ("class/z",))
    cc.build(corpus / "frames/index.json", corpus / "e", jobs=HERE)
    caches = [sorted(video[:2] for video in processes.contents(corpus / cache).values()) for cache in "cde"]
    assert caches == [caches[0]] * 3
    num_pictures = [len(list((corpus / "frames/class" / name).iterdir())) for name in "ab"]
    assert [num_frames for num_frames, _ in caches[0]] == sorted(num_pictures)


BAD: dict[str, tuple[Callable[[tarfile.TarFile, Path], object], str]] = {
    "twice": (lambda tar, clip: tar.add(clip, "a.mp4"), "got two members 'a.mp4', expected one of each name"),
    "leaves": (lambda tar, clip: tar.add(clip, "../b.mp4"), "got the member '../b.mp4', expected a name in the file"),
    "absolute": (lambda tar, clip: add_absolute(tar), "got the member '/b.mp4', expected a name in the file"),
    "link": (
        lambda tar, clip: add_link(tar, "b.mp4", "c.mp4"),
        "got a link 'b.mp4' to no file in it, expected one",
    ),
    "bad text": (lambda tar, clip: tar.add(__file__, "a.json"), "a.json': expected a JSON object"),
}


def add_absolute(tar: tarfile.TarFile) -> None:
    member = tarfile.TarInfo("/b.mp4")
    tar.addfile(member)


@pytest.mark.parametrize("name", BAD)
def test_bad_tar_files_are_named(tmp_path: Path, clips: Path, name: str) -> None:
    clip = clips / "people" / "carphone_distorted.mp4"
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        tar.add(clip, "a.mp4")
        BAD[name][0](tar, clip)
    with pytest.raises(UsageError) as error:
        indexed(tmp_path / "0.tar", "webdataset")
    assert str(tmp_path / "0.tar") in str(error.value)
    assert BAD[name][1] in str(error.value)


@pytest.mark.parametrize("spell", [str.upper, str.title, str.swapcase])
def test_suffixes_of_texts_in_any_case(corpus: Path, spell: Callable[[str], str]) -> None:
    expected = [indexed(corpus / "tars", "webdataset")[0], indexed(corpus / "files", "pairs")[0]]
    for path in [*(corpus / "files").iterdir()]:
        path.rename(path.with_name(path.stem + spell(path.suffix)))
    for shard, keys in (("0", "ab"), ("1", "c")):
        with tarfile.open(corpus / "tars" / f"{shard}.tar", "w") as tar:
            for path in sorted((corpus / "files").iterdir()):
                if path.name[0] in keys:
                    tar.add(path, path.name)
    actual = [indexed(corpus / "tars", "webdataset")[0], indexed(corpus / "files", "pairs")[0]]
    for before, after in zip(expected, actual, strict=True):
        assert after == [record.replace(path=r[:-3] + spell(r[-3:])) for record in before for r in [record.path]]


@pytest.mark.parametrize("form", ["pairs", "webdataset"])
def test_a_text_in_two_spellings_is_not_guessed(corpus: Path, form: str) -> None:
    write(corpus / "files" / "b.Txt", "three bikes")
    with tarfile.open(corpus / "b.tar", "w") as tar:
        tar.add(corpus / "files", ".")
    with pytest.raises(UsageError, match=r"b\.(T|t)xt'?:? .*in letters of other cases"):
        indexed(corpus / ("files" if form == "pairs" else "b.tar"), form)


@pytest.mark.parametrize("form", ["gz", "bz2", "xz"])
def test_compressed_tar_files_are_named(corpus: Path, form: str) -> None:
    (corpus / "more").mkdir()
    for path in (corpus / "more" / f"2.tar.{form}", corpus / "more" / "misnamed.tar"):
        with tarfile.open(path, f"w:{form}") as tar:
            tar.add(corpus / "files" / "c.mp4", "c.mp4")
        match = rf"{re.escape(path.name)}': the tar file is compressed; unpack it\.$"
        for source in (path, path.parent):  # none is left out in silence
            with pytest.raises(UsageError, match=match):
                indexed(source, "webdataset")
        path.unlink()
    with tarfile.open(corpus / "tars" / f"0.tar.{form}", f"w:{form}") as tar:  # the file that 0.tar came from
        tar.add(corpus / "files" / "a.mp4", "a.mp4")
    assert len(indexed(corpus / "tars", "webdataset")[0]) == 3


def add_link(tar: tarfile.TarFile, name: str, target: str, kind: bytes = tarfile.LNKTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    tar.addfile(member)


def test_links_in_tar_files_are_followed(corpus: Path) -> None:
    with tarfile.open(corpus / "tars" / "0.tar", "w") as tar:
        add_link(tar, "z/early.mp4", "../x/a.mp4", tarfile.SYMTYPE)
        tar.add(corpus / "files" / "a.mp4", "./x/a.mp4")
        tar.add(corpus / "files" / "b.txt", "x/a.txt")
        add_link(tar, "x/hard.mp4", "./x/a.mp4")
        add_link(tar, "x/hard.txt", "x/a.txt")
        tar.add(corpus / "files" / "b.txt", "x/._a.mp4")  # AppleDouble, whatever is in it
        tar.add(corpus / "files" / "b.txt", "._x")
    records, _, _ = indexed(corpus / "tars" / "0.tar", "webdataset")
    captions = {record.path: record.caption for record in records}
    assert captions == {"0.tar/x/a.mp4": "two bikes", "0.tar/x/hard.mp4": "two bikes", "0.tar/z/early.mp4": None}
    summary = cc.build(corpus / "tars" / "index.json", corpus / "c", jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (3, 0)
    assert len({video[:2] for video in processes.contents(corpus / "c").values()}) == 1


def test_damaged_and_missing_tar_files_are_named(corpus: Path) -> None:
    with pytest.raises(NotFoundError, match="no tar file in"):
        indexed(corpus / "files", "webdataset")
    with pytest.raises(NotFoundError, match="no such tar file or folder"):
        indexed(corpus / "none", "webdataset")
    os.truncate(corpus / "tars" / "1.tar", 1000)
    with pytest.raises(UsageError, match=r"1\.tar': the tar file is damaged after 0 members: .*\. Fetch it again\."):
        indexed(corpus / "tars", "webdataset")


def test_lists_in_another_format_name_the_right_one(corpus: Path) -> None:
    with pytest.raises(UsageError, match=r"^format: got 'csv' for the tar file '.*0\.tar', expected webdataset$"):
        indexed(corpus / "tars" / "0.tar", "csv")
    with pytest.raises(UsageError, match=r"^format: got 'csv' for the folder '.*tars', expected lerobot, pairs, "):
        indexed(corpus / "tars", "csv")


def test_tar_file_that_is_damaged_later_is_quarantined(corpus: Path) -> None:
    indexed(corpus / "tars", "webdataset")
    shutil.copy(corpus / "tars/0.tar", corpus / "whole.tar")
    os.truncate(corpus / "tars/0.tar", 2000)
    summary = cc.build(corpus / "index.json", corpus / "c", jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (1, 2)
    shutil.copy(corpus / "whole.tar", corpus / "tars/0.tar")
    assert cc.build(corpus / "index.json", corpus / "c", jobs=HERE).num_done == 2


def test_jpeg_frames_of_the_right_size_are_taken_as_they_are(tmp_path: Path, clips: Path) -> None:
    options = {"same": "", "larger": "", "444": "yuvj444p"}
    for name, pixels in options.items():
        folder = tmp_path / "frames" / name
        folder.mkdir(parents=True)
        form = ["-pix_fmt", pixels] if pixels else []
        size = f"scale=320:{300 if name == 'larger' else 256},setsar=1"
        clip = clips / "people" / "carphone_distorted.mp4"
        ffmpeg("-i", clip, "-frames:v", "5", "-vf", size, *form, "-q:v", "4", folder / "%d.jpg")
    indexed(tmp_path / "frames", "frames")
    cc.build(tmp_path / "index.json", tmp_path / "c", jobs=HERE)
    with cc.open_cache(tmp_path / "c") as cache:
        for video in cache:
            files = [(tmp_path / "frames" / video.path / f"{number}.jpg").read_bytes() for number in range(1, 6)]
            records = [bytes(record) for record in cache.read_encoded(video, range(5))]
            assert (records == files) == (video.path == "same")
            assert cache.read(video, indices=range(5)).shape[0] == 5
    assert not cc.verify(tmp_path / "c", level="deep", source=True, jobs=HERE).damage
