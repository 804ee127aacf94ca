"""Index files of three formats: records come back as written, and every change of a file is detected."""

from __future__ import annotations

import csv
import errno
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordcache.choices import SCAN_LEVELS
from chordcache.errors import ChordcacheError, DamageError, NotFoundError, StorageError, UsageError
from chordcache.index.csv_index import COLUMNS
from chordcache.index.index_files import IndexWriter, read_index
from chordcache.index.scan import scan
from chordcache.json_records import Record, to_json
from chordcache.records import (
    AudioFacts,
    ContentFacts,
    HeaderFacts,
    Identity,
    PacketFacts,
    Segment,
    VideoRecord,
)
from chordcache.storage import sealed_json

FORMATS = [".json", ".jsonl", ".csv"]
ROOTS = {"v": "/data/v", os.fsdecode(b"\xff=\n"): os.fsdecode(b"/data/\xff\n")}

HEADER = HeaderFacts(
    container="mov,mp4",
    codec="h264",
    profile=None,
    pixel_format="yuv420p",
    bit_depth=8,
    color_space=None,
    color_primaries=None,
    color_transfer=None,
    color_range="limited",
    coded_width=1920,
    coded_height=1080,
    display_width=1080,
    display_height=1920,
    rotation=90,
    mirrored=False,
    sample_aspect_ratio="1:1",
    average_fps=30000 / 1001,
    nominal_fps=None,
    header_duration_seconds=0.1 + 0.2,
    header_num_frames=9,
)
PACKETS = PacketFacts(9, 9, -0.04, 0.3, True, "pts", (0, 5), (0.0, 1 / 3))
CONTENT = ContentFacts((0.5,), (3, 1), (), (0.25,))
RECORDS = [
    VideoRecord("v", "a.mp4", Identity(1, 2), "packets", header=HEADER, packets=PACKETS, label="cat", caption="a cat"),
    VideoRecord("v", "b.mp4", identity=Identity(1, 2), level="packets", error="no moov", error_cause="decode"),
    VideoRecord(
        "v",
        "c.mp4",
        identity=Identity(2**62, -1),
        level="content",
        header=HEADER,
        packets=PACKETS,
        content=CONTENT,
        audio=AudioFacts("aac", 48000, 2, None, -0.02),
        extra={"size": "big", "extra.x": "", "": "no name", "=f": "=1+1", "lang": "\u00e9"},
    ),
]


BOX = {"time_seconds": 0.5, "x1": 1.0, "y1": 2.0, "x2": 3.5, "y2": 4, "track_id": 7, "label": "cat"}
DESCRIBED = [
    VideoRecord("v", "a.mp4", segment=Segment(end_frame=9), labels=("cat", "dog"), captions=("a cat", "=cats")),
    VideoRecord("v", "a.mp4", segment=Segment(start_seconds=0.5), extra={"score": 0.5, "count": 3, "seen": True}),
    VideoRecord("v", "a.mp4", extra={"path": [1, 2], "boxes": [BOX], "a:int": "text", "lang": "\u00e9"}),
]
"""Records with what a list may say about an item"""


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_descriptions_and_typed_columns_come_back(tmp_path: Path, suffix: str) -> None:
    columns = {"score": "float", "count": "int", "seen": "bool", "path": "list[int]", "boxes": "boxes"}
    with IndexWriter(tmp_path / f"a.{suffix}", roots=ROOTS, level=None, columns=columns) as writer:
        for record in DESCRIBED:
            writer.write(record)
    index = read_index(tmp_path / f"a.{suffix}")
    assert list(index) == DESCRIBED
    assert index.columns == columns
    index.write(tmp_path / "b.json")
    assert list(read_index(tmp_path / "b.json")) == DESCRIBED


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_columns_must_have_their_types(tmp_path: Path, suffix: str) -> None:
    for columns, value, message in [
        ({}, 0.5, "column 'x': got 0.5, expected str. Declare its type under 'columns' of the header"),
        ({"x": "int"}, 0.5, "column 'x': got 0.5, expected int"),
        ({"x": "float"}, "0.5", "expected float"),
        ({"x": "bool"}, 1, "expected bool"),
        ({"x": "list[str]"}, [1], "expected list"),
        ({"x": "boxes"}, [{**BOX, "x1": None}], "expected boxes"),
        ({"x": "boxes"}, [{**BOX, "z": 1}], "expected boxes"),
    ]:
        with IndexWriter(tmp_path / f"a.{suffix}", roots=ROOTS, level=None, columns=columns) as writer:
            writer.write(VideoRecord("v", "a.mp4", extra={"x": value}))
        with pytest.raises(DamageError) as error:
            list(read_index(tmp_path / f"a.{suffix}"))
        assert message in str(error.value)
    with IndexWriter(tmp_path / f"a.{suffix}", roots=ROOTS, level=None, columns={"x": "number"}):
        pass
    with pytest.raises(ChordcacheError, match="got the type 'number', expected one of str, int"):
        read_index(tmp_path / f"a.{suffix}")


