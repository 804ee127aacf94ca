"""The inputs of a build: indexes without videos, folders, and lists that name files in several ways."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from helpers import processes
from helpers.inline import HERE
from helpers.lists import indexed, place, write

import chordcache as cc

pytestmark = pytest.mark.usefixtures("inline")


def test_an_index_without_videos_is_an_error(tmp_path: Path, run_cli) -> None:
    write(tmp_path / "l.csv", "path\n")
    for options in ((), ("--dry-run",), ("--part", "1/2")):
        done = run_cli("build", tmp_path / "l.csv", "-o", tmp_path / "cache", *options)
        assert done.returncode == 10, done.stderr
        assert f"INDEX: got '{tmp_path / 'l.csv'}' without videos, expected at least one" in done.stderr
    assert run_cli("build", tmp_path / "l.csv", "--dry-run").returncode == 10


def test_a_folder_is_scanned_and_built(tmp_path: Path, clips: Path, run_cli) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    done = run_cli("build", videos, "-o", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert f"scanned 1 video of '{videos}'" in done.stderr
    cc.scan(videos, output=tmp_path / "i.json", jobs=HERE)
    assert cc.build(tmp_path / "i.json", tmp_path / "cache", jobs=HERE).num_up_to_date == 1  # it has the keys of a scan
    assert cc.build(str(videos), tmp_path / "cache", jobs=HERE).num_up_to_date == 1
    assert cc.dry_run(videos, tmp_path / "cache").num_up_to_date == 1
    parts = [tmp_path / "parts/1", tmp_path / "parts/2"]
    for number, part in enumerate(parts, 1):
        assert run_cli("build", videos, "-o", part, "--part", f"{number}/2", "-q").returncode == 0
    assert run_cli("merge", *parts, "-o", tmp_path / "joined", "--move").returncode == 0
    (tmp_path / "none").mkdir()
    with pytest.raises(cc.NotFoundError, match="expected at least one video"):
        cc.build(tmp_path / "none", tmp_path / "cache", jobs=HERE)


def test_a_list_of_absolute_and_relative_paths_is_built(tmp_path: Path, clips: Path, run_cli) -> None:
    one = place(clips, tmp_path / "one", "a b.mp4", "'=odd.mp4")
    other = place(clips, tmp_path / "other", "c,d.mp4")
    write(one / "l.csv", f'path\n"a b.mp4"\n"{other}/c,d.mp4"\n{one}/\'=odd.mp4\n')
    done = run_cli("build", one / "l.csv", "-o", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    label = f"{other}".strip("/").replace("/", "-")
    assert f"paths outside of its folder, which are in roots of their own: '{label}' is {other}" in done.stderr
    assert sorted(video.path for video in cc.open_cache(tmp_path / "cache")) == ["'=odd.mp4", "a b.mp4", "c,d.mp4"]
    listed = run_cli("index", one / "l.csv", "-o", tmp_path / "i.json")
    assert listed.returncode == 0, listed.stderr
    assert f"'{label}' is {other}" in listed.stderr
    assert cc.build(tmp_path / "i.json", tmp_path / "cache", jobs=HERE).num_up_to_date == 3


def test_two_lists_that_name_a_file_in_two_roots_name_one_file(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "sub/a.mp4", "b.mp4")
    write(videos / "sub" / "l.csv", "path\na.mp4\n")
    write(videos / "l.csv", "path\nb.mp4\nsub/a.mp4\n")
    cc.build(videos / "sub" / "l.csv", tmp_path / "cache", jobs=HERE)
    summary = cc.build(videos / "l.csv", tmp_path / "cache", jobs=HERE)
    assert (summary.num_done, summary.num_up_to_date) == (1, 1)
    assert sorted(video.path for video in cc.open_cache(tmp_path / "cache")) == ["a.mp4", "b.mp4"]


def test_an_index_that_names_a_file_in_two_roots_is_an_error(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "sub/a.mp4")
    index = tmp_path / "i.json"
    cc.scan(videos, output=index, level="headers", jobs=HERE)
    text = index.read_text().replace('"roots": {', f'"roots": {{"sub": "{videos / "sub"}", ')
    record = '{"root": "sub", "path": "a.mp4"}'
    index.write_text(text.replace('"records": [', f'"records": [\n{record},'))
    with pytest.raises(cc.UsageError, match=r"names 'sub/a.mp4' of root 'videos' twice, once in another root"):
        cc.build(index, tmp_path / "cache", jobs=HERE)


def test_rows_of_a_list_are_one_file_in_two_spellings(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "sub/a.mp4")
    (videos / "link").symlink_to("sub")
    write(videos / "l.csv", "path,caption\nsub/a.mp4,one\nlink/../sub/./a.mp4,two\nlink/a.mp4,three\n")
    records, _, summary = indexed(videos / "l.csv", "csv")
    assert [(record.path, record.captions) for record in records] == [("sub/a.mp4", ("one", "two", "three"))]
    assert summary.num_merged == 2
    write(videos / "l.csv", f"path,label\nsub/a.mp4,cat\nlink/a.mp4,dog\n{videos}/x.mp4,\n//{videos}/sub/a.mp4,cow\n")
    records, _, _ = indexed(videos / "l.csv", "csv")
    assert [(record.path, record.labels) for record in records] == [("sub/a.mp4", ("cat", "dog", "cow"))]


def built_from(index: Path, cache: Path) -> dict[str, object]:
    """Return the sidecars and the digests of the artefacts of a build, and the causes of its quarantine."""
    summary = cc.build(index, cache, features=["frames", "mel"], jobs=1)
    sidecars = {path.name: json.loads(path.read_text()) for path in (cache / "videos").rglob("*.json")}
    quarantine = {failure["path"]: failure["cause"] for failure in processes.quarantine(cache).values()}
    return {"counts": (summary.num_done, summary.num_failed), "quarantine": quarantine, **sidecars}


def test_a_csv_index_builds_the_same_cache_as_the_json_one(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a/x.mp4", "b/'=y.mp4", "b/z.mp4")
    write(videos / "b/broken.mp4", "not a video")
    write(tmp_path / "l.csv", "path,label,caption,score:float\na/x.mp4,'7,=a,0.5\nb/z.mp4,run,,\n")
    arguments = {"labels": str(tmp_path / "l.csv"), "level": "content", "jobs": 1}
    cc.scan(f"media={videos}", output=tmp_path / "i.json", **arguments)
    cc.scan(f"media={videos}", output=tmp_path / "i.csv", **arguments)
    expected = built_from(tmp_path / "i.json", tmp_path / "of_json")
    assert expected["counts"] == (3, 1)
    assert built_from(tmp_path / "i.csv", tmp_path / "of_csv") == expected
    again = cc.build(tmp_path / "i.csv", tmp_path / "of_json", jobs=1)
    assert (again.num_done, again.num_up_to_date) == (0, 3)


def test_a_csv_index_that_a_person_changed_is_built_as_it_stands(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "x.mp4", "y.mp4", "z.mp4")
    path = tmp_path / "i.csv"
    cc.scan(videos, output=path, jobs=1)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows[0] |= {"label": "cat", "num_frames": "1000000", "codec": "", "size": "5", "coded_width": "no number"}
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "duration_seconds"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows[:2])
    cc.build(path, tmp_path / "cache", jobs=1)
    cached = {video.path: video for video in cc.open_cache(tmp_path / "cache")}
    assert {name: video.label for name, video in cached.items()} == {"x.mp4": "cat", "y.mp4": None}
    assert len({video.num_frames for video in cached.values()}) == 1  # copies of one clip: facts are measured
