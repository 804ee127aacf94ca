"""Files whose digests are right and whose data is of the wrong types: every field of every record is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest

from chordcache.digests import hex128
from chordcache.errors import ChordcacheError, DamageError
from chordcache.index.index_files import read_index
from chordcache.json_records import Record, to_json
from chordcache.records import (
    AudioFacts,
    ContentFacts,
    Description,
    HeaderFacts,
    Identity,
    PacketFacts,
    Segment,
    VideoRecord,
)
from chordcache.storage import layout
from chordcache.storage.cache_header import Header, PartOf, read_header
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sealed_json import FORMAT_VERSION, seal, seal_versioned, unseal_as
from chordcache.storage.sidecar import Sidecar, read_sidecar

SEGMENT = Segment(start_seconds=0.5, end_seconds=1.5)
DESCRIPTION: dict[str, Any] = {
    "segment": SEGMENT, "label": "cat", "labels": ("cat", "dog"), "caption": "a cat", "captions": ("a cat", "cats"),
    "extra": {"lang": "en"},
}  # fmt: skip
KEY = layout.video_key("v", "a.mp4", SEGMENT)
OTHER_VERSION = FORMAT_VERSION - 1
IDENTITY = Identity(1, 2)
CONTENT = ContentFacts((0.5,), (3, 1), (0.1,), (0.25,))
INFO = FeatureInfo(
    "frames",
    "lmdb",
    "0" * 16,
    {"codec": "jpeg", "picture": {"fps": None}},
    StoredFile(layout.artefact_file("lmdb", KEY, {"frames": "0" * 16}, IDENTITY, 3, "d"), 777, "f" * 32),
    (9, 4, 4, 3),
    "uint8",
    {"frames": 9},
    {"silence": -1.5},
)
ABSENT = FeatureInfo("flow", "npz", "0" * 16, {"short_side": None}, absent="never")
SIDECAR = Sidecar(
    KEY, "v", "a.mp4", IDENTITY, 9, 4, 4, 0.5, 1.5, "pts", (INFO, ABSENT),
    Description(**DESCRIPTION), 1, ("turned",), CONTENT, "a" * 16, (8, 8), (0.0, 0.5, 8.0, 7.0),
)  # fmt: skip
HEADER = Header(
    {"frames": {}},
    {"v": "/data"},
    {"lmdb": ("frames",)},
    {"av": "18"},
    True,
    {"lang": "str"},
    ("a" * 32, "b" * 32),
    fingerprints={"frames": "ab"},
    part=PartOf("1/2", "a" * 32, {"av": "18"}, (0, 2)),
    is_packed=True,
)
FAILURE = Failure(
    "k", "v", "a.mp4", "decode", "short", "cut", IDENTITY, 3, 2, {"av": "18"}, ("0" * 16,), "today", "here"
)
RECORD = VideoRecord(
    "v", "a.mp4", IDENTITY, "content", "no moov", "decode", "open",
    HeaderFacts("mp4", "h264", "High", "yuv420p", 8, "bt709", "bt709", "bt709", "limited",
                4, 4, 4, 4, 90, True, "1:1", 25.0, 25.0, 1.5, 9),
    PacketFacts(9, 9, -0.04, 0.3, True, "pts", (0, 5), (0.0, 0.25), 1, "proved", b"steps"),
    CONTENT,
    AudioFacts("aac", 48000, 2, 1.5, -0.02),
    erased=("x",), **DESCRIPTION,
)  # fmt: skip

WRONG: dict[Any, list[Any]] = {
    str: [5, True, ["a"], {"a": "b"}],
    int: ["5", 5.0, True, [5], {}],
    float: ["0.5", True, [0.5], {}],
    bool: [1, "true", []],
    bytes: ["not base64", 5, True, ["YQ=="], {}],
    tuple: ["ab", 5, {}, True],
    dict: ["ab", 5, [], True],
}
"""Values that are not of a type. JSON has lists and objects where Python has tuples and mappings."""


def wrong_values(field_type: Any) -> Iterator[Any]:
    kinds = get_args(field_type) if get_origin(field_type) in (Union, UnionType) else (field_type,)
    if NoneType not in kinds:
        yield None
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    if get_origin(kind) is Annotated:
        (limit,) = kind.__metadata__
        yield from ("0" * 15,) if limit.pattern else (limit.ge - 1, limit.lt if limit.le is None else 2 * limit.le)
        kind = kind.__origin__
    if get_origin(kind) is tuple:
        yield from ([value] for value in wrong_values(get_args(kind)[0]))
    elif get_origin(kind) is Mapping and get_args(kind)[1] is not Any:
        yield from ({"a": value} for value in wrong_values(get_args(kind)[1]))
    yield from WRONG.get(get_origin(kind) or kind, WRONG[dict])


def forged(record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every JSON form of a record with one wrong value, one key less or one key more, at any depth."""
    data = to_json(record)
    for field in msgspec.structs.fields(type(record)):
        name = field.name
        for value in wrong_values(field.type):
            yield f"{name}={value!r}", {**data, name: value}
        value = getattr(record, name)
        if isinstance(value, Record):
            yield from ((f"{name}.{where}", {**data, name: inner}) for where, inner in forged(value))
        if isinstance(value, tuple) and value and isinstance(value[0], Record):
            yield from ((f"{name}.{where}", {**data, name: [inner]}) for where, inner in forged(value[0]))
    if not isinstance(record, Header):  # a later version may add to the header
        yield "surprise", {**data, "surprise": 1}
    first = msgspec.structs.fields(type(record))[0]
    if first.required:
        yield f"no {first.name}", {name: value for name, value in data.items() if name != first.name}


