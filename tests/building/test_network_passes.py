"""Features of networks are made after the others, in a process for each device: kills, faults, tiers and repair."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT
from helpers.faulty_networks import PLUG_IN

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.features import registry
from chordcache.records import RunSummary

NUM_FRAMES = 10

WIDTHS = (64, 80, 96, 112)
"""Width of the frames of each video, [pixels]"""

BAD = "80"

INLINE = Engine("inline")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    for width in WIDTHS:
        make_video(folder / f"videos/{width}.mp4", num_frames=NUM_FRAMES, size=(width, 48))
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder / "index.json"


def write_config(work: Path, *, tiers: dict[str, Any] | None = None, device: str = "cpu", **params: Any) -> Path:
    network = {"extractor": PLUG_IN, "log": str(work / "log"), "batch_size": 4, "device": device, **params}
    config = {"frames": {"codec": "raw"}, "features": {"network": network}, **(tiers or {})}
    (work / "network.yaml").write_text(yaml.dump(config))
    return work / "network.yaml"


def build(
    index: Path, work: Path, *, jobs: Any = 2, features: Any = ("frames", "network"), options: Any = None, **params: Any
) -> RunSummary:
    """Build frames and a network in their tiers."""
    config = write_config(work, **params)
    return cc.build(index, work / "cache", features=features, config=config, jobs=jobs, options=options)


def log(work: Path, kind: str) -> list[list[str]]:
    """Return the words of the lines of the log that begin with a word, without it."""
    lines = (work / "log").read_text().splitlines() if (work / "log").exists() else []
    return [line.split()[1:] for line in lines if line.startswith(kind)]


def check(work: Path, *, without: tuple[str, ...] = ()) -> None:
    """Check that a cache is sound, and that it has frames of all videos, and the network of all but some."""
    kinds = {finding.kind for finding in cc.verify(work / "cache", level="deep", jobs=1).damage}
    assert kinds <= ({"incomplete"} if without else set())
    assert not processes.partials(work / "cache")
    with cc.open_cache(work / "cache") as cache:
        names = {Path(video.path).stem: video for video in cache}
        assert names.keys() == set(map(str, WIDTHS))
        for name, video in names.items():
            assert cache.read(video, "frames").shape == (NUM_FRAMES, 48, int(name), 3)
            if name in without:
                assert [info.feature for info in video.sidecar.features] == ["frames"]
            else:
                assert cache.read(video, "network").tolist() == [2 * number for number in range(NUM_FRAMES)]


def counts(summary: RunSummary) -> tuple[int, int, int]:
    return summary.num_done, summary.num_up_to_date, summary.num_failed


@pytest.mark.parametrize("jobs", [2, INLINE])
def test_a_video_counts_once(index: Path, tmp_path: Path, jobs: Any) -> None:
    summary = build(index, tmp_path, jobs=jobs)
    assert counts(summary) == (4, 0, 0)
    assert summary.num_frames == 4 * NUM_FRAMES
    check(tmp_path)
    if jobs != INLINE:
        assert len(log(tmp_path, "load")) == 1
    assert counts(build(index, tmp_path, jobs=jobs)) == (0, 4, 0)
    assert counts(build(index, tmp_path, jobs=jobs, features="network")) == (0, 4, 0)
    if jobs != INLINE:
        assert len(log(tmp_path, "load")) == 1, "a process of a build with nothing to do"


def test_networks_of_cached_videos_are_added(index: Path, tmp_path: Path) -> None:
    assert counts(build(index, tmp_path, features="frames")) == (4, 0, 0)
    assert not log(tmp_path, "load")
    assert counts(build(index, tmp_path)) == (4, 0, 0)
    check(tmp_path)


def test_each_device_has_a_process(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "devices_of", lambda key, device: {"auto": ("cpu", "cpu")}[device])
    assert counts(build(index, tmp_path, device="auto", seconds=0.5)) == (4, 0, 0)
    check(tmp_path)
    loads = log(tmp_path, "load")
    assert [device for device, _ in loads] == ["cpu", "cpu"]
    assert len({pid for _, pid in loads}) == 2


def test_the_faults_of_one_video_do_not_end_others(index: Path, tmp_path: Path) -> None:
    for fault, cause, stage in (("raises", "extractor", "network"), ("memory", "oom", "network")):
        work = tmp_path / fault
        work.mkdir()
        assert counts(build(index, work, fault_of_width={BAD: fault})) == (3, 0, 1)
        (failure,) = processes.quarantine(work / "cache").values()
        assert (failure["cause"], failure["stage"]) == (cause, stage)
        check(work, without=(BAD,))
        assert counts(build(index, work, fault_of_width={BAD: fault})) == (0, 3, 1)
        assert len(log(work, "load")) == 1, "it was tried again"
        again = cc.BuildOptions(retry_quarantined=True)
        assert counts(build(index, work, options=again, fault_of_width={BAD: ""})) == (1, 3, 0)
        assert not processes.quarantine(work / "cache")
        check(work)


@pytest.mark.parametrize("fault", ["kills", "loses its device", "hangs"])
def test_a_video_that_ends_its_process_is_tried_once_more(index: Path, tmp_path: Path, fault: str) -> None:
    options = cc.BuildOptions(limits=Limits(stall_seconds=2))
    (tmp_path / "once").mkdir()
    once = {"fault_of_width": {BAD: fault}, "once": str(tmp_path / "once/file")}
    assert counts(build(index, tmp_path / "once", options=options, **once)) == (4, 0, 0)
    check(tmp_path / "once")
    assert len(log(tmp_path / "once", "load")) == 2
    (tmp_path / "twice").mkdir()
    assert counts(build(index, tmp_path / "twice", options=options, fault_of_width={BAD: fault})) == (3, 0, 1)
    check(tmp_path / "twice", without=(BAD,))
    (failure,) = processes.quarantine(tmp_path / "twice/cache").values()
    cause, message = {
        "kills": ("signal", "the worker died: SIGKILL(-9), "),
        "loses its device": ("extractor", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        "hangs": ("timeout", "no progress for 2 s, at faulty_networks.py:"),
    }[fault]
    assert failure["cause"] == cause
    assert failure["attempts"] == 2
    assert message.rstrip(", ") in failure["message"]


def test_a_batch_is_halved_where_memory_is_not_enough(index: Path, tmp_path: Path) -> None:
    assert counts(build(index, tmp_path, max_batch=2)) == (4, 0, 0)
    check(tmp_path)
    sizes = [int(size) for _, _, size in log(tmp_path, "batch")]
    assert sorted(sizes)[-2:] == [2, 4]


def test_weights_that_do_not_load_leave_the_other_features_cached(index: Path, tmp_path: Path) -> None:
    with pytest.raises(cc.UsageError, match="features.network: its network cannot be loaded: FileNotFoundError: no w"):
        build(index, tmp_path, weights="none")
    assert not processes.quarantine(tmp_path / "cache")
    check(tmp_path, without=tuple(map(str, WIDTHS)))
    assert counts(build(index, tmp_path, weights="")) == (4, 0, 0)
    check(tmp_path)


def test_a_batch_has_no_limits_of_a_file(index: Path, tmp_path: Path) -> None:
    """Weights and batches take more memory than a file may, and batches more time."""
    options = cc.BuildOptions(limits=Limits(memory_bytes=256 << 20, file_seconds=1.0, stall_seconds=5.0))
    assert counts(build(index, tmp_path, options=options, mebibytes=300, seconds=0.8)) == (4, 0, 0)
    check(tmp_path)


def test_a_file_of_several_features_is_made_in_the_last_pass(index: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, tiers={"hdf5": {"features": ["frames", "network"]}})
    done = cc.build(index, tmp_path / "cache", tiers=["lmdb", "hdf5"], features=["frames", "network"], config=config,
                    jobs=2)  # fmt: skip
    assert counts(done) == (4, 0, 0)
    check(tmp_path)
    with cc.open_cache(tmp_path / "cache") as cache:
        for video in cache:
            files = {(info.tier, info.feature): info.file for info in video.sidecar.features}
            assert files["hdf5", "frames"] == files["hdf5", "network"]
            assert files["lmdb", "frames"] != files["hdf5", "frames"]


def test_each_device_setting_has_a_pass(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of all features is made in the last pass, where the other network is loaded too."""
    monkeypatch.setattr(registry, "devices_of", lambda key, device: ("cpu",))
    section = {"extractor": PLUG_IN, "batch_size": NUM_FRAMES}
    features = {name: {**section, "log": str(tmp_path / name), "device": name} for name in ("auto", "cpu")}
    names = ["frames", "auto", "cpu"]
    config = {"features": features, "hdf5": {"features": names}}
    (tmp_path / "both.yaml").write_text(yaml.dump(config))
    done = cc.build(index, tmp_path / "cache", tiers=["lmdb", "npz", "hdf5"], features=names, jobs=2,
                    config=tmp_path / "both.yaml")  # fmt: skip
    assert counts(done) == (4, 0, 0)
    loads = {name: [line.split() for line in (tmp_path / name).read_text().splitlines()] for name in features}
    processes_of = {name: [pid for kind, _, pid, *_ in lines if kind == "load"] for name, lines in loads.items()}
    assert len(set(processes_of["auto"])) == 2
    assert processes_of["cpu"] == processes_of["auto"][1:]
    assert not cc.verify(tmp_path / "cache", level="deep", jobs=1).damage
    for sidecar in processes.sidecars(tmp_path / "cache").values():
        assert {(info["tier"], info["feature"]) for info in sidecar["features"]} == {
            ("lmdb", "frames"), ("npz", "auto"), ("npz", "cpu"), *(("hdf5", name) for name in names)
        }  # fmt: skip


