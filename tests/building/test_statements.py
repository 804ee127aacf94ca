"""A build takes no label, caption or column away unless an empty cell says so, and never mixes settings in silence."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.inline import HERE

import chordcache as cc
from chordcache.building.build_options import BuildOptions
from chordcache.building.planning import make_plan, write_plan
from chordcache.errors import UsageError
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index, cached_index, read_index
from chordcache.index.lists.write import index_list
from chordcache.look.summary import summarize
from chordcache.records import Description

Statements = dict[str, dict[str, Any]]

NAMES = ("up/a b.mp4", "up/c.mp4", "d.mp4")
COLUMNS = {"label": ["kick", "été", "7"], "caption": ["a man, asleep", "two"], "who": ["x", "y"], "n:int": [0, 3]}


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Three short videos, two of them in a folder."""
    folder = tmp_path_factory.mktemp("statements") / "clips"
    for name in NAMES:
        make_video(folder / name, num_frames=10, size=(32, 32))
    cc.scan(folder, jobs=HERE).write(folder.parent / "silent.json")
    return folder


def stated(item: Description) -> dict[str, Any]:
    """Return what an item states, without empty values."""
    all_of_it = {"label": item.label, "caption": item.caption, **item.extra}
    return {name: value for name, value in all_of_it.items() if value not in (None, "")}


def write_csv(path: Path, rows: Mapping[str, Mapping[str, Any]], columns: list[str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *columns])
        writer.writerows([name, *(row[column] for column in columns)] for name, row in rows.items())
    return path


def random_index(videos: Path, folder: Path, rng: random.Random, model: Statements) -> Path | Index:
    """Write an index that states something of some videos, and apply it to the model."""
    kind = rng.choice(("list", "list", "json", "labels", "silent"))
    columns = rng.sample([*COLUMNS], rng.randint(0, len(COLUMNS)))
    names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
    rows = {name: {column: rng.choice([*COLUMNS[column], ""]) for column in columns} for name in names}
    if kind == "silent":
        return read_index(videos.parent / "silent.json")
    for name, row in rows.items():
        for column, value in row.items():
            field = column.partition(":")[0]
            if value != "":
                model[name][field] = value
            elif kind != "json":
                model[name].pop(field, None)
    if kind == "json":
        some = [{"path": name, **{c: v for c, v in row.items() if v != ""}} for name, row in rows.items()]
        (folder / "list.json").write_text(json.dumps(some))
        index_list(folder / "list.json", folder / "index.json", videos=videos)
        return folder / "index.json"
    if kind == "labels":
        return cc.scan(videos, jobs=HERE, level="headers", labels=write_csv(folder / "labels.csv", rows, columns))
    return write_csv(videos / "list.csv", rows, columns)


def test_random_histories_keep_what_no_cell_erases(videos, tmp_path):
    for seed in range(40):
        rng, model, cache = random.Random(seed), {name: {} for name in NAMES}, tmp_path / str(seed)
        named: set[str] = set()
        for _ in range(rng.randint(2, 4)):
            index = random_index(videos, tmp_path, rng, model)
            plan = make_plan(cache, index, None, None, None, roots=None, options=BuildOptions())
            with IndexRows(plan.index) as rows:
                write_plan(plan, rows.keys, prune=False)
            named |= {record.path for record in plan.index}
            kept = {record.path: stated(record) for record in cached_index(cache)}
            assert kept == {name: model[name] for name in named}, seed
        shutil.rmtree(cache)


def test_builds_keep_what_no_cell_erases(videos, tmp_path):
    rng, model, cache = random.Random(5), {name: {} for name in NAMES}, tmp_path / "cache"
    cc.build(videos, cache, jobs=HERE)
    for _ in range(12):
        before = json.loads(json.dumps(model))
        index = random_index(videos, tmp_path, rng, model)
        planned = cc.dry_run(index, cache)
        summary = cc.build(index, cache, jobs=HERE)
        with cc.open_cache(cache) as opened:
            assert {video.path: stated(video.sidecar.about) for video in opened} == model
        gone = sum(len(before[name].keys() - model[name].keys()) for name in NAMES)
        changed = sum(
            before[name][field] != value
            for name in NAMES
            for field, value in model[name].items()
            if field in before[name]
        )
        for losses in (planned.losses, summary.losses):
            assert sum(count for name, count in losses.items() if name.endswith("gone")) == gone
            assert sum(count for name, count in losses.items() if name.endswith("changed")) == changed


