"""The index as CSV: our own columns, what spreadsheets do to them, and lists written by hand."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from test_index_files import RECORDS, read_all, without_facts, write_index

from chordcache.errors import UsageError
from chordcache.index.csv_index import COLUMNS
from chordcache.index.index_files import read_index
from chordcache.records import (
    AudioFacts,
    ContentFacts,
    HeaderFacts,
    Identity,
    PacketFacts,
    Segment,
    VideoRecord,
)


def test_column_names_are_unique_and_cover_every_fact() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    num_facts = sum(
        len(cls.__struct_fields__) for cls in (Segment, Identity, HeaderFacts, PacketFacts, AudioFacts, ContentFacts)
    )
    num_own = len(VideoRecord.__struct_fields__) - len(
        ["segment", "identity", "header", "packets", "content", "audio", "extra", "erased"]
    )
    assert len(names) == num_facts + num_own + len(["root_path"]) - len(["frame_steps"])


def test_spreadsheets_may_reorder_columns_and_drop_or_change_facts(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index.csv", [RECORDS[0], RECORDS[2]])
    with open(path, encoding="utf-8", newline="") as file:
        rows = [dict(reversed(row.items())) for row in csv.DictReader(file)]
    assert rows[0]["header_duration_seconds"] == "0.30000000000000004"
    for row in rows:
        row |= {"keyframe_pts_seconds": "[0, ", "average_fps": "30", "level": "deep", "mirrored": "FALSE", "codec": ""}
        del row["coded_width"]
    rows[0]["label"] = "dog"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(rows)
    assert read_all(path) == without_facts([RECORDS[0].replace(label="dog"), RECORDS[2]])


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
        ("b.mp4", "./a.mp4", "line 3: .* the path './a.mp4' is another spelling of 'a.mp4'"),
        ("cat,,a cat", "a cat", "line 2: [0-9]+ cells, but the header row has"),
        ("cat,,a cat", "cat,[5],a cat", r"line 2: column 'labels' holds '\[5\]': Expected `str`, got `int`"),
        ("a.mp4,,,", "a.mp4,x,,", "line 2: start_seconds: got 'x', expected seconds or hh:mm:ss"),
        ("root,root_path", '"""root",root_path', "line 1: the header row holds '\"root': "),
    ],
)
def test_csv_of_ours_that_was_changed_for_the_worse(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_index(tmp_path / "index.csv", RECORDS[:2])
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=message):
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,caption\na.mp4,x\n", "got the columns 'file', 'caption', expected a column 'path'$"),
        ("path;caption\na.mp4;x\n", "got the columns 'path;caption', expected a column 'path'$"),
        ("", "got the columns none, expected a column 'path'$"),
        ("path,x,x\n", "got the column 'x' twice, expected it once$"),
        ("path\na.mp4\nb.mp4\n./a.mp4\n", "line 4: got 'a.mp4' twice, expected it once; line 2 has it too$"),
        ("path\na.mp4\nx/../a.mp4\n", "line 3: got 'a.mp4' twice, expected it once; line 2 has it too$"),
        ("path,label\na.mp4,cat\nx//./../a.mp4,dog\n", "line 3: got 'a.mp4' twice, expected it once; line 2 has it "),
        ("path\n/\n", "line 2: the path '/' cannot be used: it is empty$"),
        ("path\n.\n", "line 2: the path '.' cannot be used: it is empty$"),
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


def places(path: Path) -> list[tuple[str, str]]:
    """Return folder and path of each record of a list."""
    index = read_index(path)
    return [(index.roots[record.root], record.path) for record in index]


def test_hand_written_paths_outside_of_the_folder_have_roots_of_their_own(tmp_path: Path) -> None:
    rows = f"path\na.mp4\n{tmp_path}/clips/b.mp4\n{tmp_path}/clips2/x y/c.mp4\n../clips2/d.mp4\n/srv/z/clips/e.mp4\n"
    path = hand_written(tmp_path / "clips", rows)
    assert places(path) == [
        (f"{tmp_path}/clips", "a.mp4"),
        (f"{tmp_path}/clips", "b.mp4"),
        (f"{tmp_path}/clips2", "x y/c.mp4"),
        (f"{tmp_path}/clips2", "d.mp4"),
        ("/srv/z/clips", "e.mp4"),
    ]
    index = read_index(path)
    assert index.roots == {"clips": f"{tmp_path}/clips", "clips2": f"{tmp_path}/clips2", "srv-z-clips": "/srv/z/clips"}
    assert index.notes == (
        "the list has paths outside of its folder, which are in roots of their own: 'srv-z-clips' is /srv/z/clips, "
        f"'clips2' is {tmp_path}/clips2",
    )
    with open(path, "rb") as file:
        assert [index.at(file, offset) for offset, _ in index.located(file)] == list(index)


def test_list_of_absolute_paths_has_the_names_of_a_scan_of_their_folder(tmp_path: Path) -> None:
    path = hand_written(tmp_path / "lists", f"path\n{tmp_path}/clips/a.mp4\n{tmp_path}/clips/sub/b.mp4\n")
    assert [(record.root, record.path) for record in read_index(path)] == [("clips", "a.mp4"), ("clips", "sub/b.mp4")]
    assert read_index(path).roots == {"clips": f"{tmp_path}/clips"}


@pytest.mark.parametrize("spelling", ["a/v.mp4", "link/v.mp4", "{}/a/v.mp4", "{}//link/./v.mp4", "x/../link/v.mp4"])
def test_every_spelling_of_a_file_is_one_record(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "around").symlink_to(tmp_path)
    row = spelling.format(tmp_path / "around")
    assert places(hand_written(tmp_path, f"path\n{row}\n")) == [(str(tmp_path), "a/v.mp4")]
    with pytest.raises(UsageError, match=r"line 3: got 'a/v.mp4' twice, expected it once; line 2 has it too"):
        read_index(hand_written(tmp_path, f"path,label\na/v.mp4,cat\n{row},dog\n"))


def test_hard_links_and_links_of_files_are_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    os.link(tmp_path / "a.mp4", tmp_path / "hard.mp4")
    (tmp_path / "soft.mp4").symlink_to("a.mp4")
    path = hand_written(tmp_path, "path\na.mp4\nhard.mp4\nsoft.mp4\n")
    assert [name for _, name in places(path)] == ["a.mp4", "hard.mp4", "soft.mp4"]


def test_parent_of_a_linked_folder_is_that_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "deep" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/inner")
    assert places(hand_written(tmp_path, "path\nlink/../v.mp4\n")) == [(str(tmp_path), "deep/v.mp4")]


def test_types_and_whole_numbers_as_spreadsheets_write_them(tmp_path: Path) -> None:
    rows = "path,label:int,caption:str,start_frame,end_frame,n:int\na.mp4,7,x,5.0, ,3\nb.mp4,,,,,\n"
    index = read_index(hand_written(tmp_path / "clips", rows))
    assert list(index) == [
        VideoRecord("clips", "a.mp4", segment=Segment(start_frame=5), label="7", caption="x", extra={"n": 3}),
        VideoRecord("clips", "b.mp4"),
    ]
    assert index.columns == {"n": "int"}
    for cell in ("5.5", "true", "nan", "1e999", "x"):
        with pytest.raises(UsageError, match=rf"list.csv', line 2: start_frame: got '{cell}', expected a whole number"):
            list(read_index(hand_written(tmp_path / "clips", rows.replace("5.0", cell))))
