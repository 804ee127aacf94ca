"""The on-disk format: sealed lines, names, atomic publishing, the lock."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from helpers.spellings import SPELLINGS, work_beside
from hypothesis import given
from hypothesis import strategies as st

from chordcache.errors import DamageError, StorageError, printable
from chordcache.records import Identity
from chordcache.storage import atomic, layout, sealed_json
from chordcache.storage.layout import path_problem

NAMES = st.binary(min_size=1, max_size=60).filter(lambda raw: b"\0" not in raw).map(os.fsdecode)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_folder_of_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    """A link keeps its name, since it may lead elsewhere on another machine."""
    work = work_beside(tmp_path, monkeypatch)
    folder = layout.cache_folder(spelling.format(tmp_path))
    assert str(folder) == str(work / "link" if spelling == "link" else tmp_path / "cache")


@given(st.dictionaries(NAMES.filter(lambda name: name not in ("format_version", "xxh3_128")), VALUES, max_size=4))
def test_a_sealed_line_is_read_back(data: dict[str, object]) -> None:
    line = sealed_json.seal(data)
    assert line.isascii()
    assert "\n" not in line
    assert sealed_json.unseal(line, "x") == data
    assert sealed_json.unseal(line + "\n", "x") == data


@given(st.data())
def test_any_changed_byte_of_a_sealed_line_is_damage(data: st.DataObject) -> None:
    line = sealed_json.seal({"path": "a.mp4", "size": 7, "nested": {"x": [1, 2.5, None]}}).encode()
    offset = data.draw(st.integers(0, len(line) - 1))
    changed = bytearray(line)
    changed[offset] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamageError, match=r"'the\.file' is damaged"):
        sealed_json.unseal(changed.decode("ascii", "replace"), "the.file")


@pytest.mark.parametrize("line", ["", "{}", "null", '{"a": 1}', "x" * 5000, '{"a": 1, "xxh3_128": "0"}'])
def test_an_unsealed_line_is_damage(line: str) -> None:
    with pytest.raises(DamageError, match="digest"):
        sealed_json.unseal(line, "x")


def test_nan_is_refused_at_writing() -> None:
    with pytest.raises(ValueError, match="JSON"):
        sealed_json.seal({"x": float("nan")})


@given(NAMES, NAMES, NAMES, NAMES)
def test_a_key_is_a_file_name_and_names_one_video(root_a: str, a: str, root_b: str, b: str) -> None:
    keys = [layout.video_key(root_a, a), layout.video_key(root_b, b)]
    assert (keys[0] == keys[1]) == ((root_a, a) == (root_b, b))
    for key in keys:
        assert key.isascii()
        assert len(key) <= 60
        assert "/" not in key
        assert "." not in key
        assert (Path("c") / layout.sidecar_file(key)).parent.name == key[-16:-14]


def test_a_generation_follows_fingerprint_source_and_content() -> None:
    names = {
        layout.artefact_file("hdf5", "k-0123456789abcdef", prints, identity, ctime_ns, digest)
        for prints in ({"flow": "a"}, {"flow": "b"}, {"flow": "a", "mel": "b"})
        for identity in (Identity(1, 2), Identity(9, 2), Identity(1, 9))
        for ctime_ns in (3, 4)
        for digest in ("d", "e")
    }
    assert len(names) == 36
    assert all(name.startswith("hdf5/01/k-0123456789abcdef.") and name.endswith(".h5") for name in names)


def test_files_of_one_feature_have_its_name() -> None:
    names = [
        layout.artefact_file("npz", "k-0123456789abcdef", {feature: "a"}, Identity(1, 2), 3, "d")
        for feature in ("flow", "mel")
    ]
    assert [name.split(".")[1] for name in names] == ["flow", "mel"]
    assert all(layout.key_of_artefact("npz", name) for name in names)
    assert not any(layout.key_of_artefact(tier, name) for tier in ("lmdb", "hdf5") for name in names)


@given(NAMES)
def test_printable_names_are_clean(name: str) -> None:
    text = printable(name)
    assert text.isprintable()
    text.encode("utf-8")


def test_publishing_text_replaces_it_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "deep/er/file.json"
    atomic.publish_text(tmp_path, "deep/er/file.json", "one\n")
    inode = path.stat().st_ino
    atomic.publish_text(tmp_path, "deep/er/file.json", "two\n")
    assert path.read_text() == "two\n"
    assert path.stat().st_ino != inode
    assert os.listdir(path.parent) == ["file.json"]


def test_a_partial_folder_is_gone_however_it_ends(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic.partial_folder(tmp_path) as folder:
        (folder / "x").touch()
        1 / 0  # noqa: B018
    assert os.listdir(tmp_path / ".partial") == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_name(code: int) -> None:
    with pytest.raises(StorageError, match="no space left|quota exceeded"), atomic.no_space_as_error("x"):
        raise OSError(code, "full")
    with pytest.raises(OSError, match="other") as caught, atomic.no_space_as_error("x"):
        raise OSError(errno.EIO, "other")
    assert not isinstance(caught.value, StorageError)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a/b.mp4", None),
        ("a/..b/c..mp4", None),
        (os.fsdecode(b"\xff.mp4"), None),
        ("", "it is empty"),
        (5, "it is empty"),
        ("/etc/passwd", "it is absolute"),
        ("../x", "it contains '..'"),
        ("a/../../x", "it contains '..'"),
        ("a/..", "it contains '..'"),
        ("a\0.mp4", "it contains NUL"),
        ("\ud800.mp4", "it is not a file name"),
    ],
)
def test_paths_that_could_leave_the_root_are_refused(path: object, problem: str | None) -> None:
    assert path_problem(path) == problem