def test_the_last_line_counts_what_goes_and_names_prune(videos, tmp_path, run_cli):
    full = {name: dict.fromkeys(("label", "caption"), "old") for name in NAMES}
    run_cli("build", write_csv(videos / "full.csv", full, ["label", "caption"]), "-o", tmp_path / "c", "-j", "1")
    some = write_csv(videos / "some.csv", {NAMES[0]: {"label": ""}, NAMES[1]: {"label": "new"}}, ["label"])
    for option in (["--dry-run"], []):
        result = run_cli("build", some, "-o", tmp_path / "c", "-j", "1", *option)
        assert "labels changed 1, labels gone 1" in result.stdout
        assert "does not name 1 cached video, which --prune drops" in result.stdout
    with pytest.warns(UserWarning, match=r"^label: got none for 1 of 3 videos, whose label is -1"):
        cc.ChordVideoDataset(tmp_path / "c")
    run_cli("build", videos, "-o", tmp_path / "c", "-j", "1")
    with cc.open_cache(tmp_path / "c") as cache:
        assert [video.label for video in cache] == [None, "new", "old"]
        assert [video.caption for video in cache] == ["old"] * 3


@pytest.mark.parametrize("values", [(1.5, "high"), ("high", 1.5)])
def test_text_beside_numbers_of_a_column_is_refused(videos, tmp_path, values):
    for number, value in enumerate(values):
        (tmp_path / f"{number}.json").write_text(json.dumps([{"path": NAMES[number], "rank": value}]))
        index_list(tmp_path / f"{number}.json", tmp_path / f"i{number}.json", videos=videos)
    for one, other in (("i0.json", "i1.json"), ("i1.json", "i0.json")):
        cc.build(tmp_path / one, tmp_path / f"of {one}", jobs=HERE)
        before = (tmp_path / f"of {one}" / "index.jsonl").read_bytes()
        with pytest.raises(UsageError, match=r"c\.mp4': column 'rank'|b\.mp4': column 'rank'"):
            cc.build(tmp_path / other, tmp_path / f"of {one}", jobs=HERE)
        assert (tmp_path / f"of {one}" / "index.jsonl").read_bytes() == before
    with pytest.raises(UsageError, match="column 'rank'"):
        cc.merge([tmp_path / "of i0.json", tmp_path / "of i1.json"], tmp_path / "both")


@pytest.mark.parametrize("values", [("high", 1.5), ("3", 3), ("yes", True), ("1, 2", [1, 2])])
def test_a_column_of_two_types_after_an_interrupted_build_is_named_when_a_dataset_opens(videos, tmp_path, values):
    for number, value in enumerate(values):
        rows = [{"path": name, "rank": value} for name in NAMES]
        (tmp_path / f"{number}.json").write_text(json.dumps(rows))
        index_list(tmp_path / f"{number}.json", tmp_path / f"i{number}.json", videos=videos)
    cache = tmp_path / "cache"
    cc.build(tmp_path / "i0.json", cache, jobs=HERE)
    plan = make_plan(cache, tmp_path / "i1.json", None, None, None, roots=None, options=BuildOptions())
    with IndexRows(plan.index) as rows:
        write_plan(plan, rows.keys, prune=False)
    with pytest.raises(UsageError, match=r"^fields: got 'rank' with values of .* Run it again to its end"):
        cc.ChordVideoDataset(cache, fields=["rank"])
    read = cc.videos.indexed(tmp_path / "i1.json", cache)
    cc.ChordVideoDataset(read, fields=["rank"], clip_sampler=SAMPLER)[0]
    cc.build(tmp_path / "i1.json", cache, jobs=HERE)
    cc.ChordVideoDataset(cache, fields=["rank"], clip_sampler=SAMPLER)[0]


# Settings