def write_index(path: Path, records: Any = RECORDS, roots: Any = ROOTS, level: str | None = "packets") -> Path:
    with IndexWriter(path, roots=roots, level=level) as writer:
        for record in records:
            writer.write(record)
    return path


def read_all(path: Path) -> list[VideoRecord]:
    return list(read_index(path))


def without_facts(records: Iterable[VideoRecord]) -> list[VideoRecord]:
    """Return what a CSV index says to a reader."""
    return [VideoRecord(record.root, record.path).described(record.description()) for record in records]


# Round trip

names = st.binary(min_size=1, max_size=12).filter(lambda b: b"\0" not in b and b"/" not in b and b not in (b".", b".."))
texts = st.one_of(
    st.text(max_size=12),
    names.map(os.fsdecode),
    st.sampled_from(["", "=1+1", "'x", "''", '"', '""', "-", "\t=", "\r", "\x1b[0m", "a\r\nb", "\ufeff", "null", " "]),
)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=9),
    tuple[int, ...]: st.lists(st.integers(), max_size=3).map(tuple),
    tuple[float, ...]: st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    tuple[tuple[float, float], ...]: st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2)).map(
        tuple
    ),
}
BY_TYPE.update({kind | None: st.none() | strategy for kind, strategy in list(BY_TYPE.items())})


def facts(cls: type[Record], **given_fields: Any) -> st.SearchStrategy[Any]:
    free = {field.name: field.type for field in msgspec.structs.fields(cls) if field.name not in given_fields}
    return st.builds(cls, **{name: BY_TYPE[kind] for name, kind in free.items()}, **given_fields)


def hexadecimal(num_digits: int) -> st.SearchStrategy[str]:
    return st.integers(0, 16**num_digits - 1).map(f"{{:0{num_digits}x}}".format)


keyframes = st.integers(0, 3)
packet_facts = keyframes.flatmap(
    lambda n: facts(
        PacketFacts,
        keyframe_numbers=st.tuples(*[st.integers()] * n),
        keyframe_pts_seconds=st.tuples(*[BY_TYPE[float]] * n),
    )
)
video_records = st.builds(
    VideoRecord,
    root=st.sampled_from(list(ROOTS)),
    path=st.lists(names, min_size=1, max_size=3).map(lambda parts: os.fsdecode(b"/".join(parts))),
    label=st.none() | texts,
    caption=st.none() | texts,
    identity=st.none() | facts(Identity),
    level=st.sampled_from([None, *SCAN_LEVELS]),
    error=st.none() | texts,
    header=st.none() | facts(HeaderFacts),
    packets=st.none() | packet_facts,
    content=st.none() | facts(ContentFacts, content_id=hexadecimal(32), second_hashes=hexadecimal(16)),
    audio=st.none() | facts(AudioFacts),
    extra=st.dictionaries(texts | st.sampled_from([column.name for column in COLUMNS]), texts, max_size=3),
)


@settings(max_examples=25)
@given(st.lists(video_records, max_size=3, unique_by=lambda record: (record.root, record.path)))
def test_every_record_comes_back_equal(records: list[VideoRecord]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "first.jsonl")
        write_index(path, records)
        for suffix in (".json", ".jsonl", ".csv", ".csv", ".json"):
            index = read_index(path)
            assert list(index) == records
            assert len(index) == len(records)
            path = Path(folder, f"index{suffix}")
            index.write(path)
            records = without_facts(records) if suffix == ".csv" else records
        assert read_all(path) == records


