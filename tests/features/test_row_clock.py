"""Rows that do not match frames one to one: each row is read with the frames that it covers, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import processes

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.storage.row_clock import FrameGroups

CAUSAL = {"frames_per_row": 4, "frames_in_first_row": 1}

NUM_FRAMES = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    make_video(folder / "videos/a.mp4", num_frames=NUM_FRAMES)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder


def build(folder: Path, cache: Path, *, index: str = "index.json", **params: Any) -> Path:
    """Build the feature "groups" of the extractor with these parameters, and frames."""
    section = {"extractor": "helpers.row_extractors:Groups", **params}
    cache.parent.mkdir(exist_ok=True)
    config = cache.with_suffix(".yaml")
    config.write_text(yaml.dump({"features": {"groups": section, "flow": None, "mel": None, "motion": None}}))
    cc.build(folder / index, cache, tiers=["lmdb", "npz"], config=config, jobs=Engine("inline"))
    return cache


@pytest.mark.parametrize(
    ("first", "others", "clip"),
    [
        *((1, 4, None), (1, 1, None), (2, 8, None), (32, 5, None)),
        *((1, 4, 9), (1, 4, 1), (1, 4, 21), (2, 3, 5)),
    ],
)
def test_reading_frames_returns_the_rows_that_cover_them(
    folder: Path, tmp_path: Path, first: int, others: int, clip: int | None
) -> None:
    facts = {"frames_per_row": others, "frames_in_first_row": first, **({"frames_per_clip": clip} if clip else {})}
    cache = build(folder, tmp_path / "cache", facts=facts)
    with cc.open_cache(cache) as opened:
        rows = opened.read(0, "groups")
        assert rows[0, 0] == 0
        assert rows[-1, 1] == NUM_FRAMES - 1
        for start in range(NUM_FRAMES):
            for stop in range(start + 1, NUM_FRAMES + 1):
                groups = opened.read(0, "groups", start, stop)
                covering = rows[(rows[:, 1] >= start) & (rows[:, 0] < stop)]
                assert np.array_equal(groups, covering)
        numbers = np.array([17, 3, 3, 12])
        wanted = [row for row in rows if any(row[0] <= number <= row[1] for number in numbers)]
        assert np.array_equal(opened.read(0, "groups", indices=numbers), wanted)
        assert opened.read(0, "groups", 5, 5).shape == (0, 2)


def test_frames_after_the_last_group(folder: Path, tmp_path: Path) -> None:
    """20 frames are 1 + 4 * 4 + 3. An extractor that drops the last three leaves them without a row."""
    cache = build(folder, tmp_path / "cache", facts=CAUSAL, keeps_rest=False)
    with cc.open_cache(cache) as opened:
        assert opened.read(0, "groups", 0, 17).tolist() == [[0, 0], [1, 4], [5, 8], [9, 12], [13, 16]]
        for numbers in ({"start": 0, "stop": 18}, {"indices": [19]}):
            with pytest.raises(cc.UsageError, match=r"^frames: got number \d+, expected less than 17\. 'groups' of"):
                opened.read(0, "groups", **numbers)
        with pytest.raises(IndexError):
            opened.read(0, "groups", indices=[20])
    cache = build(folder, tmp_path / "clips", facts={**CAUSAL, "frames_per_clip": 9}, keeps_rest=False)
    with cc.open_cache(cache) as opened:
        assert opened.read(0, "groups", 7, 19).tolist() == [[5, 8], [9, 9], [10, 13], [14, 17], [18, 18]]
        with pytest.raises(cc.UsageError, match=r"^frames: got number 19, expected less than 19\. 'groups' of"):
            opened.read(0, "groups", 0, 20)


def test_rows_of_the_video(folder: Path, tmp_path: Path) -> None:
    cache = build(folder, tmp_path / "cache", facts={"is_of_video": True})
    expected = np.arange(15).reshape(5, 3)
    with cc.open_cache(cache) as opened:
        for given in ({}, {"start": 3, "stop": 5}, {"indices": [7]}):
            assert np.array_equal(opened.read(0, "groups", **given), expected)


@pytest.mark.parametrize("facts", [CAUSAL, {"is_of_video": True}])
def test_a_clip_of_the_dataset(folder: Path, tmp_path: Path, facts: dict[str, Any]) -> None:
    cache = build(folder, tmp_path / "cache", facts=facts)
    sampler = cc.RegularClipSampler(num_frames=8, stride=1)
    dataset = cc.ChordVideoDataset(cache, clip_sampler=sampler, features=("groups",))
    sample = dataset[0]
    groups = np.asarray(sample["groups"])
    with cc.open_cache(cache) as opened:
        numbers = np.searchsorted(opened[0].pts_seconds, np.asarray(sample["pts_seconds"]))
    if "is_of_video" in facts:
        assert groups.shape == (5, 3)
    else:
        assert groups[0, 0] <= numbers[0] <= groups[0, 1]
        assert groups[-1, 0] <= numbers[-1] <= groups[-1, 1]
    assert "frames" not in sample


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "expected one clock: row_seconds, start_seconds, silence; or frames_per_row"),
        ({"frames_per_row": 4}, "expected the whole numbers frames_per_row and frames_in_first_row, above 0"),
        ({"frames_per_row": 0, "frames_in_first_row": 1}, "expected the whole numbers"),
        ({"frames_per_row": True, "frames_in_first_row": 1}, "expected the whole numbers"),
        ({"is_of_video": 1}, "expected is_of_video: true"),
        ({**CAUSAL, "frames_per_clip": 8}, "expected frames_per_clip to be frames_in_first_row plus a multiple"),
        ({**CAUSAL, "frames_per_clip": 0}, "expected frames_per_clip to be frames_in_first_row plus"),
        ({**CAUSAL, "row_seconds": 1.0}, "expected one clock"),
        ({"row_seconds": 0.0, "start_seconds": 0.0, "silence": 0}, "row_seconds above 0"),
    ],
)
def test_facts_that_describe_no_clock(folder: Path, tmp_path: Path, facts: dict[str, Any], message: str) -> None:
    cache = build(folder, tmp_path / "cache", facts=facts)
    failures = processes.quarantine(cache)
    assert re.search(re.escape(message), failures["a.mp4"]["message"])
    assert failures["a.mp4"]["cause"] == "extractor"


def test_groups_of_segments_begin_with_them(folder: Path, tmp_path: Path) -> None:
    (folder / "segments.csv").write_text("path,start_frame,end_frame\nvideos/a.mp4,3,9\nvideos/a.mp4,9,20\n")
    cache = build(folder, tmp_path / "own", index="segments.csv", facts=CAUSAL)
    with cc.open_cache(cache) as opened:
        assert sorted(opened.read(key, "groups")[-1, 1] for key in opened.keys()) == [5, 10]  # noqa: SIM118


def test_the_number_of_rows_of_a_video() -> None:
    groups = FrameGroups(1, 4)
    assert [list(groups.num_rows(num_frames)) for num_frames in (0, 1, 2, 5, 6, 9)] == [
        *([0], [1], [1, 2], [2], [2, 3], [3]),
    ]
    assert list(FrameGroups(4, 4).num_rows(3)) == [0, 1]
    clips = FrameGroups(1, 4, 9)
    assert [list(clips.num_rows(num_frames)) for num_frames in (0, 1, 9, 10, 11, 14, 18, 20)] == [
        *([0], [1], [3], [4], [4, 5], [5], [6], [7, 8]),
    ]