def test_a_video_that_failed_is_not_tried_by_the_next_pass(
    index: Path, tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    for width in WIDTHS:
        make_video(tmp_path / f"videos/{width}.mp4", num_frames=NUM_FRAMES, size=(width, 48))
    data = (tmp_path / f"videos/{BAD}.mp4").read_bytes()
    (tmp_path / f"videos/{BAD}.mp4").write_bytes(data[: len(data) // 2])
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    for expected in ((3, 0, 1), (0, 3, 1)):
        assert counts(build(tmp_path / "index.json", tmp_path)) == expected
        assert processes.quarantine(tmp_path / "cache").keys() == {f"{BAD}.mp4"}
        assert BAD not in {width for _, width, _ in log(tmp_path, "batch")}


def test_another_source_makes_all_features_again(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    for width in WIDTHS:
        make_video(tmp_path / f"videos/{width}.mp4", num_frames=NUM_FRAMES, size=(width, 48))
    assert counts(build(tmp_path / "videos", tmp_path)) == (4, 0, 0)
    make_video(tmp_path / f"videos/{BAD}.mp4", num_frames=NUM_FRAMES, size=(int(BAD), 48), gop=3)
    for features in ("network", ("frames", "network")):
        os.utime(tmp_path / f"videos/{BAD}.mp4")
        assert counts(build(tmp_path / "videos", tmp_path, features=features)) == (1, 3, 0)
        cc.collect_garbage(tmp_path / "cache")
        check(tmp_path)


def test_progress_reaches_its_end_once(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path)
    display = Display(progress=True, messages=True, log_file=tmp_path / "events", verbose=True)
    cc.build(index, tmp_path / "cache", config=tmp_path / "network.yaml", jobs=1, progress=display)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [event["event"] for event in events].count("start") == 1
    assert (events[-1]["event"], events[-1]["num_videos"], events[-1]["total"]) == ("end", 4, 4)
    assert events[-1]["video_seconds"] == pytest.approx(events[-1]["total_video_seconds"])
    assert "4 of 4 videos" in capsys.readouterr().err


def test_repair_makes_the_lost_files_of_a_network(index: Path, tmp_path: Path) -> None:
    build(index, tmp_path)
    for file in list((tmp_path / "cache/npz").rglob("*.npz"))[:2]:
        file.write_bytes(file.read_bytes()[:-40])
    config = write_config(tmp_path)
    damage = cc.verify(tmp_path / "cache", jobs=1, config=config).damage
    assert len(damage) == 2
    assert cc.repair(tmp_path / "cache", damage, jobs=2, config=config).num_done == 2
    check(tmp_path)


def num_made(work: Path) -> int:
    """Return the number of videos whose network is cached."""
    sidecars = list((work / "cache").glob("videos/*/*.json"))
    return sum('"network"' in sidecar.read_text() for sidecar in sidecars)


def test_a_build_resumes_a_pass_that_was_killed(index: Path, tmp_path: Path) -> None:
    write_config(tmp_path, seconds=0.3, batch_size=NUM_FRAMES)
    command = ["build", str(index), "-o", str(tmp_path / "cache"), "-c", str(tmp_path / "network.yaml"), "-j2"]
    command += ["--features", "frames,network"]
    with processes.running(tmp_path, *command, env=ENVIRONMENT) as run:
        assert processes.wait_until(lambda: num_made(tmp_path), 60)
        run.process.send_signal(signal.SIGKILL)
        run.wait(60)
        assert processes.wait_until(lambda: not run.survivors(), 60)
    num_done, before = num_made(tmp_path), len(log(tmp_path, "batch"))
    assert 1 <= num_done < 4
    summary = build(index, tmp_path, batch_size=NUM_FRAMES)
    assert counts(summary) == (4 - num_done, num_done, 0)
    assert len(log(tmp_path, "batch")) - before == 4 - num_done
    check(tmp_path)
