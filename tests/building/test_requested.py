"""A build makes what it is asked for, and a cache loses nothing that it was not asked to lose."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.config import Config, config_from_json
from chordcache.errors import UsageError
from chordcache.look.summary import summarize

Cli = Callable[..., Any]

SMALL = "frames: {short_side: 48}\nfeatures: {flow: {method: dis, preset: ultrafast}}\n"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Two short videos with sound."""
    folder = tmp_path_factory.mktemp("asked")
    for name in ("a", "b"):
        make_video(folder / "videos" / f"{name}.mp4", num_frames=10, size=(64, 48), audio=True)
    cc.scan([folder / "videos"], jobs=HERE).write(folder / "index.json")
    (folder / "small.yaml").write_text(SMALL)
    return folder / "index.json"


def requested(*arguments: Any, **options: Any) -> dict[str, tuple[str, ...]]:
    """Return what a build with these arguments would make."""
    return {tier: tuple(names) for tier, names in cc.dry_run(*arguments, sample=0, **options).features.items()}


def features_of(cache: Path) -> dict[str, tuple[str, ...]]:
    """Return what the header lists, after a check that each video has it."""
    listed = {tier: tuple(names) for tier, names in summarize(cache)["features"].items()}
    with cc.open_cache(cache) as opened:
        for video in opened:
            assert {(info.tier, info.feature) for info in video.sidecar.features} == {
                (tier, name) for tier, names in listed.items() for name in names
            }
    return listed


def files_of(cache: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in cache.glob("*/??/*") if path.suffix != ".json"}


# A config changes only what it names


@pytest.mark.parametrize("as_object", [False, True])
def test_a_config_of_one_feature_keeps_the_others(index, tmp_path, as_object):
    cache, sound = tmp_path / "cache", tmp_path / "sound.yaml"
    cc.build(index, cache, features=["frames", "mel"], config=index.parent / "small.yaml", jobs=HERE)
    before = files_of(cache)
    sound.write_text("features: {waveform: {sample_rate: 8000}}\n")
    config = config_from_json({"features": {"waveform": {"sample_rate": 8000}}}) if as_object else sound
    cc.build(index, cache, tiers="npz", features="waveform", config=config, jobs=HERE)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("waveform", "mel")}
    # An object names all settings of the pictures, so it makes the other features of them again
    assert bool(cc.collect_garbage(cache)) == as_object == (not before.items() <= files_of(cache).items())
    assert cc.build(index, cache, jobs=HERE).num_up_to_date == 2


def test_null_and_presets_take_nothing_out(index, tmp_path):
    cache = tmp_path / "cache"
    cc.build(index, cache, features=["frames", "mel"], config=index.parent / "small.yaml", jobs=HERE)
    before = files_of(cache)
    cc.build(index, cache, config="flow", jobs=HERE)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel", "flow")}
    assert before.items() <= files_of(cache).items()  # small frames stay small
    (tmp_path / "null.yaml").write_text("frames: null\nfeatures: {mel: null, flow: null}\n")
    assert cc.build(index, cache, config=tmp_path / "null.yaml", jobs=HERE).num_up_to_date == 2
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel", "flow")}


def test_settings_of_the_cache_stay_unless_a_config_names_them(index, tmp_path):
    cache = tmp_path / "cache"
    (tmp_path / "quality.yaml").write_text("frames: {quality: 70}\n")
    (tmp_path / "rate.yaml").write_text("features: {mel: {n_mels: 40}}\n")
    cc.build(index, cache, config=tmp_path / "quality.yaml", jobs=HERE)
    cc.build(index, cache, config=tmp_path / "rate.yaml", jobs=HERE)
    config = config_from_json(summarize(cache)["config"])
    assert config.frames is not None
    assert (config.frames.quality, config.features["mel"].n_mels) == (70, 40)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel",)}


def test_other_frames_take_the_other_features_with_them(index, tmp_path):
    """Rows of mel and flow belong to frames. They are built again, not lost, if only the frames are asked for."""
    cache = tmp_path / "cache"
    cc.build(index, cache, features=["frames", "mel", "flow"], config=index.parent / "small.yaml", jobs=HERE)
    (tmp_path / "rate.yaml").write_text("frames: {fps: 5}\n")
    cc.build(index, cache, features="frames", config=tmp_path / "rate.yaml", jobs=HERE)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel", "flow")}
    cc.collect_garbage(cache)
    assert cc.verify(cache, source=True, jobs=HERE).damage == []
    with cc.open_cache(cache) as opened:
        for video in opened:
            assert len(opened.read(video, "flow", 0, video.num_frames - 1)) == video.num_frames - 1


