"""Lists that would take much memory or time: each is one error, in a process with little memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.lists import indexed, place, write

from chordcache.config.bounds import MAX_COLUMNS, MAX_ROW_BYTES, MAX_TEXT_CHARS
from chordcache.errors import UsageError
from chordcache.index.class_labels import NumberCheck
from chordcache.index.index_files import read_index
from chordcache.index.labels import Labels
from chordcache.index.lists.tables import open_table
from chordcache.index.lists.templates import Template
from chordcache.read.split_file import read_split

_MEMORY = 1 << 30
_INDEX = """
import sys
from chordcache.errors import UsageError
from chordcache.index.lists.write import index_list
try:
    index_list(sys.argv[1], "out.json", format=sys.argv[2])
except UsageError as error:
    print(error)
"""


def message_of(code: str, folder: Path, *arguments: str) -> str:
    """Return what a process with little memory prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=600, cwd=folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("format", "name", "text", "message"),
    [
        (
            "csv",
            "l.csv",
            lambda: "path,caption\na.mp4," + "z" * (MAX_ROW_BYTES + 9),
            "line 2: got a row of more than",
        ),
        ("csv", "l.csv", lambda: "path\n" + ('"' + "\n" * MAX_ROW_BYTES), "line 2: got a row of more than 33,554,432"),
        (
            "csv",
            "l.csv",
            lambda: ",".join(["path", *map(str, range(20_000))]) + "\n",
            "got 20,001 columns, ",
        ),
        (
            "csv",
            "l.csv",
            lambda: f"path,caption\na.mp4,{'z' * (MAX_TEXT_CHARS + 1)}\n",
            "caption: got 1,048,577 char",
        ),
        (
            "csv",
            "l.csv",
            lambda: f"path,x:list[int]\na.mp4,{nested(100_000)}\n",
            "line 2: column 'x': got values nes",
        ),
        ("csv", "l.csv", lambda: f"path,x:int\na.mp4,{'9' * 10**6}\n", "line 2: column 'x': Exceeds the limit"),
        ("csv", "l.csv", lambda: "path\n" + "a" * 5000, "line 2: path: got 5,000 characters, expected at most 4,096"),
        ("csv", "l.csv", lambda: 'path,x:boxes\na.mp4,"[{""x1"":1,""x1"":2}]"\n', "column 'x': got the key 'x1' twice"),
        (
            "csv",
            "l.json",
            lambda: '[{"path":"' + "s" * 10**8,
            "record 1: not JSON of a list: Unterminated string",
        ),
        (
            "csv",
            "l.json",
            lambda: f'[{{"label":{nested(100_000)}}}]',
            "not JSON of a list: got values nested",
        ),
        ("csv", "l.json", lambda: f'[{{"label":{nested(65)}}}]', "got values nested more than 64 deep"),
        ("csv", "l.json", lambda: f'[{{"x":{"9" * 10**6}}}]', "record 1: not JSON of a list: Exceeds the limit"),
        (
            "csv",
            "l.json",
            lambda: '[{"path":"a","path":"b"}]',
            "record 1: not JSON of a list: got the key 'path'",
        ),
        ("csv", "l.jsonl", lambda: '{"path":"' + "s" * 10**8, "line 1: got a row of more than 33,554,432 bytes"),
        (
            "csv",
            "l.jsonl",
            lambda: f'{{"label":{nested(100_000)}}}',
            "line 1: not JSON: got values nested more",
        ),
        ("csv", "l.jsonl", lambda: '{"path":"a","path":"b"}', "line 1: not JSON: got the key 'path'"),
        (
            "csv",
            "l.jsonl",
            lambda: "".join(f'{{"c{n}":1}}\n' for n in range(9000)),
            "got 2,001 columns, expected at most",
        ),
        ("ucf101", "l.txt", lambda: "A/a.mp4 " + "9" * 10**6, "line 1: got a number of more than 18 digits"),
        ("mmaction", "l.txt", lambda: "a" + " 1" * 200_000 + " x", "line 1: got 'a 1 1 1 1"),
        ("mmaction", "l.txt", lambda: "s" * 10**8, "line 1: got a row of more than 33,554,432 bytes"),
        ("activitynet", "l.json", lambda: '{"database": {"a": ' + nested(1000), "got values nested more than 64 deep"),
        ("activitynet", "l.json", lambda: '{"database": {"a": {"b":1,"b":1}}}', "got the key 'b' twice"),
    ],
)
def test_lists_beyond_a_bound(tmp_path: Path, format: str, name: str, text: Callable[[], str], message: str) -> None:
    write(tmp_path / name, text())
    error = message_of(_INDEX, tmp_path, name, format)
    assert message in error
    assert len(error) < 1500