@pytest.mark.parametrize("suffix", FORMATS)
def test_roots_level_and_length(tmp_path: Path, suffix: str) -> None:
    index = read_index(write_index(tmp_path / f"index{suffix}"))
    is_csv = suffix == ".csv"
    assert index.level == (None if is_csv else "packets")
    assert not index.is_hand_written
    assert index.roots == ({"v": "/data/v"} if is_csv else ROOTS)
    assert len(index) == 3
    assert list(index) == list(index) == (without_facts(RECORDS) if is_csv else RECORDS)


@pytest.mark.parametrize("suffix", FORMATS)
def test_empty_index(tmp_path: Path, suffix: str) -> None:
    index = read_index(write_index(tmp_path / f"index{suffix}", []))
    assert (list(index), len(index)) == ([], 0)


def test_json_is_a_plain_document_and_jsonl_has_sealed_lines(tmp_path: Path) -> None:
    document = json.loads(write_index(tmp_path / "index.json").read_text())
    lines = [json.loads(line) for line in write_index(tmp_path / "index.jsonl").read_text().splitlines()]
    digests = [line.pop("xxh3_128") for line in lines]
    assert all(len(digest) == 32 for digest in digests)
    assert document.pop("records") == lines[1:-1] == json.loads(json.dumps([to_json(record) for record in RECORDS]))
    assert document == lines[0]
    assert lines[0]["roots"] == ROOTS
    assert lines[-1]["num_records"] == 3


@pytest.mark.parametrize("suffix", FORMATS)
def test_reading_takes_little_memory_however_long_the_index(tmp_path: Path, suffix: str) -> None:
    records = (RECORDS[0].replace(path=f"{number}.mp4") for number in range(700))
    index = read_index(write_index(tmp_path / f"index{suffix}", records))
    next(iter(index))
    tracemalloc.start()
    assert sum(1 for _ in index) == 700
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


# Writing


@pytest.mark.parametrize("suffix", FORMATS)
def test_failed_write_leaves_the_old_index_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = write_index(tmp_path / f"index{suffix}")
    before = path.read_bytes()

    def records() -> Iterator[VideoRecord]:
        yield RECORDS[0]
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(path, records())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_at_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match="no space left on device"):
        write_index(tmp_path / "index.json")
    assert list(tmp_path.iterdir()) == []


def test_index_is_written_into_a_folder_that_is_not_there_yet_and_onto_itself(tmp_path: Path) -> None:
    path = write_index(tmp_path / "new" / "folder" / ("i" * 250 + ".json"))
    read_index(path).write(path)
    assert read_all(path) == RECORDS


def test_an_index_that_cannot_be_written_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    (tmp_path / "file").touch()
    for name, message in [
        ("x.json", "cannot write the index '.*x.json': got a folder, expected a file"),
        ("file/x.json", "cannot write the index '.*x.json': "),
        ("x.xml", r"index: got 'x.xml', expected a .json, .jsonl or .csv file"),
        ("index", r"index: got 'index', expected a .json, .jsonl or .csv file"),
    ]:
        with pytest.raises(UsageError, match=message):
            write_index(tmp_path / name, iter([None]))


def test_record_of_another_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="root: got 'w', expected one of the index's roots"):
        write_index(tmp_path / "index.csv", [VideoRecord("w", "a.mp4")])


# Damage


def test_any_changed_byte_is_detected_and_no_wrong_record_comes_out(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index.jsonl", [RECORDS[1], RECORDS[1], VideoRecord("v", "d.mp4")])
    expected = read_all(path)
    data = path.read_bytes()
    for position, byte in enumerate(data):
        changed = [byte ^ 0x01, byte ^ 0x20, byte ^ 0x80, 0xFF, ord("\r" if byte == ord("\n") else "\n")][position % 5]
        path.write_bytes(data[:position] + bytes([changed]) + data[position + 1 :])
        records = []
        with pytest.raises(ChordcacheError, match="index.json"):
            records.extend(read_index(path))
        assert records == expected[: len(records)]


def test_lines_lost_doubled_or_appended_are_detected(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index.jsonl", RECORDS)
    lines = path.read_bytes().splitlines(keepends=True)
    for changed in [lines[:2] + lines[3:], lines[:3] + lines[2:], lines[:4] + lines[4:] * 2, lines + lines[1:2]]:
        path.write_bytes(b"".join(changed))
        with pytest.raises(DamageError, match="damaged"):
            read_all(path)


# Plain JSON and CSV, as other programs write them again


def by_json_tool(path: Path) -> None:
    subprocess.run([sys.executable, "-m", "json.tool", "--sort-keys", path, path], check=True)


def in_one_line(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":")))


