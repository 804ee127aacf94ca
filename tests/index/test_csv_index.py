"""The index as CSV: our own columns, what spreadsheets do to them, and lists written by hand."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from test_index_files import HEADER, RECORDS, read_all, write_index
from test_walk import HOSTILE_NAMES

from chordcache.errors import DamageError, UsageError
from chordcache.index.csv_index import COLUMNS
from chordcache.index.files import read_index
from chordcache.records import (
    AudioFacts,
    ContentFacts,
    HeaderFacts,
    Identity,
    PacketFacts,
    Segment,
    VideoRecord,
    fields_of,
)


def test_column_names_are_unique_and_cover_every_fact() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    num_facts = sum(
        len(fields_of(cls)) for cls in (Segment, Identity, HeaderFacts, PacketFacts, AudioFacts, ContentFacts)
    )
    num_own = len(fields_of(VideoRecord)) - len(
        ["segment", "identity", "header", "packets", "content", "audio", "extra"]
    )
    assert len(names) == num_facts + num_own + len(["root_path"])


def test_csv_holds_nothing_that_runs_or_steers_a_terminal(tmp_path: Path) -> None:
    hostile = [os.fsdecode(name) for name in HOSTILE_NAMES]
    records = [VideoRecord("v", name, label=name, caption=name, error=name, extra={name: name}) for name in hostile]
    path = write_index(tmp_path / "index.csv", records)
    data = path.read_bytes()
    assert not [byte for byte in data.replace(b"\n", b"") if byte < 0x20 or byte == 0x7F]
    assert data.count(b"\n") == len(records) + 1
    with open(path, encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert read_all(path) == records


def test_spreadsheets_may_reorder_columns_and_shorten_numbers(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index.csv", [RECORDS[0]])
    with open(path, encoding="utf-8", newline="") as file:
        rows = [dict(reversed(row.items())) for row in csv.DictReader(file)]
    assert rows[0]["header_duration_seconds"] == "0.30000000000000004"
    rows[0]["keyframe_pts_seconds"] = "[0, 2]"
    rows[0]["average_fps"] = "30"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(rows)
    (record,) = read_all(path)
    assert record.packets is not None
    assert record.header is not None
    assert repr(record.packets.keyframe_pts_seconds) == "(0.0, 2.0)"
    assert record.header.replace(average_fps=HEADER.average_fps) == HEADER


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a.mp4", "/etc/passwd", "line 2: the path '/etc/passwd' cannot be used: it is absolute"),
        ("a.mp4", "../a.mp4", "line 2: the path '../a.mp4' cannot be used: it contains '..'"),
        ("a.mp4", '"""a\\u0000.mp4"""', "line 2: the path '.*' cannot be used: it contains NUL"),
        ("a.mp4", '"""a', "line 2: not CSV: "),
        ("a.mp4", '"""a"', "line 2: column 'path' holds '\"a': "),
        ("/data/v,a.mp4", "data/v,a.mp4", "line 2: columns 'root' and 'root_path' do not name a folder"),
        ("/data/v,b.mp4", "/data/w,b.mp4", "line 3: root 'v' has two folders"),
        ("b.mp4", "a.mp4", "line 3: got 'a.mp4' twice, expected it once; line 2 has it too"),
        ("cat,,a cat", "a cat", "line 2: [0-9]+ cells, but the header row has"),
        (",packets,", ",deep,", "line 2: level: got 'deep', expected one of headers, packets, content"),
        (",1920,1080,", ",1920.5,1080,", "line 2: column 'coded_width' holds '1920.5': Expected `int`, got `float`"),
        (",1920,1080,", ",1.8E,1080,", "line 2: column 'coded_width' holds '1.8E': "),
        (",1920,1080,", ",,1080,", "line 2: column 'coded_width' is empty"),
        ("90,false", "90,FALSE", "line 2: column 'mirrored' holds 'FALSE': "),
        ("90,false", "90,0", "line 2: column 'mirrored' holds '0': Expected `bool`, got `int`"),
        ('"[0, 5]"', "[0]", "line 2: 1 keyframe numbers but 2 keyframe times"),
        (
            '"[0, 5]"',
            '"[0, 5.5]"',
            r"line 2: column 'keyframe_numbers' holds .*: Expected `int`, got `float` - at `\$\[1\]`",
        ),
        ('"[0, 5]"', "5", "line 2: column 'keyframe_numbers' holds '5': Expected `array`, got `int`"),
        (",-0.04,", ",NaN,", "line 2: column 'start_seconds' holds 'NaN': "),
        (",-0.04,", ",1e999,", "line 2: column 'start_seconds' holds '1e999': "),
    ],
)
def test_csv_of_ours_that_was_changed_for_the_worse(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_index(tmp_path / "index.csv", RECORDS[:2])
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DamageError, match=message):
        read_all(path)