def _arrays(kind: str) -> Any:
    pa = pytest.importorskip("pyarrow")
    if kind == "dictionary":
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * MAX_TEXT_CHARS]))
        return {"path": [f"{number}.mp4" for number in range(20_000)], "caption": texts}
    many = {"list": 5_000_000, "group": 40_000_000}
    if kind in many:
        offsets = pa.array([0, many[kind]], pa.int32())
        values = pa.nulls(many[kind]) if kind == "group" else pa.array(range(1)).take(pa.array([0] * many[kind]))
        return {"path": ["a.mp4"], "x": pa.ListArray.from_arrays(offsets, values)}
    if kind == "fixed":
        return {"path": ["a.mp4"], "x": pa.array([None], pa.binary(1 << 24))}
    if kind == "columns":
        return {str(number): [1] for number in range(MAX_COLUMNS + 1)}
    return {"path": ["a.mp4"], "caption": ["y" * (3 << 20 if kind == "text" else 100 << 20)]}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dictionary", ": got values of more than 1,000 times the file's size, expected fe"),
        ("page", "column 'caption': got a page of 104,857,604 bytes, expected at most 67,108,864"),
        ("text", "record 1: caption: got 3,145,728 characters, expected at most 1,048,576"),
        ("list", "record 1: got a row of more than 33,554,432 bytes, expected fewer"),
        ("group", "got 40,000,000 values in lists of one row group, expected at most 33,554,432"),
        ("fixed", "column 'x': got values of a large fixed size"),
        ("columns", "got 2,001 columns, expected at most 2,000"),
    ],
)
def test_parquet_beyond_a_bound(tmp_path: Path, kind: str, message: str) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(_arrays(kind)), tmp_path / "l.parquet", compression="zstd", write_statistics=False)
    (tmp_path / "0.mp4").touch()
    error = message_of(_INDEX, tmp_path, "l.parquet", "csv")
    assert message[:60] in error
    assert len(error) < 1500


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_parquet_of_all_types_is_read_as_before(tmp_path: Path, version: str, compression: str) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    columns = {
        "path": [f"{number}.mp4" for number in range(5000)],
        "boxes": pa.array([[{"x": number, "names": ["a", None]}] * (number % 3) for number in range(5000)]),
        "map": pa.array([[("k", number)] for number in range(5000)], pa.map_(pa.string(), pa.int64())),
        "pair": pa.array([[number, 1] if number % 2 else None for number in range(5000)], pa.list_(pa.int32(), 2)),
        "word": pa.array([f"w{number % 7}" for number in range(5000)]).dictionary_encode(),
        "real": [number / 3 for number in range(5000)],
    }
    table = pa.table(columns)
    source = tmp_path / "l.parquet"
    pq.write_table(
        table, source, row_group_size=1234, data_page_size=2000, data_page_version=version, compression=compression
    )
    rows = [row for _, row in open_table(source).rows()]
    assert rows == [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]


@pytest.mark.parametrize("template", ["{x:>9999999999}", "{x:.999999999f}", "{x:0256d}", "{x!r}", "{x.__class__}",
                                      "{x[0]}", "{x:{x}}", "{}", "{0}", "a" * 5000])  # fmt: skip
def test_templates_of_other_than_plain_fields(template: str) -> None:
    with pytest.raises(UsageError, match="^video_template: got "):
        Template(template, ("x",))


def test_a_template_of_wide_fields_and_long_values() -> None:
    assert Template("{x:0>255}", ("x",)).path({"x": "7"}) == "7".rjust(255, "0")
    assert Template("{x:09d}.{x:<3}", ("x",)).path({"x": "7"}) == "000000007.7  "
    with pytest.raises(UsageError, match="column 'x': got 5,000 characters, expected at most 4,096"):
        Template("{x}" * 1000, ("x",)).path({"x": "y" * 5000})


def test_an_index_with_a_long_record(tmp_path: Path) -> None:
    code = """
import sys
from chordcache.errors import ChordcacheError
from chordcache.index.index_files import read_index
try:
    list(read_index(sys.argv[1]))
except ChordcacheError as error:
    print(error)
"""
    header = '{"format": "chordcache-index", "format_version": 5, "roots": {"v": "/v"}, "records": [\n'
    for name, record, message in (
        ("a.json", '{"root": "v", "path": "a.mp4", "label": "' + "s" * 10**8, "Unterminated string"),
        (
            "b.json",
            '{"root": "v", "path": "a.mp4", "extra": {"x": ' + nested(100_000),
            "got values nested more",
        ),
    ):
        write(tmp_path / name, header + record)
        assert message in message_of(code, tmp_path, name)


def test_labels_and_split_files_with_a_long_line(tmp_path: Path) -> None:
    write(tmp_path / "l.csv", "path,label\na.mp4," + "s" * (MAX_ROW_BYTES + 1))
    write(tmp_path / "s.txt", "s" * (MAX_ROW_BYTES + 1))
    with pytest.raises(UsageError, match="line 2: got a row of more than"):
        Labels(str(tmp_path / "l.csv"))
    write(tmp_path / "l.csv", "path,label\na.mp4," + "\u00e9" * (MAX_ROW_BYTES // 2))  # the bound is one of bytes
    with pytest.raises(UsageError, match="line 2: got a row of more than"):
        Labels(str(tmp_path / "l.csv"))
    with pytest.raises(UsageError, match="line 1: got a row of more than"):
        read_split(tmp_path / "s.txt", [lambda name: [name]], {})


def test_files_beside_videos(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    for text, message in (
        ('{"x": "' + "s" * MAX_ROW_BYTES + '"}', "a.json': got more than 33,554,432 bytes"),
        ('{"label": ' + nested(100_000) + "}", "a.json': expected a JSON object .got values nested"),
        ('{"label": 1, "label": 2}', "a.json': expected a JSON object .got the key 'label' twice"),
        (json.dumps({str(number): 1 for number in range(2001)}), "got 2,001 columns"),
    ):
        write(videos / "a.json", text)
        with pytest.raises(UsageError, match=message):
            indexed(videos, "pairs")


def test_many_extra_columns_are_not_written_as_csv(tmp_path: Path) -> None:
    header = '{"format": "chordcache-index", "format_version": 5, "roots": {"v": "/v"}, "records": ['
    records = [json.dumps({"root": "v", "path": f"{n}.mp4", "extra": {f"c{n}": "x"}}) for n in range(MAX_COLUMNS + 1)]
    index = read_index(write(tmp_path / "a.json", header + ",".join(records) + "]}"))
    with pytest.raises(UsageError, match="got 2,001 columns, .* Or write a .json or .jsonl file"):
        index.write(tmp_path / "a.csv")


def test_long_labels_take_linear_time() -> None:
    assert NumberCheck(["9" * 500_000 + "x"]).problem is None
