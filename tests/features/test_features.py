"""Features and tiers as a build makes them: one decode, independent artefacts, absence, plug-ins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import yaml
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN
from helpers.inline import HERE
from helpers.processes import files_of, sidecars

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import NotFoundError, UsageError
from chordcache.features.registry import resolve
from chordcache.look.summary import summarize
from chordcache.records import RunSummary

Cli = Callable[..., Any]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "features.md"
EVERY_TIER = ("lmdb", "npz", "hdf5")
ALL_IN_HDF5 = {"hdf5": {"features": ["frames", "flow", "motion", "mel"]}}


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("features") / "videos"
    make_video(folder / "sound.mp4", num_frames=40, audio=True)
    make_video(folder / "silent.mp4", num_frames=25)
    make_video(folder / "single.mp4", num_frames=1)
    make_video(folder / "vp9.webm", num_frames=10, codec="libvpx-vp9", audio=False)
    return folder


@pytest.fixture(scope="module")
def index(videos: Path) -> Path:
    path = videos.parent / "index.json"
    cc.scan([videos], output=path, jobs=HERE)
    return path


@pytest.fixture(scope="module")
def full(index: Path) -> Path:
    """Every feature in every tier, flow as floats. Do not write into it."""
    cache = index.parent / "full"
    config = config_from_json({**ALL_IN_HDF5, "features": {"flow": {"dtype": "float16"}}})
    summary = cc.build(index, cache, tiers=EVERY_TIER, config=config, jobs=2)
    assert (summary.num_done, summary.num_failed) == (4, 0)
    return cache


def info_of(cache: Path, path: str) -> dict[tuple[str, str], dict[str, Any]]:
    """(tier, feature) to what the sidecar says."""
    return {(info["tier"], info["feature"]): info for info in sidecars(cache)[path]["features"]}


def video_of(cache: cc.Cache, path: str) -> cc.Video:
    (video,) = (video for video in cache if video.path == path)
    return video


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every path that libavformat is asked to open in this process."""
    opened: list[str] = []
    really = av.open

    def count(path: Any, *args: Any, **options: Any) -> Any:
        opened.append(os.readlink(path))  # of a descriptor
        return really(path, *args, **options)

    monkeypatch.setattr(av, "open", count)
    return opened