def as_utf8_with_a_mark(path: Path) -> None:
    text = json.dumps(json.loads(path.read_text()), indent="\t", ensure_ascii=False).replace("\n", "\r\n")
    path.write_bytes(text.encode("utf-8-sig", "surrogateescape"))


def with_more_members(path: Path) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({"note": {"by": ["me"]}, "records": document.pop("records"), **document, "x": None}))


def in_lines_of_two(path: Path) -> None:
    head, *lines = path.read_text().split(",\n")
    pairs = [", ".join(lines[number : number + 2]) for number in range(0, len(lines), 2)]
    path.write_text(",\n".join([head, *pairs]))


def with_broken_lines(path: Path) -> None:
    path.write_text(path.read_text().replace(', "path"', ',\n"path"').replace(",\n{", ", {"))


@pytest.mark.parametrize(
    "rewrite",
    [by_json_tool, in_one_line, in_lines_of_two, with_broken_lines, as_utf8_with_a_mark, with_more_members],
)
@pytest.mark.parametrize("num_records", [0, 1, 3, 700])
def test_json_that_another_program_wrote_again(
    tmp_path: Path, rewrite: Callable[[Path], None], num_records: int
) -> None:
    records = [RECORDS[number % 3].replace(path=f"\u00e9{number}.mp4") for number in range(num_records)]
    path = write_index(tmp_path / "index.json", records)
    rewrite(path)
    index = read_index(path)
    assert (len(index), index.roots, index.level) == (num_records, ROOTS, "packets")
    assert list(index) == records
    with open(path, "rb") as file:
        offsets = [offset for offset, _ in index.located(file)]
        assert [index.at(file, offset) for offset in reversed(offsets)] == records[::-1]