def check_refusals(record: Record, read: Callable[[dict[str, Any]], object], message: str) -> None:
    """The record must be read, and every forged form of it refused by a message that names the file."""
    read(to_json(record))
    num_forged = 0
    for where, data in forged(record):
        with pytest.raises(DamageError, match=message):
            read(data)
            pytest.fail(f"read a {type(record).__name__} with {where}")
        num_forged += 1
    assert num_forged > 2 * len(msgspec.structs.fields(type(record)))


@pytest.mark.parametrize("record", [SIDECAR, HEADER, FAILURE, RECORD], ids=lambda record: type(record).__name__)
def test_a_sound_record_has_a_value_in_every_field_and_comes_back(record: Record) -> None:
    assert list(to_json(record)) == list(record.__struct_fields__)
    for line in (seal(record), seal_versioned(record)):
        assert unseal_as(line, "here", type(record), "a record") == record


def test_sidecars(tmp_path: Path) -> None:
    path = tmp_path / layout.sidecar_file(KEY)
    path.parent.mkdir(parents=True)

    def read(data: dict[str, Any]) -> None:
        path.write_text(seal({"format_version": FORMAT_VERSION, **data}) + "\n")
        read_sidecar(tmp_path, KEY)

    check_refusals(SIDECAR, read, f"'{path}' is damaged: it is not a sidecar")


def test_headers(tmp_path: Path) -> None:
    def read(data: dict[str, Any]) -> None:
        (tmp_path / "chordcache.json").write_text(seal({"format_version": FORMAT_VERSION, **data}) + "\n")
        read_header(tmp_path)

    check_refusals(HEADER, read, r"chordcache.json' is damaged: .*; run 'chordcache build' as before")


def test_quarantines(tmp_path: Path) -> None:
    def read(data: dict[str, Any]) -> None:
        (tmp_path / "quarantine.jsonl").write_text(seal(data) + "\n")
        Quarantine(tmp_path, {})

    check_refusals(FAILURE, read, r"quarantine.jsonl' is damaged: it is not a failure")