# Hand-written lists


def hand_written(folder: Path, content: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "list.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "path,caption\na.mp4,a cat\nsub/b.mp4,\n",
        "\ufeffpath,caption\r\na.mp4,a cat\r\nsub/b.mp4,\r\n",
        " path , caption\na.mp4,a cat\n\nsub/b.mp4\n\n",
        "caption,path,\na cat,./a.mp4,\n,sub//b.mp4,\n",
        'path,caption\n"a.mp4","a cat"\n"sub/b.mp4",""',
    ],
)
def test_hand_written_list(tmp_path: Path, content: str) -> None:
    index = read_index(hand_written(tmp_path / "clips", content))
    assert index.roots == {"clips": str(tmp_path / "clips")}
    assert (index.level, len(index)) == (None, 2)
    assert list(index) == [VideoRecord("clips", "a.mp4", caption="a cat"), VideoRecord("clips", "sub/b.mp4")]


def test_additional_columns_of_a_hand_written_list_are_kept(tmp_path: Path) -> None:
    path = hand_written(tmp_path / "clips", 'path,label,caption,size,lang\na.mp4,cat,\'tis "it",big,=1\nb.mp4,,,,\n')
    expected = [
        VideoRecord("clips", "a.mp4", label="cat", caption='\'tis "it"', extra={"size": "big", "lang": "=1"}),
        VideoRecord("clips", "b.mp4"),
    ]
    assert read_all(path) == expected
    read_index(path).write(tmp_path / "own.csv")
    assert read_all(tmp_path / "own.csv") == expected


def test_hand_written_names(tmp_path: Path) -> None:
    rows = [
        b"\xff.mp4",
        "\u00e9.mp4".encode(),
        b"'tis.mp4",
        b"'=x.mp4",
        b'"""a\\nb.mp4"""',
        b'"""q"".mp4"',
        b'"c\nd.mp4"',
    ]
    paths = [record.path for record in read_index(hand_written(tmp_path, b"path\n" + b"\n".join(rows) + b"\n"))]
    expected = [b"\xff.mp4", "\u00e9.mp4".encode(), b"'tis.mp4", b"=x.mp4", b"a\nb.mp4", b'"q".mp4', b"c\nd.mp4"]
    assert [os.fsencode(path) for path in paths] == expected


def test_hand_written_absolute_path_inside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    assert [record.path for record in read_index(hand_written(folder, f"path\n{folder}/sub/a.mp4\n"))] == ["sub/a.mp4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,caption\na.mp4,x\n", "got the columns 'file', 'caption', expected a column 'path'$"),
        ("path;caption\na.mp4;x\n", "got the columns 'path;caption', expected a column 'path'$"),
        ("", "got the columns none, expected a column 'path'$"),
        ("path,x,x\n", "got the column 'x' twice, expected it once$"),
        ("path\na.mp4\nb.mp4\n./a.mp4\n", "line 4: got 'a.mp4' twice, expected it once; line 2 has it too$"),
        (
            "path\n/etc/passwd\n",
            "line 2: the path '/etc/passwd' cannot be used: a path outside the list's folder '.*'$",
        ),
        ("path\n../a.mp4\n", r"line 2: the path '../a.mp4' cannot be used: it contains '\.\.'$"),
        ("path\na/../b.mp4\n", r"line 2: .*: it contains '\.\.'$"),
        ("path\na\0.mp4\n", r"line 2: the path 'a\\x00.mp4' cannot be used: it contains NUL$"),
        ("path,caption\n,x\n", "line 2: the path '' cannot be used: it is empty$"),
        ("path,caption\na.mp4,one, two\n", "line 2: 3 cells, but the header row has 2$"),
        ('path,caption\na.mp4,"one\n', "line 2: not CSV: unexpected end of data$"),
        ('path,caption\na.mp4,"\n\n"\nb.mp4,"x" y\n', "line 5: not CSV: "),
        ("path\ra.mp4\rb.mp4\r", "line 1: not CSV: "),
    ],
)
def test_hand_written_mistakes(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_index(hand_written(tmp_path / "clips", content))


def test_hand_written_path_beside_the_folder_is_not_inside_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a path outside the list's folder"):
        read_index(hand_written(tmp_path / "clips", f"path\n{tmp_path}/clips2/a.mp4\n"))