def test_csv_that_a_table_program_wrote_again(tmp_path: Path) -> None:
    """Quoted cells, CRLF, a byte order mark; as pandas does, ``True`` for true and 9.0 for 9 in incomplete columns."""
    columns = {"score": "float", "count": "int", "seen": "bool", "path": "list[int]", "boxes": "boxes"}
    path = tmp_path / "index.csv"
    with IndexWriter(path, roots=ROOTS, level=None, columns=columns) as writer:
        for record in DESCRIBED:
            writer.write(record)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    for column, written, cell in (("segment_end_frame", "9", "9.0"), ("seen:bool", "true", "True")):
        at = rows[0].index(column)
        assert written in {row[at] for row in rows[1:]}
        for row in rows[1:]:
            row[at] = cell if row[at] == written else row[at]
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows(rows)
    assert read_all(path) == DESCRIBED


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"b.mp4"', '"../b.mp4"', "record 2' is damaged: a record that cannot be used: it contains '..'"),
        ('"b.mp4"', "5", r"record 2' is damaged: it is not a record \(Expected `str`, got `int` - at `\$.path`\)"),
        ('"root": "v", "path": "b', '"root": "w", "path": "b', "record 2' is damaged: .* the header has no root 'w'"),
        ('"b.mp4"', '"b.mp4" 5', r"Expecting ',' delimiter"),
        ('"b.mp4",', '"b.mp4", "bitrate": NaN,', "NaN is not a finite number"),
        ('"path": "b.mp4"', '"path": "a.mp4", "path" :"b.mp4"', "got the key 'path' twice, expected it once"),
        ('"roots"', '"roots": {}, "roots"', "got the key 'roots' twice, expected it once"),
        ('"roots"', '"Roots"', "missing required field `roots`"),
        ("\n]}\n", "\n", "Expecting ',' delimiter"),
        ("\n]}\n", "\n]} x", "Extra data"),
    ],
)
def test_mistakes_in_plain_json(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = write_index(tmp_path / "index.json")
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(DamageError, match=message):
        read_index(path)


def test_a_key_that_stands_twice_among_many_records(tmp_path: Path) -> None:
    records = [RECORDS[0].replace(path=f"{number}.mp4", caption='a "b" c') for number in range(60)]
    path = write_index(tmp_path / "index.json", records)
    text = path.read_text()
    path.write_text(text.replace('a \\"b\\" c', "a \\u0022b\\u0022 c"))
    assert read_all(path) == records
    path.write_text(
        text.replace('a \\"b\\" c', "a \\u0022b\\u0022 c").replace('"path": "7.', '"path": "x", "path": "7.')
    )
    with pytest.raises(DamageError, match="got the key 'path' twice"):
        read_index(path)


def test_plain_json_that_is_cut_short(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index.json", RECORDS[:2])
    data = path.read_bytes().rstrip()
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        kind = (DamageError, UsageError) if length < 30 else DamageError  # before 30 bytes, it does not name its format
        with pytest.raises(kind, match="index.json"):
            read_index(path)


@pytest.mark.parametrize("content", ['["a.mp4"]', '{"a.mp4": "cat"}\n', "{\n}\n", "a.mp4\n", "\0", "\n"])
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_foreign_file(tmp_path: Path, suffix: str, content: str) -> None:
    (tmp_path / f"list{suffix}").write_text(content)
    with pytest.raises(UsageError, match=r"expected a chordcache index\. .* hand-written list is a CSV file"):
        read_index(tmp_path / f"list{suffix}")


@pytest.mark.parametrize("name", ["none.json", "none.csv"])
def test_missing_index(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match=r"no such file '.*'; make an index with 'chordcache scan ROOT'"):
        read_index(tmp_path / name)


@pytest.mark.parametrize("name", ["file/none.jsonl", "folder.json"])
def test_something_else_in_place_of_an_index(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(StorageError, match=r"got (Not|Is) a directory, expected a readable file"):
        read_index(tmp_path / name)


def test_other_suffix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"index: got 'index.txt', expected a .json, .jsonl or .csv file"):
        read_index(tmp_path / "index.txt")
    (tmp_path / "videos").mkdir()
    for output in ("index.txt", "videos"):
        with pytest.raises(UsageError, match=rf"output: got '.*{output}', expected a .json, .jsonl or .csv file. Name"):
            scan([tmp_path / "videos"], output=tmp_path / output, jobs=1)


def sealed_index(path: Path, record: dict[str, Any], **header: Any) -> Path:
    """An index whose digests are right, whatever it says."""
    first = {"format": "chordcache-index", "format_version": 5, "roots": {"v": "/data"}, "level": None, **header}
    path.write_text("".join(sealed_json.seal(line) + "\n" for line in (first, record, {"num_records": 1})))
    return path


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.mp4", "a/../../x.mp4", "a\0.mp4", "", 5, None, "\ud800.mp4"])
def test_hostile_paths_in_an_index_of_ours(tmp_path: Path, path: Any) -> None:
    index = sealed_index(tmp_path / "index.jsonl", {"root": "v", "path": path})
    with pytest.raises(
        DamageError, match=r"index.jsonl, line 2' is damaged: (a record that cannot be used|it is not a record)"
    ):
        read_all(index)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"root": "w", "path": "a.mp4"},
        {"root": ["v"], "path": "a.mp4"},
        {"root": "v", "path": "a.mp4", "level": "deep"},
        {"root": "v", "path": "a.mp4", "surprise": 1},
        {"root": "v", "path": "a.mp4", "label": 5},
        {"root": "v", "path": "a.mp4", "extra": []},
        {"root": "v", "path": "a.mp4", "extra": {"a": 1}},
        {"root": "v", "path": "a.mp4", "identity": [1, 2, 3]},
        {"root": "v", "path": "a.mp4", "identity": {"size": "1", "mtime_ns": 2}},
        {"root": "v", "path": "a.mp4", "identity": {"size": True, "mtime_ns": 2}},
        {"root": "v", "path": "a.mp4", "packets": {**to_json(PACKETS), "keyframe_numbers": [1]}},
        {"root": "v", "path": "a.mp4", "packets": {**to_json(PACKETS), "keyframe_numbers": ["0", "5"]}},
    ],
)
def test_data_that_is_not_a_record(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(DamageError, match=r"index.jsonl, line 2' is damaged: "):
        read_all(sealed_index(tmp_path / "index.jsonl", record))


@pytest.mark.parametrize("header", [{"format": "x"}, {"level": "deep"}, {"roots": []}, {"roots": {"v": "data"}}])
def test_data_that_is_not_a_header(tmp_path: Path, header: dict[str, Any]) -> None:
    with pytest.raises(DamageError, match="line 1' is damaged: it is not the header of an index"):
        read_index(sealed_index(tmp_path / "index.jsonl", {"root": "v", "path": "a.mp4"}, **header))