def test_indices(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    first = {"format": "chordcache-index", "format_version": FORMAT_VERSION, "roots": {"v": "/data"}, "level": None}

    def read(data: dict[str, Any]) -> None:
        path.write_text("".join(seal(line) + "\n" for line in (first, data, {"num_records": 1})))
        list(read_index(path))

    check_refusals(RECORD, read, r"index.jsonl, line 2' is damaged: it is not a record")


def test_undecodable_names_come_back() -> None:
    record = RECORD.replace(path="\udcff.mp4", extra={"\udc80": "\udcfe\U0001f600"})
    line = seal(record)
    assert "\\udcff" in line
    assert unseal_as(line, "here", VideoRecord, "a record") == record
    for field, wrong in (("label", 5), ("surprise", "\udcff")):
        with pytest.raises(DamageError, match="'here' is damaged: it is not a record"):
            unseal_as(seal({**to_json(record), field: wrong}), "here", VideoRecord, "a record")


@pytest.mark.parametrize("path", ["a.mp4", "\udcff.mp4"])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "[" * 100_000])
def test_numbers_that_are_not_finite_and_bombs(path: str, number: str) -> None:
    marked = seal_versioned(SIDECAR.replace(path=path, start_seconds=0.0625)).replace("0.0625", number)
    body = marked.rpartition(', "xxh3_128"')[0]
    for text in (body, body.replace('"silence": -1.5', f'"silence": {number}')):
        line = seal({"a": 1}).replace('{"a": 1', text)
        with pytest.raises(DamageError, match="damaged"):
            Sidecar.from_line(resealed(line), "here")


def resealed(line: str) -> str:
    body = line.rpartition(', "xxh3_128": "')[0]
    return f'{body}, "xxh3_128": "{hex128(body.encode())}"}}'


@pytest.mark.parametrize("record", [SIDECAR, HEADER, FAILURE], ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("changes", [{}, {"path": "\udcff.mp4"}, {"num_frames": "9"}, {"key": None}, {"config": 5}])
def test_another_version_is_not_damage_whatever_else_the_line_says(record: Record, changes: dict[str, Any]) -> None:
    data = {**to_json(record), **changes}
    for line in ({"format_version": OTHER_VERSION, **data}, {**data, "format_version": OTHER_VERSION}):
        with pytest.raises(ChordcacheError, match=f"got format version {OTHER_VERSION}"):
            unseal_as(seal(line), "here", type(record), "a record")


@pytest.mark.parametrize("is_first", [True, False])
def test_an_index_of_another_version(tmp_path: Path, is_first: bool) -> None:
    header, version = {"format": "chordcache-index", "roots": {}, "level": None}, {"format_version": OTHER_VERSION}
    line = {**version, **header} if is_first else {**header, **version}
    path = tmp_path / "index.jsonl"
    path.write_text(seal(line) + "\n" + seal({"num_records": 0}) + "\n")
    with pytest.raises(ChordcacheError, match=f"got format version {OTHER_VERSION}"):
        read_index(path)


@pytest.mark.parametrize("record", [SIDECAR, HEADER], ids=lambda record: type(record).__name__)
def test_the_version_may_stand_anywhere(record: Record) -> None:
    line = seal({**to_json(record), "format_version": FORMAT_VERSION})
    assert unseal_as(line, "here", type(record), "a record") == record


@pytest.mark.parametrize("path", ["a.mp4", "\udcff.mp4"])
def test_data_nested_to_any_depth_is_read_or_damage(path: str) -> None:
    """The parsers give up at depths of their own."""
    line = seal_versioned(SIDECAR.replace(path=path))
    assert Sidecar.from_line(line, "here").path == path
    num_damaged = 0
    for depth in (10, *range(400, 1100, 7)):
        nested = line.replace('"silence": -1.5', f'"silence": {"[" * depth}{"]" * depth}')
        try:
            assert Sidecar.from_line(resealed(nested), "here").path == path
        except DamageError:
            num_damaged += 1
    assert num_damaged
