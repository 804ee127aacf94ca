"""Index files of three formats: records come back as written, and every change of a file is detected."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordcache.errors import (
    ChordcacheError,
    DamageError,
    FormatVersionError,
    NoSpaceError,
    NotFoundError,
    UsageError,
)
from chordcache.index.csv_index import COLUMNS
from chordcache.index.files import IndexWriter, read_index
from chordcache.records import (
    AudioFacts,
    ContentFacts,
    HeaderFacts,
    Identity,
    PacketFacts,
    Record,
    VideoRecord,
    fields_of,
    to_json,
)
from chordcache.scan_levels import SCAN_LEVELS
from chordcache.storage import sealed_json

FORMATS = [".json", ".jsonl", ".csv"]
SEALED = [".json", ".jsonl"]
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
CONTENT = ContentFacts("codec", (0.5,), (3, 1), (), (0.25,))
RECORDS = [
    VideoRecord("v", "a.mp4", "cat", "a cat", Identity(1, 2, 3), "packets", header=HEADER, packets=PACKETS),
    VideoRecord("v", "b.mp4", identity=Identity(1, 2, 3), level="packets", error="no moov", error_cause="decode"),
    VideoRecord(
        "v",
        "c.mp4",
        identity=Identity(2**62, -1, 3),
        level="content",
        header=HEADER,
        packets=PACKETS,
        content=CONTENT,
        audio=AudioFacts("aac", 48000, 2, None, -0.02),
        extra={"size": "big", "extra.x": "", "": "no name", "=f": "=1+1", "lang": "\u00e9"},
    ),
]


def write_index(path: Path, records: Any = RECORDS, roots: Any = ROOTS, level: str | None = "packets") -> Path:
    with IndexWriter(path, roots=roots, level=level) as writer:
        for record in records:
            writer.write(record)
    return path


def read_all(path: Path) -> list[VideoRecord]:
    return list(read_index(path))


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
    tuple[int, ...]: st.lists(st.integers(), max_size=3).map(tuple),
    tuple[float, ...]: st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
}
BY_TYPE.update({kind | None: st.none() | strategy for kind, strategy in list(BY_TYPE.items())})


def facts(cls: type[Record], **given_fields: Any) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{**{name: BY_TYPE[kind] for name, kind in fields_of(cls)}, **given_fields})


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
    content=st.none() | facts(ContentFacts),
    audio=st.none() | facts(AudioFacts),
    extra=st.dictionaries(texts | st.sampled_from([column.name for column in COLUMNS]), texts, max_size=3),
)


@settings(max_examples=25)
@given(st.lists(video_records, max_size=3, unique_by=lambda record: (record.root, record.path)))
def test_every_record_comes_back_equal(records: list[VideoRecord]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "first.jsonl")
        write_index(path, records)
        for suffix in [*FORMATS, *reversed(FORMATS)]:
            index = read_index(path)
            assert list(index) == records
            assert len(index) == len(records)
            path = Path(folder, f"index{suffix}")
            index.write(path)
        assert read_all(path) == records


@pytest.mark.parametrize("suffix", FORMATS)
def test_roots_level_and_length(tmp_path: Path, suffix: str) -> None:
    index = read_index(write_index(tmp_path / f"index{suffix}"))
    assert index.level == "packets"
    assert index.roots == ({"v": "/data/v"} if suffix == ".csv" else ROOTS)
    assert len(index) == 3
    assert list(index) == list(index) == RECORDS


@pytest.mark.parametrize("suffix", FORMATS)
def test_empty_index(tmp_path: Path, suffix: str) -> None:
    index = read_index(write_index(tmp_path / f"index{suffix}", []))
    assert (list(index), len(index)) == ([], 0)


def test_json_is_a_json_document_and_jsonl_a_document_per_line(tmp_path: Path) -> None:
    document = json.loads(write_index(tmp_path / "index.json").read_text())
    lines = [json.loads(line) for line in write_index(tmp_path / "index.jsonl").read_text().splitlines()]
    assert [document["header"], *document["records"], document["footer"]] == lines
    assert lines[0]["roots"] == ROOTS
    assert [line["path"] for line in lines[1:-1]] == ["a.mp4", "b.mp4", "c.mp4"]
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


@pytest.mark.parametrize("num_records", [1, 200])
@pytest.mark.parametrize("suffix", FORMATS)
def test_full_disk(tmp_path: Path, suffix: str, num_records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_index(tmp_path / f"index{suffix}")
    before = path.read_bytes()
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - the writer closes it
    monkeypatch.setattr(IndexWriter, "_open_partial", lambda self: full)
    with pytest.raises(NoSpaceError, match="no space left on device at '.*index"):
        write_index(path, RECORDS[:1] * num_records)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_at_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(NoSpaceError, match="no space left on device"):
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


@pytest.mark.parametrize("suffix", SEALED)
def test_any_changed_byte_is_detected_and_no_wrong_record_comes_out(tmp_path: Path, suffix: str) -> None:
    path = write_index(tmp_path / f"index{suffix}", [RECORDS[1], RECORDS[1], VideoRecord("v", "d.mp4")])
    expected = read_all(path)
    data = path.read_bytes()
    for position, byte in enumerate(data):
        changed = [byte ^ 0x01, byte ^ 0x20, byte ^ 0x80, 0xFF, ord("\r" if byte == ord("\n") else "\n")][position % 5]
        path.write_bytes(data[:position] + bytes([changed]) + data[position + 1 :])
        found = []
        with pytest.raises((DamageError, FormatVersionError), match="index.json"):
            found.extend(read_index(path))
        assert found == expected[: len(found)]


@pytest.mark.parametrize("suffix", SEALED)
def test_truncation_anywhere_is_detected_before_the_first_record(tmp_path: Path, suffix: str) -> None:
    path = write_index(tmp_path / f"index{suffix}", RECORDS[:2])
    data = path.read_bytes()
    for length in range(len(data)):
        if length > 100 and length % 11 and data[length - 1 : length] != b"\n" and length < len(data) - 100:
            continue
        path.write_bytes(data[:length])
        if 0 < length < data.index(b"-index") + 6:  # it does not say yet what it is
            with pytest.raises((DamageError, UsageError), match="index.json"):
                read_index(path)
        else:
            with pytest.raises(DamageError, match="damaged|cut short"):
                read_index(path)


@pytest.mark.parametrize("suffix", SEALED)
def test_lines_lost_doubled_or_appended_are_detected(tmp_path: Path, suffix: str) -> None:
    path = write_index(tmp_path / f"index{suffix}", RECORDS)
    lines = path.read_bytes().splitlines(keepends=True)
    for changed in [lines[:2] + lines[3:], lines[:3] + lines[2:], lines[:4] + lines[4:] * 2, lines + lines[1:2]]:
        path.write_bytes(b"".join(changed))
        with pytest.raises(DamageError, match="damaged"):
            read_all(path)


def test_damage_names_file_and_line(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index.jsonl")
    path.write_bytes(path.read_bytes().replace(b"b.mp4", b"x.mp4"))
    with pytest.raises(DamageError, match=r"'.*index.jsonl, line 3' is damaged"):
        read_all(path)


@pytest.mark.parametrize("suffix", SEALED)
def test_other_version(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chordcache.index.files.FORMAT_VERSION", 99)
    path = write_index(tmp_path / f"index{suffix}")
    with pytest.raises(FormatVersionError, match="got format version 99, expected 2"):
        read_index(path)


@pytest.mark.parametrize("content", ['["a.mp4"]', '{"a.mp4": "cat"}\n', "{\n}\n", "a.mp4\n", "\0", "\n"])
@pytest.mark.parametrize("suffix", SEALED)
def test_foreign_file(tmp_path: Path, suffix: str, content: str) -> None:
    (tmp_path / f"list{suffix}").write_text(content)
    with pytest.raises(UsageError, match=r"expected a chordcache index\. .* hand-written list is a CSV file"):
        read_index(tmp_path / f"list{suffix}")


@pytest.mark.parametrize("name", ["none.json", "none.csv", "file/none.jsonl", "folder.json"])
def test_missing_index(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(NotFoundError, match=r"no such file '.*'; make an index with 'chordcache scan ROOT'"):
        read_index(tmp_path / name)


def test_other_suffix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"index: got 'index.txt', expected a .json, .jsonl or .csv file"):
        read_index(tmp_path / "index.txt")


def sealed_index(path: Path, record: dict[str, Any], **header: Any) -> Path:
    """An index whose digests are right, whatever it says."""
    first = {"format": "chordcache-index", "format_version": 2, "roots": {"v": "/data"}, "level": None, **header}
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
        {"root": "v", "path": "a.mp4", "identity": {"size": "1", "mtime_ns": 2, "ctime_ns": 3}},
        {"root": "v", "path": "a.mp4", "identity": {"size": True, "mtime_ns": 2, "ctime_ns": 3}},
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


def test_every_error_is_one_of_ours(tmp_path: Path) -> None:
    """Inputs that a fuzzer would find first."""
    for number, content in enumerate(
        [b"\xff\xfe\x00", b'{"', b'"xxh3_128": "', b"[" * 100_000, b",,,\n\n", b"\xef\xbb\xbf"]
    ):
        for suffix in FORMATS:
            path = tmp_path / f"{number}{suffix}"
            path.write_bytes(content)
            with pytest.raises(ChordcacheError, match=str(number)):
                read_all(path)
