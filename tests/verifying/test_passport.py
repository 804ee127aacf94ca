"""Passports: equal for equal data on any machine, and another one, with the difference by name, for other data."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.inline import HERE

import chordcache as cc
from chordcache.building.pack import pack
from chordcache.errors import DamageError, NotFoundError, UsageError
from chordcache.verifying.passport import Passport, read_passport

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

SPLITS = {"train": ["v/0.mp4", "v/1.mp4"], "val": ["v/2.mp4"]}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """videos/v with four clips, their index, and cache/."""
    work = tmp_path_factory.mktemp("passports")
    for number in range(4):
        make_video(work / f"videos/v/{number}.mp4", num_frames=6 + number)
    build(work, work / "cache")
    return work


def build(work: Path, cache: Path, **arguments: object) -> Path:
    cc.scan([work / "videos"], output=work / "index.json", labels="dir", jobs=HERE)
    cc.build(work / "index.json", cache, **{"jobs": HERE, **arguments})
    return cache


@pytest.fixture
def other(work: Path, tmp_path: Path) -> Path:
    """A copy of the videos that a test may change."""
    return Path(shutil.copytree(work / "videos", tmp_path / "videos")).parent


def differences(work: Path, cache: Path, **arguments: object) -> list[str]:
    expected = cc.passport(work / "cache", splits=SPLITS)
    return [what for _, what in cc.passport(cache, **{"splits": SPLITS, **arguments}).differences(expected)]


def test_the_same_data_give_the_same_passport(work: Path, other: Path, tmp_path: Path) -> None:
    cc.passport(work / "cache", tmp_path / "expected.json", splits=SPLITS)
    build(other, tmp_path / "again", tiers=["hdf5"], features=["frames"], jobs=2)
    for number in (1, 2, 3):
        options = cc.BuildOptions(part=f"{number}/3")
        cc.build(other / "index.json", tmp_path / f"parts/{number}", jobs=HERE, options=options)
    assert differences(work, tmp_path / "again") == []
    cc.merge(sorted((tmp_path / "parts").iterdir()), tmp_path / "joined", move=True)
    pack(tmp_path / "again", tmp_path / "packed")
    for name in ("again", "joined", "packed"):
        cc.passport(
            tmp_path / name, tmp_path / f"{name}.json", splits={name: SPLITS[name] for name in ("val", "train")}
        )
        assert (tmp_path / f"{name}.json").read_bytes() == (tmp_path / "expected.json").read_bytes()


def test_one_changed_frame_is_named(
    work: Path, other: Path, tmp_path: Path, make_video: Callable[..., Path], frame_planes: Callable[..., object]
) -> None:
    make_video(other / "videos/v/1.mp4", num_frames=7, planes=lambda n, w, h: frame_planes(n + (n == 3), w, h))
    [what] = differences(work, build(other, tmp_path / "cache"))
    assert what.startswith("content_id: got ")


def test_another_label_is_named(work: Path, other: Path, tmp_path: Path) -> None:
    build(other, tmp_path / "cache")
    index = cc.read_index(other / "index.json")
    with index.writer(other / "again.json") as writer:
        for record in index:
            writer.write(record.replace(label="w") if record.path == "v/2.mp4" else record)
    cc.build(other / "again.json", tmp_path / "cache", jobs=HERE)
    [what] = differences(work, tmp_path / "cache")
    assert what == "label: got w, expected v"


def test_other_settings_and_features_are_named(work: Path, other: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("frames: {short_side: 32}\n")
    for name, value, feature in (
        ("config", tmp_path / "config.yaml", "frames"),
        ("features", ["frames", "mel"], "mel"),
    ):
        named = differences(work, build(other, tmp_path / name, **{name: value}))
        assert [what.partition(":")[0] for what in named] == [feature] * 4


def test_another_split_and_missing_videos_are_named(work: Path, other: Path, tmp_path: Path) -> None:
    splits = {"train": ["v/0.mp4"], "val": ["v/1.mp4", "v/2.mp4"]}
    assert differences(work, work / "cache", splits=splits) == ['splits: got ["val"], expected ["train"]']
    (other / "videos/v/3.mp4").unlink()
    assert differences(work, build(other, tmp_path / "cache")) == ["is not in the cache"]


def test_the_source_is_read_on_request(work: Path, other: Path, tmp_path: Path) -> None:
    passport = cc.passport(work / "cache", tmp_path / "p.json", source=True, jobs=HERE)
    assert {row.path: row.sha256 for row in passport.rows.values()} == {
        f"v/{number}.mp4": hashlib.sha256((work / f"videos/v/{number}.mp4").read_bytes()).hexdigest()
        for number in range(4)
    }
    assert (passport.findings, passport.root) == ({}, cc.passport(work / "cache").root)
    assert read_passport(tmp_path / "p.json") == passport
    build(other, tmp_path / "cache")
    with (other / "videos/v/2.mp4").open("ab") as file:
        file.write(b"\0")
    assert cc.passport(tmp_path / "cache", source=True, jobs=HERE).findings == {"num_stale": 1}


# The command line


def test_verify_compares_with_a_passport(work: Path, run_cli: Cli, tmp_path: Path) -> None:
    passport, train, val = tmp_path / "p.json", tmp_path / "train.txt", tmp_path / "val.txt"
    train.write_text("v/0.mp4\nv/1.mp4\n")
    val.write_text("v/2.mp4\n")
    done = run_cli("passport", work / "cache", f"train={train}", f"val={val}", "-o", passport)
    root = read_passport(passport).root
    assert (done.returncode, done.stdout) == (0, f"{passport}: 4 videos, root {root}\n")
    assert run_cli("verify", work / "cache", "-j1", "--against", passport).returncode == 0
    same = run_cli("verify", work / "cache", "-j1", "--quick", "--against", passport, "--splits", train, val)
    assert "another:" not in same.stdout
    done = run_cli("verify", work / "cache", "-j1", "--quick", "--against", passport, "--splits", val, train)
    assert done.returncode == 6
    assert 'another: \'v/2.mp4\': splits: got ["train"], expected ["val"]' in done.stdout


def test_a_wrong_passport_is_refused_before_the_check(work: Path, run_cli: Cli, tmp_path: Path) -> None:
    for cache in (work / "cache", tmp_path / "cache"):  # the second one does not exist
        done = run_cli("verify", cache, "-j1", "--against", tmp_path / "p.json")
        assert "p.json', which cannot be read: No such file or directory" in done.stderr


def test_a_wrong_split_is_refused_before_the_check(work: Path, run_cli: Cli) -> None:
    done = run_cli("verify", work / "cache", "-j1", "--part", "3/2", "--splits", "x=1", "x=2")
    assert "--splits: got 'x=1', expected a split file or COLUMN=VALUE." in done.stderr


def test_a_damaged_cache_is_not_compared_with_a_passport(other: Path, run_cli: Cli, tmp_path: Path) -> None:
    build(other, tmp_path / "cache")
    cc.passport(tmp_path / "cache", tmp_path / "p.json")
    (tmp_path / "cache/catalog.bin").write_bytes(b"")
    done = run_cli("verify", tmp_path / "cache", "-j1", "--against", tmp_path / "p.json")
    assert (done.returncode, "damaged: 'catalog.bin'" in done.stdout) == (5, True), done
    assert "note: the splits are not compared, nor is a passport. Repair the damage first" in done.stderr


@pytest.mark.parametrize("splits", [["train"], ["train="], ["a=x.txt", "a=x.txt"]])
def test_splits_need_a_name_and_a_file(work: Path, run_cli: Cli, tmp_path: Path, splits: list[str]) -> None:
    done = run_cli("passport", work / "cache", *splits, "-o", tmp_path / "p.json")
    assert done.returncode == 2
    assert "expected NAME=FILE, each name once" in done.stderr


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda text: text.replace("v/1.mp4", "v/9.mp4"), DamageError, "It was edited"),
        (lambda text: re.sub(r'(splits": {[^}]*)"val"', r'\1"test"', text, count=1), DamageError, "It was edited"),
        (
            lambda text: text.replace('"format_version": 1', '"format_version": 2'),
            UsageError,
            "of format 2, expected 1",
        ),
        (lambda text: text[: len(text) // 2], UsageError, "is not a whole passport"),
        (lambda text: "[" * 100_000, UsageError, "is not a whole passport"),
        (
            lambda text: text.replace('"videos/features": "{', '"videos/features": "[{'),
            UsageError,
            "not a whole passport",
        ),
        (lambda text: "{}", UsageError, "is not a whole passport"),
        (lambda text: text.replace('"videos/num_frames": 6', '"videos/num_frames": "6"'), UsageError, "num_frames"),
        (lambda text: text.replace('"videos/num_frames": 6', '"videos/num_frames": NaN'), UsageError, "NaN"),
        (lambda text: re.sub(r'(/splits": )".*"', r'\1"1"', text, count=1), UsageError, "is not a whole passport"),
        (lambda text: re.sub(r'(/splits": )".*"', r'\1"[[]]"', text, count=1), UsageError, "is not a whole passport"),
        (lambda text: re.sub(r'(/splits": )".*"', r'\1"{"', text, count=1), UsageError, "is not a whole passport"),
    ],
)
def test_another_file_is_refused(
    work: Path, tmp_path: Path, change: Callable[[str], str], error: type[Exception], message: str
) -> None:
    path = tmp_path / "p.json"
    cc.passport(work / "cache", path, splits=SPLITS)
    path.write_text(change(path.read_text()))
    with pytest.raises(error, match=message):
        read_passport(path)


def test_a_row_that_stands_twice_is_refused(work: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    cc.passport(work / "cache", path)
    document = json.loads(path.read_text())
    document["recordSet"][0]["data"].append(document["recordSet"][0]["data"][0])
    path.write_text(json.dumps(document))
    with pytest.raises(DamageError, match="It was edited"):
        read_passport(path)


def test_names_that_are_not_unicode_are_read(work: Path, tmp_path: Path) -> None:
    [first, *_] = cc.passport(work / "cache").rows.values()
    passport = Passport({first.key: first.replace(path="v/\udcff.mp4", splits='["\\udcff"]')})
    passport.write(tmp_path / "p.json")
    assert read_passport(tmp_path / "p.json") == passport


def test_a_passport_in_a_cache_is_refused(other: Path, tmp_path: Path) -> None:
    build(other, tmp_path / "cache")
    with pytest.raises(UsageError, match=r"^output: got '.*p\.json', which is inside the cache '"):
        cc.passport(tmp_path / "cache", tmp_path / "cache/p.json")


def test_a_passport_that_is_not_there(work: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"p\.json', which cannot be read: No such file or directory"):
        read_passport(tmp_path / "p.json")


def test_a_passport_of_many_videos_is_read_in_little_time(work: Path, tmp_path: Path) -> None:
    [first, *_] = cc.passport(work / "cache").rows.values()
    rows = {key: first.replace(key=key) for key in (f"{number:07}-{number:016x}" for number in range(100_000))}
    Passport(rows).write(tmp_path / "p.json")
    assert len(read_passport(tmp_path / "p.json").rows) == 100_000
