"""Meanings of columns, and lists in the forms of public datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.lists import indexed, place, write, write_json

import chordcache as cc
from chordcache.errors import UsageError
from chordcache.records import Segment, VideoRecord

FRAMES = Segment(start_frame=3, end_frame=9)


@pytest.mark.parametrize(
    ("header", "row", "segment", "taken"),
    [
        ("stop_frame,stop_time,start_frame,start_time", "9,2,3,1", FRAMES, "start_frame..stop_frame"),
        ("Start Time,End Time", "0:01,0:02.5", Segment(1.0, 2.5), "Start Time..End Time"),
        ("start_seconds,duration", "1,0.5", Segment(1.0, 1.5), "start_seconds+duration"),
        ("begin,stop", "1,", Segment(1.0), "begin..stop"),
    ],
)  # fmt: skip
def test_near_names_of_bounds_are_taken(
    tmp_path: Path, clips: Path, header: str, row: str, segment: Segment, taken: str
) -> None:
    videos = place(clips, tmp_path, "x.mp4")
    source = write(videos / "l.csv", f"Video,LABEL,{header}\nx.mp4,run,{row}\n")
    (record,), _, summary = indexed(source, "csv")
    assert (record.segment, record.label) == (segment, "run")
    assert summary.taken.partition(";")[0] == f"path=Video, label=LABEL, segment={taken}"
    index = cc.read_index(source)
    assert [(record.segment, record.label) for record in index] == [(segment, "run")]
    assert index.taken == summary.taken


@pytest.mark.parametrize("header", ["start_seconds", "stop", "start_frame", "start,end_frame", "time_end"])
def test_half_a_pair_of_bounds_is_an_error(tmp_path: Path, clips: Path, header: str) -> None:
    source = write(place(clips, tmp_path, "x.mp4") / "l.csv", f"path,{header}\nx.mp4,1\n")
    for read in (cc.read_index, lambda path: indexed(path, "csv")):
        with pytest.raises(
            UsageError, match=rf"got the columns 'path', '{header.split(',')[0]}'.* expected a start and"
        ):
            read(source)
    (record,), _, _ = indexed(source, "csv", options={"ignore": header.split(",")})
    assert record == VideoRecord("videos", "x.mp4")


def test_named_columns_win_over_usual_ones(tmp_path: Path, clips: Path) -> None:
    source = write(place(clips, tmp_path, "x.mp4") / "l.csv", "path,start_frame,end_frame,a,b\nx.mp4,1,2,3,4\n")
    (record,), _, _ = indexed(source, "csv", options={"columns": {"start": "a", "end": "b"}})
    assert (record.segment, record.extra) == (Segment(3.0, 4.0), {"start_frame": "1", "end_frame": "2"})


def test_space_around_cells_is_left_out(tmp_path: Path, clips: Path) -> None:
    source = write(place(clips, tmp_path, "x.mp4") / "l.csv", 'path, label, caption, k\n x.mp4 , jump , "a, b", v \n')
    expected = [VideoRecord("videos", "x.mp4", label="jump", caption="a, b", extra={"k": "v"})]
    assert indexed(source, "csv")[0] == list(cc.read_index(source)) == expected


def test_msr_vtt(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "v7.mp4", "v8.mp4")
    source = write(tmp_path / "l.csv", "id,n,text\nv7,0,a dog\nv8,1,a cow\nv7,2,a pup\nv7,3,a dog\n")
    with pytest.raises(UsageError, match=r"line 4: got 'v7.mp4' twice.*line 2 has it too\. They differ in 'n'\."):
        indexed(source, "csv", videos=[videos], options={"video_template": "{id}.mp4"})
    options = {"video_template": "{id}.mp4", "ignore": ["n", "start time", "end time"]}
    rows = [
        {"id": name, "split": split, "start time": 1.5, "end time": 2} for name, split in (("v7", "a"), ("v8", "b"))
    ]
    texts = [{"id": name, "n": n, "text": f"{name} {n % 2}"} for n, name in enumerate(("v8", "v7", "v7", "v8", "v7"))]
    source = write_json(tmp_path / "l.json", {"info": {"year": 1}, "videos": rows, "sentences": texts})
    records, _, summary = indexed(source, "csv", videos=[videos], options=options, where={"split": "a"})
    assert records == [VideoRecord("videos", "v7.mp4", captions=("v7 1", "v7 0"), extra={"id": "v7", "split": "a"})]
    assert summary.num_not_chosen >= 1


PARTS = [Segment(0.5, 1.0), Segment(2.0, 3.5)]


@pytest.mark.parametrize(
    ("name", "text", "segment", "caption"),
    [
        ("l.json", json.dumps({"x": {"at": [[0.5, 1], [2, 3.5]], "say": ["p", "q"]}}), "at", "say"),
        ("l.csv", "key,at,say\nx,\"[['0:00:00.5', '0:01'], ['0:02', '0:03.5']]\",\"['p', 'q']\"\n", "at", "say"),
        ("l.csv", "key,at,say\nx,p 0.5 1;q 2 3.5,\n", "at", "say"),
    ],
)
def test_cells_of_several_segments(
    tmp_path: Path, clips: Path, name: str, text: str, segment: str, caption: str
) -> None:
    source = write(place(clips, tmp_path, "x.mp4") / name, text)
    options = {"video_template": "{key}.mp4", "columns": {"segment": segment, "caption": caption}}
    records, _, _ = indexed(source, "csv", options=options)
    assert [record.segment for record in records] == PARTS
    assert [record.caption or record.label for record in records] == ["p", "q"]
    write(source, text.replace("'q'", "'q', 'r'").replace('"q"', '"q", "r"').replace("2 3.5", "3.5"))
    with pytest.raises(UsageError, match="expected one for each|expected seconds"):
        indexed(source, "csv", options=options)


def test_audioset_and_vggsound(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4", "a_000030.mp4")
    source = write(
        tmp_path / "l.csv", '# made, 2017\n# ID, start_seconds, end_seconds, all_labels\na, 0.0, 1.5, "/m/1,/m/2"\n'
    )
    options = {"video_template": "{ID}.mp4", "columns": {"label": "all_labels"}}
    records, _, _ = indexed(source, "csv", videos=[videos], options=options)
    assert records == [
        VideoRecord("videos", "a.mp4", segment=Segment(0.0, 1.5), labels=("/m/1", "/m/2"), extra={"ID": "a"})
    ]
    source = write(tmp_path / "l.csv", 'a,30,"eating, fast",train\n')
    options = {"video_template": "{id}_{start:06d}.mp4", "header": ["id", "start", "label", "split"]}
    records, _, _ = indexed(source, "csv", videos=[videos], options=options)
    extra = {"id": "a", "start": "30", "split": "train"}
    assert records == [VideoRecord("videos", "a_000030.mp4", label="eating, fast", extra=extra)]


def test_a_cell_with_a_list_is_a_list_or_an_error(tmp_path: Path, clips: Path) -> None:
    source = write(
        place(clips, tmp_path, "x.mp4") / "l.csv", "path,label,caption,tags\nx.mp4,\"['a', 'b']\",[Music],[1]\n"
    )
    (record,), _, summary = indexed(source, "csv")
    assert (record.labels, record.caption) == (("a", "b"), "[Music]")
    assert summary.notes == ("the cells of tags are lists, which were kept as text",)
    assert next(iter(cc.read_index(source))).labels == ("a", "b")
    write(source, "path,label\nx.mp4,['a' 'b']\n")
    for read in (cc.read_index, lambda path: indexed(path, "csv")):
        with pytest.raises(UsageError, match=r"line 2: column 'label': got .*, expected a list in JSON or of Python"):
            read(source)


def test_commands_print_the_columns_and_info_counts(tmp_path: Path, clips: Path, run_cli) -> None:
    videos = place(clips, tmp_path, "x.mp4")
    write(videos / "l.csv", "path,Label,fps,start,end\nx.mp4,a,5,0,1\nx.mp4,b,5,1,2\n")
    write(videos / "labels.csv", "path,Label,fps\nx.mp4,a,5\n")
    line = "path=path, label=Label{}; extra: fps\n"
    assert line.format(", segment=start..end") in run_cli("index", "l.csv", cwd=videos).stderr
    shown = run_cli("info", "index.json", cwd=videos).stdout.split("\n")
    assert [row.split()[-1] for row in shown if row.startswith(("segments", "labels   "))][:2] == ["2", "2"]
    assert line.format("") in run_cli("scan", "x.mp4", "--labels", "labels.csv", "-o", "s.json", cwd=videos).stderr