@pytest.fixture
def mixed(videos, tmp_path) -> Path:
    """A cache in which one of three videos was away when the settings changed."""
    folder = shutil.copytree(videos, tmp_path / "clips")
    cc.scan(folder, jobs=HERE).write(tmp_path / "index.json")
    cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=HERE)
    (tmp_path / "fps.yaml").write_text("frames: {fps: 5}\n")
    (folder / "d.mp4").rename(tmp_path / "away.mp4")
    cc.build(tmp_path / "index.json", tmp_path / "cache", config=tmp_path / "fps.yaml", jobs=HERE)
    (tmp_path / "away.mp4").rename(folder / "d.mp4")
    return tmp_path


def step_of(sample: Mapping[str, Any]) -> float:
    return round(float(np.diff(sample["pts_seconds"])[0]), 2)


SAMPLER = cc.RegularClipSampler(num_frames=2, stride=1)


def test_a_video_of_other_settings_in_quarantine_is_left_out(mixed):
    with pytest.warns(UserWarning, match=r"left out 1 of 3 videos: 1 in quarantine \(io 1\)"):
        dataset = cc.ChordVideoDataset(mixed / "cache", clip_sampler=SAMPLER)
    assert [step_of(sample) for sample in dataset] == [0.2, 0.2]
    with pytest.warns(UserWarning, match="left out 1 of 3 videos"):
        assert cc.export(mixed / "cache", mixed / "out", to="folder").num_samples == 2
    read = cc.videos.indexed(mixed / "index.json", mixed / "cache", on_miss="source")
    assert [step_of(sample) for sample in cc.ChordVideoDataset(read, clip_sampler=SAMPLER)] == [0.2] * 3


def test_videos_of_other_settings_are_named_once(mixed):
    text = "1 of 3 videos have frames of other settings (frames.fps: none, 5); run chordcache build"
    assert summarize(mixed / "cache")["other_settings"] == text
    (mixed / "cache" / "quarantine.jsonl").unlink()
    read = cc.videos.indexed(mixed / "index.json", mixed / "cache")
    for dataset in (mixed / "cache", read):
        with pytest.warns(UserWarning, match="of other settings") as warned:
            cc.ChordVideoDataset(dataset, clip_sampler=SAMPLER)
        assert [str(warning.message) for warning in warned] == [text]
    with pytest.warns(UserWarning, match="1 of 3 videos have frames of other settings"):
        cc.export(mixed / "cache", mixed / "out", to="folder")
    cc.build(mixed / "index.json", mixed / "cache", jobs=HERE)
    assert "other_settings" not in summarize(mixed / "cache")
    cc.ChordVideoDataset(mixed / "cache", clip_sampler=SAMPLER)


# Arguments


def test_all_configs_count_in_order(videos, tmp_path, run_cli):
    (tmp_path / "one.yaml").write_text("frames: {codec: mpeg4, quantizer: 4, fps: 5}\nfeatures: {motion: {}}\n")
    (tmp_path / "two.yaml").write_text("frames: {codec: jpeg}\nfeatures: {motion: null}\n")
    options = ["--dry-run", "--json", "-o", tmp_path / "c"]
    data = json.loads(
        run_cli("build", videos, *options, "-c", tmp_path / "one.yaml", "-c", tmp_path / "two.yaml").stdout
    )
    frames = data["features"]["lmdb"]["frames"]
    assert (frames["codec"], frames["picture"]["fps"], [*data["features"]]) == ("jpeg", 5, ["lmdb"])
    both = [tmp_path / "two.yaml", tmp_path / "one.yaml"]
    assert [*cc.dry_run(videos, tmp_path / "c", config=both).features] == ["lmdb", "npz"]


@pytest.mark.parametrize(
    "arguments", [{"features": "nope"}, {"roots": {"other": "/"}}, {"config": "none.yaml"}, {"tiers": "zip"}]
)
def test_other_arguments_are_checked_before_a_scan(videos, tmp_path, monkeypatch, arguments):
    monkeypatch.setattr("chordcache.index.scan.scan", lambda *_, **__: pytest.fail("scanned"))
    for function in (cc.build, cc.dry_run):
        with pytest.raises((UsageError, cc.NotFoundError)):
            function(videos, tmp_path / "c", **arguments)