def build_here(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> RunSummary:
    """``build`` with its worker in this process, so that what it does can be watched."""
    from chordcache.engine import pool

    monkeypatch.setattr(pool, "run", lambda function, tasks, **_: ((task, function(task)) for task in tasks))
    return cc.build(*args, **options)


def test_one_decode_feeds_everything(
    index: Path, tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_from_json(ALL_IN_HDF5)
    summary = build_here(monkeypatch, index, tmp_path / "cache", tiers=EVERY_TIER, config=config)
    assert summary.num_done == 4
    assert sorted(Path(path).name for path in opens) == ["silent.mp4", "single.mp4", "sound.mp4", "vp9.webm"]


def test_everything_is_there(full: Path) -> None:
    infos = info_of(full, "sound.mp4")
    assert set(infos) == {
        ("lmdb", "frames"),
        *(("npz", name) for name in ("flow", "motion", "mel")),
        *(("hdf5", name) for name in ("frames", "flow", "motion", "mel")),
    }
    assert len({info["file"]["name"] for info in infos.values()}) == 5  # NPZ has one for each feature
    assert infos["npz", "flow"]["shape"] == [39, 48, 64, 2]
    assert infos["npz", "motion"]["shape"] == [40, 3, 4, 2]
    assert infos["npz", "mel"]["shape"][1:] == [80]
    assert cc.verify(full, level="deep", source=True, jobs=HERE).damage == []


@pytest.mark.parametrize("feature", ["frames", "flow", "motion", "motion.covered", "motion.types", "mel"])
def test_tiers_agree(full: Path, feature: str) -> None:
    with cc.open_cache(full) as cache:
        video = video_of(cache, "sound.mp4")
        arrays = [
            cache.read(video, feature, 3, 9, tier=tier)
            for tier in ("lmdb", "npz", "hdf5")
            if video.sidecar.feature(feature.partition(".")[0], tier)
        ]
        assert len(arrays) == 2
        np.testing.assert_array_equal(*arrays)
        assert arrays[0].size


LOOK = """
import h5py, json, sys
with h5py.File(sys.argv[1]) as h5:
    start, stop = h5["frames.offsets"][3:5]
    print(json.dumps([h5["flow"].attrs["units"], json.loads(h5["flow"].attrs["params"])["method"],
                      h5["motion"].dims[0][0].name, h5["frames"][start:stop].tobytes()[:2].hex()]))
"""


def test_other_tools_open_hdf5(full: Path) -> None:
    file = full / info_of(full, "sound.mp4")["hdf5", "flow"]["file"]["name"]
    done = subprocess.run([sys.executable, "-c", LOOK, file], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["pixels per kept-frame step, (dx, dy)", "dis", "/pts_seconds", "ffd8"]


def test_damage_that_the_times_of_frames_find(full: Path, tmp_path: Path) -> None:
    shutil.copytree(full, tmp_path / "cache")
    for path in tmp_path.glob("cache/*/**/*.lmdb"):
        path.write_bytes(b"")
    with cc.open_cache(tmp_path / "cache") as cache, pytest.raises(cc.DamageError, match="verify --repair"):
        _ = cache[0].pts_seconds


def test_mel_covers_the_seconds_of_its_frames(full: Path) -> None:
    with cc.open_cache(full) as cache:
        video = video_of(cache, "sound.mp4")
        info = video.feature("mel")
        whole = cache.read(video, "mel")
        assert whole.shape == (80, 160)  # 1.6 s in steps of 10 ms
        clip = cache.read(video, "mel", 10, 20)
        assert clip.shape == (80, 40)
        first = round((0.4 - info.facts["start_seconds"]) / 0.01)
        with np.load(full / info.file.name) as npz:
            np.testing.assert_array_equal(clip, npz["mel"][first : first + 40].T)
        with pytest.raises(
            UsageError, match="indices: got them for 'mel', which has times of its own, expected start and stop"
        ):
            cache.read(video, "mel", indices=[3])


def test_absent_with_a_reason(full: Path) -> None:
    with cc.open_cache(full) as cache:
        silent, vp9 = video_of(cache, "silent.mp4"), video_of(cache, "vp9.webm")
        with pytest.raises(NotFoundError, match="'mel' of video '.*' is absent: no audio track"):
            cache.read(silent, "mel", 0, 5)
        with pytest.raises(NotFoundError, match="'motion' of video '.*' is absent: codec 'vp9' exports no motion"):
            cache.read(vp9, "motion", 0, 5)
        assert cache.read(vp9, "flow", 0, 5).shape == (5, 48, 64, 2)
    assert summarize(full)["absent"]["mel in npz: no audio track"] == 3


def test_one_frame_has_no_flow(full: Path) -> None:
    with cc.open_cache(full) as cache:
        for tier in ("npz", "hdf5"):
            assert cache.read(video_of(cache, "single.mp4"), "flow", tier=tier).shape == (0, 48, 64, 2)


def test_content_facts_equal_the_scan(full: Path, videos: Path) -> None:
    records = {record.path: record for record in cc.scan([videos], level="content", jobs=HERE)}
    with cc.open_cache(full) as cache:
        for video in cache:
            assert video.content is not None
            assert video.content == records[video.path].content


# Independent artefacts


def test_adding_a_tier_changes_no_other_file(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, jobs=HERE)
    before = files_of(cache)
    summary = cc.build(index, cache, tiers=["npz"], jobs=HERE)
    assert summary.num_done == 4
    after = files_of(cache)
    assert {file: after[file] for file in before if file.startswith("lmdb/")} == {
        file: stat for file, stat in before.items() if file.startswith("lmdb/")
    }
    assert {tier for tier, _ in info_of(cache, "sound.mp4")} == {"lmdb", "npz"}
    assert cc.verify(cache, level="deep", source=True, jobs=HERE).damage == []
    assert cc.build(index, cache, tiers=["lmdb", "npz"], jobs=HERE).num_up_to_date == 4


def test_a_parameter_of_flow_rebuilds_flow_alone(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers=["lmdb", "npz"], jobs=HERE)
    before = info_of(cache, "sound.mp4")
    computed: list[str] = []
    from chordcache.features.registry import FeatureSpec

    really = FeatureSpec.make
    monkeypatch.setattr(FeatureSpec, "make", lambda spec: (computed.append(spec.name), really(spec))[1])
    config = config_from_json({"features": {"flow": {"preset": "fast"}}})
    summary = build_here(monkeypatch, index, cache, tiers=["lmdb", "npz"], config=config)
    assert summary.num_done == 4
    assert computed == ["flow"] * 4
    after = info_of(cache, "sound.mp4")
    assert after["lmdb", "frames"] == before["lmdb", "frames"]
    assert after["npz", "flow"]["params"]["preset"] == "fast"
    for name in ("motion", "mel"):
        with (
            np.load(cache / before["npz", name]["file"]["name"]) as old,
            np.load(cache / after["npz", name]["file"]["name"]) as new,
        ):
            np.testing.assert_array_equal(old[name], new[name])
    orphans = cc.verify(cache, level="deep", source=True, jobs=HERE).damage
    assert {orphan.kind for orphan in orphans} == {"orphan"}
    cc.collect_garbage(cache)
    assert cc.verify(cache, level="deep", source=True, jobs=HERE).damage == []


def test_a_cache_without_frames_has_a_timeline(index: Path, tmp_path: Path) -> None:
    cc.build(index, tmp_path / "cache", tiers=["npz"], features=["flow"], jobs=HERE)
    with cc.open_cache(tmp_path / "cache") as cache:
        video = video_of(cache, "sound.mp4")
        np.testing.assert_array_equal(video.pts_seconds, np.arange(40) / 25)
        with pytest.raises(NotFoundError, match=r"'frames' of video '.*' is not cached; cached: flow \(npz\)"):
            cache.read(video, "frames")


def test_damage_of_one_feature_stays_until_it_is_repaired(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, tiers=["npz"], features=["motion", "mel"], jobs=HERE)
    file = info_of(cache, "sound.mp4")["npz", "motion"]["file"]["name"]
    before = (cache / file).read_bytes()
    with np.load(cache / file) as npz:
        at = before.index(npz["motion"].tobytes()[:64]) + 10
    (cache / file).write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
    config = config_from_json({"features": {"mel": {"n_mels": 40}}})
    assert cc.build(index, cache, tiers=["npz"], features=["motion", "mel"], config=config, jobs=HERE).num_done == 4
    damage = [finding for finding in cc.verify(cache, jobs=HERE).damage if finding.kind == "damaged"]
    assert [finding.file for finding in damage] == [file]
    cc.repair(cache, damage)
    assert (cache / file).read_bytes() == before


# Plug-ins


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the plug-in and the config that the docs show."""
    folder = tmp_path_factory.mktemp("example")
    for name, text in re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", DOCS.read_text(), re.DOTALL):
        (folder / name).write_text(text)
    return folder


def test_the_example_of_the_docs(example: Path, index: Path, tmp_path: Path, run_cli: Cli) -> None:
    assert len((example / "meancolor.py").read_text().splitlines()) <= 30
    cache = tmp_path / "cache"
    arguments = ("build", index, "-o", cache, "-c", example / "mine.yaml", "--tier", "npz", "--features", "color")
    environment = {"PYTHONPATH": f"{example}:{Path(cc.__file__).parent.parent}"}
    result = run_cli(*arguments, env=environment)
    assert result.returncode == 0, result.stderr
    raw = tmp_path / "raw"
    cc.build(index, raw, config=config_from_json({"frames": {"codec": "raw"}}), jobs=HERE)
    with cc.open_cache(cache) as colors, cc.open_cache(raw) as frames:
        for video in frames:
            rgb = frames.read(video).astype(np.float64)
            rows = colors.read(video.key, "color")
            assert rows.shape == (video.num_frames, 2, 2, 3)
            np.testing.assert_allclose(rows[:, 0, 1], rgb[:, :24, 32:].mean((1, 2)), rtol=1e-4)
    assert run_cli("verify", cache, "--deep", "--source", env=environment).returncode == 0
    assert run_cli("verify", cache, "--deep").returncode == 0  # where the plug-in is not installed


@pytest.mark.parametrize(
    ("section", "match"),
    [
        ({"extractor": "nowhere_at_all:Class"}, "cannot import 'nowhere_at_all:Class': ModuleNotFoundError: No module"),
        ({"extractor": "pathlib:Missing"}, "cannot import 'pathlib:Missing': AttributeError"),
        (
            {"extractor": "pathlib:Path"},
            "got 'pathlib:Path', expected a subclass of chordcache.features",
        ),
        ({"extractor": PLUG_IN, "fault": "identity"}, f"'{PLUG_IN}' fails: ZeroDivisionError"),
        ({"extractor": PLUG_IN, "size": 3}, f"'{PLUG_IN}' does not take its parameters: got an unexpected"),
    ],
)
def test_an_extractor_that_cannot_be_imported_or_made(
    index: Path, tmp_path: Path, run_cli: Cli, section: dict[str, Any], match: str
) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.dump({"features": {"mine": section}}))
    result = run_cli(
        "build", index, "-o", tmp_path / "cache", "-c", tmp_path / "mine.yaml", "--tier", "npz",
        env=ENVIRONMENT,
    )  # fmt: skip
    assert result.returncode == 2
    assert match in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("base", "settings", "changed"),
    [
        ({}, {"short_side": 128}, {"frames", "flow", "pose"}),
        ({}, {"fps": 5}, {"frames", "flow", "motion", "mel", "waveform", "pose"}),
        ({}, {"hdr": "tonemap"}, {"frames", "flow", "pose"}),
        ({}, {"stereo": "left"}, {"frames", "flow", "motion", "pose"}),
        ({}, {"stereo_layout": "top_bottom"}, set()),
        ({"stereo": "left"}, {"stereo_layout": "top_bottom"}, {"frames", "flow", "motion", "pose"}),
        ({}, {"quality": 50}, {"frames"}),
        ({"fps": 5}, {"fps": 5.0}, set()),
    ],
)
def test_a_fingerprint_depends_on_the_settings_that_change_the_content(
    base: dict[str, Any], settings: dict[str, Any], changed: set[str]
) -> None:
    features: dict[str, Any] = {"waveform": {}, "pose": {}}
    configs = [config_from_json({"frames": frames, "features": features}) for frames in (base, {**base, **settings})]
    one, other = ({name: resolve(name, config).fingerprint for name in config.names()} for config in configs)
    assert {name for name in one if one[name] != other[name]} == changed