@pytest.mark.parametrize(
    ("setting", "default"), [({"buckets": [[24, 32, 1]]}, {"buckets": None}), ({"fps": 10}, {"fps": None})]
)
def test_an_item_is_of_the_pictures_of_the_last_build(index, tmp_path, setting, default):
    """Also if the numbers of their frames are the same: the part of the picture or the duration is not."""
    (tmp_path / "list.csv").write_text(f"path,start_frame,end_frame\n{index.parent}/videos/a.mp4,7,8\n")

    def sidecar_of(name: str, *settings: dict[str, Any]) -> Any:
        for frames in settings:
            config = config_from_json({"frames": frames})
            cc.build(tmp_path / "list.csv", tmp_path / name, features=["frames", "mel"], config=config, jobs=HERE)
        cc.collect_garbage(tmp_path / name)
        assert cc.verify(tmp_path / name, source=True, jobs=HERE).damage == []
        (video,) = cc.open_cache(tmp_path / name)
        return video.sidecar

    assert sidecar_of("changed", default, setting, default) == sidecar_of("new", default)
    assert sidecar_of("changed back", setting, default, setting) == sidecar_of("new too", setting)


def test_a_build_says_which_features_it_makes_again(index, tmp_path, run_cli: Cli):
    cache = tmp_path / "cache"
    command = ("build", index, "-o", cache)
    run_cli(*command, "-c", index.parent / "small.yaml", "--features", "frames,mel")
    (tmp_path / "quality.yaml").write_text("frames: {quality: 70}\n")
    planned = run_cli(*command, "-c", tmp_path / "quality.yaml", "--dry-run").stdout
    assert "2 videos                   settings changed (frames.quality: 90 -> 70)\n" in planned
    result = run_cli(*command, "-c", tmp_path / "quality.yaml")
    assert "frames: builds 2 cached videos (1 s) again: frames.quality: 90 -> 70" in result.stderr
    assert "are not used any more, 'chordcache gc' removes them" in result.stdout
    unused = sum((cache / file).stat().st_size for file in cc.collect_garbage(cache, dry_run=True))
    assert unused > 0
    again = json.loads(run_cli(*command, "-c", index.parent / "small.yaml", "--json").stdout)
    assert again["num_unused_bytes"] == 0  # the settings of small.yaml do not name the quality
    assert "built again" not in run_cli(*command).stderr


# --drop


def test_drop_takes_a_feature_out_of_all_videos(index, tmp_path, run_cli: Cli):
    cache = tmp_path / "cache"
    command = ("build", index, "-o", cache)
    run_cli(*command, "-c", index.parent / "small.yaml", "--features", "frames,mel")
    planned = run_cli(*command, "--drop", "mel", "--dry-run").stdout
    assert "2 videos                   lose mel, as --drop asks\n" in planned
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel",)}
    assert run_cli(*command, "--drop", "mel").stdout.startswith("done 0, up to date 2,")
    assert features_of(cache) == {"lmdb": ("frames",)}
    assert len(cc.collect_garbage(cache)) == 2
    assert cc.verify(cache, jobs=HERE).damage == []


@pytest.mark.parametrize("tiers", ["", "tiers: [lmdb, npz]\n"])
def test_drop_wins_over_a_config_that_names_the_feature(index, tmp_path, tiers):
    cache, config = tmp_path / "cache", tmp_path / "config.yaml"
    config.write_text(f"{tiers}features: {{flow: {{preset: ultrafast}}, motion: null, mel: {{n_mels: 20}}}}\n")
    cc.build(index, cache, features=["frames", "flow", "mel"], config=config, jobs=HERE)
    with pytest.raises(UsageError, match="^drop: got 'flow', which is one of features, too"):
        cc.build(index, cache, features="flow", options=cc.BuildOptions(drop="flow"), jobs=HERE)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("flow", "mel")}
    cc.build(index, cache, config=config, options=cc.BuildOptions(drop="flow"), jobs=HERE)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel",)}
    cc.build(index, cache, jobs=HERE)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel",)}


def test_drop_takes_a_feature_out_of_hdf5_files(index, tmp_path):
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers="hdf5", config=index.parent / "small.yaml", jobs=HERE)
    cc.build(index, cache, options=cc.BuildOptions(drop="flow"), jobs=HERE)
    assert features_of(cache) == {"hdf5": ("frames", "mel")}
    cc.collect_garbage(cache)
    assert cc.verify(cache, source=True, jobs=HERE).damage == []


@pytest.mark.parametrize(
    ("drop", "match"),
    [
        (["flwo"], "drop: got 'flwo', expected one of frames, flow. Did you mean 'flow'?"),
        (["motion"], "drop: got 'motion', expected one of frames, flow"),
        (["frames", "flow"], "drop: got frames, flow, which is all that the cache has. Remove its folder instead."),
    ],
)
def test_wrong_drops_are_refused(index, tmp_path, drop, match):
    cc.build(index, tmp_path / "cache", features=["frames", "flow"], config=index.parent / "small.yaml", jobs=HERE)
    with pytest.raises(UsageError) as caught:
        cc.build(index, tmp_path / "cache", options=cc.BuildOptions(drop=drop), jobs=HERE)
    assert str(caught.value).startswith(match)
    assert features_of(tmp_path / "cache") == {"lmdb": ("frames",), "npz": ("flow",)}


# Tiers follow from features

MIXED = {"tiers": ["hdf5"], "frames": {"codec": "raw"}, "hdf5": {"features": ["frames", "flow", "mel"]}}


