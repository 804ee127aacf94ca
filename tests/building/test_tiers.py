"""Artefacts that stay, and that are made again, when tiers, features and parameters change between builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN
from helpers.inline import HERE
from helpers.processes import files_of, sidecars
from helpers.sealed import reseal

import chordcache as cc
from chordcache.config.config import Config, config_from_json
from chordcache.index.index_files import IndexWriter

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("tiers")
    make_video(folder / "videos" / "sound.mp4", num_frames=30, size=(160, 120), audio=True)
    make_video(folder / "videos" / "silent.mp4", num_frames=20, size=(160, 120))
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    return folder / "index.json"


def config(**features: Any) -> Config:
    frames = features.pop("frames", {})
    return config_from_json({"frames": frames, "features": features})


def index_of(index: Path, path: str, folder: Path) -> Path:
    """Write an index of one of the videos."""
    whole = cc.read_index(index)
    with IndexWriter(folder / "one.jsonl", roots=whole.roots, level=whole.level) as writer:
        writer.write(next(record for record in whole if record.path == path))
    return folder / "one.jsonl"


def features_of(cache: Path, path: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(feature["tier"], feature["feature"]): feature for feature in sidecars(cache)[path]["features"]}


def sound(cache: Path, wrapped: list[cc.Cache]) -> cc.Video:
    wrapped.append(cc.open_cache(cache))
    return next(video for video in wrapped[-1] if video.path == "sound.mp4")


@pytest.fixture
def opened() -> Any:
    caches: list[cc.Cache] = []
    yield lambda cache: sound(cache, caches)
    for cache in caches:
        cache.close()


def test_as_many_frames_are_not_the_same_frames(index: Path, tmp_path: Path) -> None:
    """At 12.5 and at 12.3 frames a second the clip keeps 15 frames, and not the same ones."""
    cache = tmp_path / "cache"
    cc.build(index, cache, config=config(frames={"fps": 12.5}), jobs=HERE)
    cc.build(index, cache, tiers=["npz"], features=["flow"], config=config(frames={"fps": 12.3}), jobs=HERE)
    assert {tier for tier, _ in features_of(cache, "sound.mp4")} == {"lmdb", "npz"}  # both of the new frames
    cc.build(index, cache, tiers=["lmdb", "npz"], features=["frames", "flow"], jobs=HERE)
    with cc.open_cache(cache) as opened:
        for video in opened:
            frames = [opened[video.key].sidecar.feature(name) for name in ("frames", "flow")]
            assert all(info is not None and info.params["picture"]["fps"] == 12.3 for info in frames)
    cc.collect_garbage(cache)
    assert cc.verify(cache, level="deep", source=True, jobs=HERE).damage == []


def test_all_features_are_of_pictures_of_one_size(index: Path, tmp_path: Path, opened: Any) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, jobs=HERE)
    cc.build(index, cache, tiers=["npz"], features=["flow"], config=config(frames={"short_side": 60}), jobs=HERE)
    video = opened(cache)
    assert (video.width, video.height) == (80, 60) == video.feature("frames").shape[2:0:-1]
    assert video.feature("flow").shape == (29, 60, 80, 2)


@pytest.mark.parametrize(("fps", "length"), [(5, 40), (12.5, 16)])
def test_sound_of_the_last_clip_is_as_long_as_of_the_others(
    index: Path, tmp_path: Path, fps: float, length: int
) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers=["npz"], features=["mel"], config=config(frames={"fps": fps}), jobs=HERE)
    with cc.open_cache(cache) as opened:
        video = next(video for video in opened if video.path == "sound.mp4")
        lengths = {opened.read(video, "mel", start, start + 2).shape for start in range(video.num_frames - 1)}
    assert lengths == {(80, length)}


def test_notes_of_kept_artefacts_are_kept(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos" / "a.mp4", num_frames=5, rotation=90, audio=True)
    cache = tmp_path / "cache"
    cc.build(cc.scan([tmp_path / "videos"], jobs=HERE), cache, jobs=HERE)
    assert sidecars(cache)["a.mp4"]["notes"] == ["turned 90 degrees clockwise"]
    path = next((cache / "videos").glob("*/*.json"))
    reseal(path, notes=["left eye cut out of side by side"])
    cc.build(cc.scan([tmp_path / "videos"], jobs=HERE), cache, tiers=["npz"], features=["mel"], jobs=HERE)
    assert sidecars(cache)["a.mp4"]["notes"] == ["left eye cut out of side by side", "turned 90 degrees clockwise"]


def test_an_absent_feature_leaves_the_file_alone(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers=["npz", "hdf5"], features=["flow"], jobs=HERE)
    before = files_of(cache)
    cc.build(index, cache, tiers=["npz", "hdf5"], features=["flow", "mel"], jobs=HERE)
    after = files_of(cache)
    for tier in ("npz", "hdf5"):
        file = features_of(cache, "silent.mp4")[tier, "flow"]["file"]["name"]
        assert before[file] == after[file]
        assert features_of(cache, "silent.mp4")[tier, "mel"]["absent"] == "no audio track"
        assert features_of(cache, "sound.mp4")[tier, "mel"]["file"]["name"] not in before
    assert features_of(cache, "sound.mp4")["npz", "flow"]["file"]["name"] in before
    cc.collect_garbage(cache)
    assert cc.verify(cache, level="deep", jobs=HERE).damage == []


def test_a_dropped_feature_that_was_absent_leaves_also_what_is_not_built(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers=["hdf5"], features=["flow", "mel"], jobs=HERE)
    drop = cc.BuildOptions(drop="mel")
    assert cc.build(index_of(index, "sound.mp4", tmp_path), cache, options=drop, jobs=HERE).num_done == 1
    assert {*features_of(cache, "silent.mp4")} == {("hdf5", "flow")}


def test_a_build_says_which_videos_keep_a_dropped_feature(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers=["hdf5"], features=["flow", "mel"], jobs=HERE)
    drop = cc.BuildOptions(drop="mel")
    cc.build(index_of(index, "silent.mp4", tmp_path), cache, options=drop, jobs=HERE, progress=True)
    assert "drop: mel: 1 cached video keeps it in a file with other features. Build with" in capsys.readouterr().err
    assert ("hdf5", "mel") in features_of(cache, "sound.mp4")


def test_repair_asks_each_tier_for_its_own(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers=["npz"], features=["mel"], jobs=HERE)
    cc.build(index, cache, tiers=["hdf5"], features=["flow"], jobs=HERE)
    (cache / features_of(cache, "sound.mp4")["hdf5", "flow"]["file"]["name"]).unlink()
    damage = cc.verify(cache, jobs=HERE).damage
    assert [finding.kind for finding in damage] == ["missing"]
    cc.repair(cache, damage)
    assert set(features_of(cache, "sound.mp4")) == {("npz", "mel"), ("hdf5", "flow")}
    assert cc.verify(cache, level="deep", source=True, jobs=HERE).damage == []


def test_a_failed_video_is_quarantined_and_not_incomplete(index: Path, tmp_path: Path, run_cli: Cli) -> None:
    mine = {"extractor": PLUG_IN, "fault": "ValueError", "at_frame": 25}
    (tmp_path / "mine.yaml").write_text(yaml.dump({"features": {"mine": mine}}))
    cache = tmp_path / "cache"
    cc.build(index, cache, jobs=HERE)
    build = ("build", index, "-o", cache, "-c", tmp_path / "mine.yaml", "--tier", "npz", "--features", "mine")
    assert run_cli(*build, env=ENVIRONMENT).returncode == 3
    result = run_cli("verify", cache, "--deep", env=ENVIRONMENT)
    assert (result.returncode, result.stdout) == (0, "intact: 2 videos, all checksums match\n")


def test_int8_flow_comes_in_pixels(index: Path, tmp_path: Path, opened: Any) -> None:
    data = {"hdf5": {"features": ["flow"]}}
    for dtype in ("float32", "int8"):
        cc.build(
            index,
            tmp_path / dtype,
            tiers=["npz", "hdf5"],
            features=["flow"],
            config=config_from_json({**data, "features": {"flow": {"dtype": dtype}}}),
            jobs=HERE,
        )
    exact, coded = opened(tmp_path / "float32"), opened(tmp_path / "int8")
    info = coded.feature("flow")
    assert (info.dtype, info.facts["clipped_share"]) == ("int8", 0.0)
    with cc.open_cache(tmp_path / "float32") as one, cc.open_cache(tmp_path / "int8") as other:
        for tier in ("npz", "hdf5"):
            scale = other.read(coded, "flow.scale", tier=tier)
            truth, flow = one.read(exact, "flow", 4, 20, tier=tier), other.read(coded, "flow", 4, 20, tier=tier)
            assert (flow.dtype, scale.shape) == (np.float32, (29,))
            assert np.all(np.abs(truth - flow) <= 0.51 * scale[4:20, None, None, None])
        out = np.empty_like(flow)
        assert other.read(coded, "flow", 4, 20, out=out) is out
        np.testing.assert_array_equal(out, flow)


def test_deep_compares_shapes_with_the_sidecar(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    floats = config_from_json({"features": {"flow": {"dtype": "float16"}}})
    cc.build(index, cache, tiers=["npz"], features=["flow"], config=floats, jobs=HERE)
    data = sidecars(cache)["silent.mp4"]
    (info,) = data["features"]
    for change in ({"dtype": "float32"}, {"shape": [19, 160, 120, 2]}):
        reseal(data["_sidecar"], features=[{**info, **change}])
        cc.collect_garbage(cache)  # rewrites the catalog
        assert cc.verify(cache, jobs=HERE).damage == []
        (finding,) = cc.verify(cache, level="deep", jobs=HERE).damage
        assert (finding.kind, finding.file) == ("damaged", info["file"]["name"])
        assert "got rows of 'flow' of ((120, 160, 2), 'float16'), expected " in finding.message