@pytest.mark.parametrize(
    ("arguments", "built"),
    [
        ({}, {"lmdb": ("frames",)}),
        ({"features": "flow"}, {"npz": ("flow",)}),
        ({"features": ["frames", "flow"]}, {"lmdb": ("frames",), "npz": ("flow",)}),
        ({"tiers": "npz", "features": "mel"}, {"npz": ("mel",)}),
        ({"config": "flow"}, {"lmdb": ("frames",), "npz": ("flow",)}),
        ({"config": "multimodal"}, {"lmdb": ("frames",), "npz": ("mel",)}),
        ({"config": MIXED}, {"hdf5": ("frames", "flow", "mel")}),
        ({"config": MIXED, "features": "mel"}, {"hdf5": ("mel",)}),
        ({"config": MIXED, "tiers": "lmdb"}, {"lmdb": ("frames",)}),
        ({"config": {"features": {"mel": {"n_mels": 20}}}}, {"lmdb": ("frames",), "npz": ("mel",)}),
        ({"config": {"frames": None, "features": {"mel": {}}}}, {"npz": ("mel",)}),
        ({"config": {"tiers": ["npz"], "features": {"motion": None, "flow": None}}}, {"npz": ("mel",)}),
    ],
)
def test_tiers_follow_from_what_is_asked_for(index, tmp_path, arguments, built):
    if isinstance(arguments.get("config"), dict):
        (tmp_path / "config.yaml").write_text(json.dumps(arguments["config"]))
        arguments = {**arguments, "config": tmp_path / "config.yaml"}
    assert requested(index, tmp_path / "cache", **arguments) == built
    cc.build(index, tmp_path / "cache", **arguments)
    assert features_of(tmp_path / "cache") == built
    assert cc.build(index, tmp_path / "cache", jobs=HERE).num_up_to_date == 2  # asks for what the cache has


def test_a_feature_is_built_where_the_cache_has_it(index, tmp_path):
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers="hdf5", config=index.parent / "small.yaml", jobs=HERE)
    (names,) = requested(index, cache, features="mel").values()
    assert set(names) == {"frames", "flow", "mel"}  # all of a file of several features
    assert requested(index, cache, features="motion") == {"npz": ("motion",)}


@pytest.mark.parametrize(
    ("tiers", "features", "match"),
    [
        ("lmdb", "flow", "tiers: got lmdb, expected one that takes 'flow'. Add npz or hdf5, or leave tiers out."),
        (("lmdb", "npz"), ("frames", "flwo"), "features: got 'flwo', expected one of frames, flow, motion, mel"),
        ("lmbd", None, "tiers: got 'lmbd', expected one of lmdb, npz, hdf5. Did you mean 'lmdb'?"),
        (("lmdb", "npz"), "frames", "tiers: got npz, for which the config has no feature that is asked for"),
    ],
)
def test_what_is_asked_for_and_not_built_is_an_error(index, tmp_path, tiers, features, match):
    for function in (cc.build, cc.dry_run):
        with pytest.raises(UsageError) as caught:
            function(index, tmp_path / "cache", tiers=tiers, features=features)
        assert match in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_mistyped_configs_are_refused_beside_a_cache(index, tmp_path):
    cc.build(index, tmp_path / "cache", jobs=HERE)
    for text, match in (
        ("features: {flwo: {}}", "features.flwo: got an unknown feature"),
        ("flow: {method: dis}", "flow: got an unknown key, expected one of frames, features"),
        ("hdf5: {features: [frames, mell]}\ntiers: [hdf5]", "hdf5.features: got 'mell', expected some of"),
        ("tiers: [lmbd]", "tiers: got 'lmbd', expected one of"),
        ("tiers: lmdb", "tiers: got 'lmdb', expected a list of tiers"),
        ("features: {frames: {quality: 80}}", "features: got the name 'frames'"),
    ):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UsageError, match=re.escape(match)):
            cc.build(index, tmp_path / "cache", config=tmp_path / "config.yaml", jobs=HERE)


def test_a_feature_by_name_has_default_settings(index, tmp_path):
    """The preset flow does not ask for mel. No preset asks for waveform."""
    cache = tmp_path / "cache"
    cc.build(index, cache, config="flow", features="frames", jobs=HERE)
    cc.build(index, cache, features=["mel", "waveform"], jobs=HERE)
    assert features_of(cache) == {"lmdb": ("frames",), "npz": ("mel", "waveform")}
    with pytest.raises(UsageError, match="features.latents.model: got no model"):
        cc.build(index, cache, features="latents", jobs=HERE)


def test_an_empty_config_changes_nothing(index, tmp_path):
    cc.build(index, tmp_path / "cache", features=["frames", "mel"], jobs=HERE)
    (tmp_path / "config.yaml").write_text("")
    assert cc.build(index, tmp_path / "cache", config=tmp_path / "config.yaml", jobs=HERE).num_up_to_date == 2
    assert Config() == config_from_json(summarize(tmp_path / "cache")["config"])
