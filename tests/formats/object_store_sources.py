"""Sources in object_stores. No test_*.py, since they need the environment of `make test-formats`: obstore and moto."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import object_stores, processes, small_disks

import chordcache as cc
from chordcache.index.lists.write import index_list
from chordcache.object_stores.client import ObjectStore
from chordcache.verifying.verify import verify

pytest_plugins = ["helpers.object_store_fixtures"]
pytestmark = pytest.mark.usefixtures("environment")

Cli = Callable[..., subprocess.CompletedProcess[str]]

VIDEOS = {"a b/ü%20x.mp4": 20, "run/1.mp4": 21, "run/2.mp4": 22}
OTHERS = ("._run.mp4", "note.txt", "run/.keep")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("store_sources") / "corpus"
    for path, num_frames in VIDEOS.items():
        make_video(folder / path, num_frames=num_frames, audio=True)
    return folder


@pytest.fixture
def url(request: pytest.FixtureRequest, corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The corpus in an object store, with a ``TMPDIR`` of its own for the copies."""
    url = f"s3://data/{request.node.name.translate(str.maketrans('[]', '__'))}/corpus"
    for path in VIDEOS:
        ObjectStore(url).write(path, [(corpus / path).read_bytes()])
    for path in OTHERS:
        ObjectStore(url).write(path, [b"not a video"])
    (tmp_path / "copies").mkdir()
    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path / "copies"))
    return url


@pytest.fixture
def index(url: str, tmp_path: Path, proxy: object_stores.Proxy) -> Path:
    index_list(url, tmp_path / "index.json")
    proxy.reset()
    return tmp_path / "index.json"


def frames_of(cache: Path) -> dict[str, np.ndarray]:
    return {video.path: cc.open_cache(cache).read(video, "frames") for video in cc.open_cache(cache)}


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert sorted(one) == sorted(other)
    for name, frames in one.items():
        np.testing.assert_array_equal(frames, other[name])


def gets(proxy: object_stores.Proxy) -> list[str]:
    """Requests for contents of objects."""
    return [path for _, path, _ in proxy.gets("/corpus/") if "list-type" not in path]


def test_an_object_store_builds_as_its_folder(
    corpus: Path,
    url: str,
    index: Path,
    proxy: object_stores.Proxy,
    run_cli: Cli,
    tmp_path: Path,
) -> None:
    cc.build(cc.scan([corpus], jobs=1), tmp_path / "local", jobs=1)
    expected = frames_of(tmp_path / "local")
    assert [record.path for record in cc.read_index(index)] == list(VIDEOS)
    result = run_cli("build", str(index), "-o", str(tmp_path / "cache"), "-j", "2")
    assert result.returncode == 0, result.stderr
    assert len(gets(proxy)) == len(VIDEOS)
    assert_equal(frames_of(tmp_path / "cache"), expected)
    proxy.reset()
    assert cc.build(index, tmp_path / "cache", jobs=1).num_up_to_date == len(VIDEOS)
    assert [method for method, path, _ in proxy.requests if "list-type" not in path] == []
    scanned = cc.scan(url, output=tmp_path / "scan.jsonl", labels="dir", jobs=1)
    assert scanned.summary.num_skipped == len(OTHERS)
    assert [(record.path, record.label) for record in scanned] == [(path, path.split("/")[0]) for path in VIDEOS]
    assert cc.build(scanned, tmp_path / "cache", jobs=1).num_up_to_date == len(VIDEOS)
    assert cc.scan(url, output=tmp_path / "scan.jsonl", labels="dir", jobs=1).summary.num_up_to_date == len(VIDEOS)
    assert cc.build(url, tmp_path / "direct", jobs=1).num_done == len(VIDEOS)
    assert_equal(frames_of(tmp_path / "direct"), expected)
    assert not any((tmp_path / "copies").glob("*"))
    for place in (tmp_path / "cache", index):
        text = run_cli("info", str(place)).stdout
        assert url in text
        assert "/s3:" not in text


def test_only_an_object_with_another_tag_is_built_again(
    corpus: Path,
    url: str,
    index: Path,
    proxy: object_stores.Proxy,
    tmp_path: Path,
) -> None:
    cc.build(index, tmp_path / "cache", jobs=1)
    ObjectStore(url).write("run/1.mp4", [(corpus / "run/2.mp4").read_bytes()])
    ObjectStore(url).write("run/2.mp4", [(corpus / "run/2.mp4").read_bytes()])  # as it was, but later
    findings = verify(tmp_path / "cache", source=True, roots={"corpus": url_path(url)}, jobs=1).damage
    assert [(damage.kind, damage.file.rpartition("/")[2]) for damage in findings] == [("stale", "1.mp4")]
    proxy.reset()
    assert cc.build(index, tmp_path / "cache", jobs=1).num_done == 1
    assert [path.rpartition("/")[2] for path in gets(proxy)] == ["1.mp4"]
    frames = frames_of(tmp_path / "cache")
    np.testing.assert_array_equal(frames["run/1.mp4"], frames["run/2.mp4"])
    findings = verify(tmp_path / "cache", source=True, roots={"corpus": url_path(url)}, jobs=1).damage
    assert {damage.kind for damage in findings} == {"orphan"}


def url_path(url: str) -> str:
    return "/" + url.replace("://", ":/")


def test_lists_name_objects(url: str, proxy: object_stores.Proxy, tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "list.csv").write_text(f"path,label\nrun/2.mp4,x\nrun/9.mp4,x\n{url}/run/1.mp4,y\n")
    proxy.reset()
    result = run_cli(
        "index", str(tmp_path / "list.csv"), "--videos", f"clips={url}", "-o", str(tmp_path / "index.json")
    )
    assert (result.returncode, "run/9.mp4" in result.stderr) == (3, True)
    assert len(proxy.requests) == 1
    records = list(cc.read_index(tmp_path / "index.json"))
    assert [(record.root, record.path, record.label) for record in records] == [
        ("clips", "run/2.mp4", "x"),
        ("clips", "run/1.mp4", "y"),
    ]
    (tmp_path / "urls.csv").write_text(f"path,label\n{url}/run/2.mp4,z\n")
    assert cc.build(tmp_path / "urls.csv", tmp_path / "cache", jobs=1).num_done == 1


def test_503_twice_and_a_cut_are_tried_again(
    corpus: Path,
    index: Path,
    proxy: object_stores.Proxy,
    tmp_path: Path,
) -> None:
    proxy.fault = object_stores.fail_first(2)
    cc.build(index, tmp_path / "cache", jobs=1)
    proxy.fault = object_stores.of_objects("/corpus/", object_stores.cut, times=2)
    cc.build(index, tmp_path / "other", jobs=1)
    assert_equal(frames_of(tmp_path / "cache"), frames_of(tmp_path / "other"))


@pytest.mark.parametrize("fault", ["cut", "changed", "forbidden"])
def test_one_object_that_cannot_be_read(
    url: str,
    index: Path,
    proxy: object_stores.Proxy,
    run_cli: Cli,
    tmp_path: Path,
    fault: str,
) -> None:
    """The others are built, and the same command builds it later."""

    def replace(handler: object, answer: object_stores.Answer) -> object_stores.Answer:
        return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"

    def forbid(handler: object, answer: object_stores.Answer) -> object_stores.Answer:
        return 403, {}, b"<Error><Code>InvalidObjectState</Code></Error>"

    change = {"cut": object_stores.cut, "changed": replace, "forbidden": forbid}[fault]
    proxy.fault = object_stores.of_objects("run/1.mp4", change)
    command = ("build", str(index), "-o", str(tmp_path / "cache"))
    result = run_cli(*command)
    assert result.returncode == 3, result.stderr
    (failure,) = processes.quarantine(tmp_path / "cache").values()
    assert failure["cause"] == ("changed" if fault == "changed" else "io")
    assert url in failure["message"]
    assert sorted(frames_of(tmp_path / "cache")) == ["a b/ü%20x.mp4", "run/2.mp4"]
    proxy.reset()
    assert run_cli(*command).returncode == 0
    assert sorted(frames_of(tmp_path / "cache")) == sorted(VIDEOS)


def test_a_cache_from_a_stranger_connects_to_nothing(
    index: Path,
    proxy: object_stores.Proxy,
    run_cli: Cli,
    tmp_path: Path,
) -> None:
    cache = str(tmp_path / "cache")
    cc.build(index, cache, jobs=1)
    for artefact in (tmp_path / "cache").glob("lmdb/*/*"):
        artefact.unlink()
    proxy.reset()
    calls = (
        ("verify", cache, "--source"),
        ("verify", cache, "--repair"),
        ("export", cache, "--format", "webdataset", "--frames", "mp4", "-o", str(tmp_path / "out")),
    )
    for call in calls:
        result = run_cli(*call)
        assert result.returncode == 2, result
        assert "--root corpus=s3://data/" in result.stderr
    assert proxy.requests == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("on_miss", ["source", "build"])
def test_a_dataset_reads_no_source_in_a_store(
    index: Path,
    proxy: object_stores.Proxy,
    tmp_path: Path,
    on_miss: str,
) -> None:
    with pytest.raises(cc.UsageError, match="in the object store 's3://data/.* Build a cache"):
        cc.ChordVideoDataset(cc.videos.indexed(index, tmp_path / "cache", on_miss=on_miss))
    assert not (tmp_path / "cache").exists()
    cc.build(index, tmp_path / "cache", jobs=1)
    proxy.reset()
    assert len(cc.ChordVideoDataset(cc.videos.indexed(index, tmp_path / "cache", on_miss="error"))) == len(VIDEOS)
    assert proxy.requests == []


def test_a_full_folder_of_temporary_files(
    index: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ("build", str(index), "-o", str(tmp_path / "cache"), "-j", "1")
    with small_disks.tmpfs(tmp_path / "disk", "1m", may_be_open=True) as disk:
        (disk / "filler").write_bytes(bytes((1 << 20) - (8 << 10)))
        monkeypatch.setenv("TMPDIR", str(disk))
        result = run_cli(*command)
        assert result.returncode == 12, result
        assert f"TMPDIR: got '{disk}'" in result.stderr
        (disk / "filler").unlink()
        assert run_cli(*command).returncode == 0
        assert not any(disk.glob("*"))
    assert sorted(frames_of(tmp_path / "cache")) == sorted(VIDEOS)


@pytest.mark.parametrize("name", ["../up.mp4", "a//b.mp4", "./c.mp4"], ids=["above", "empty", "here"])
def test_names_that_are_not_paths(
    url: str, proxy: object_stores.Proxy, run_cli: Cli, tmp_path: Path, name: str
) -> None:
    def rename(_handler: object, _method: str, path: str, answer: object_stores.Answer) -> object_stores.Answer:
        status, headers, body = answer
        return status, headers, body.replace(b"run/1.mp4", name.encode())

    proxy.fault = rename
    for command in ("index", "scan"):
        result = run_cli(command, url, "-o", str(tmp_path / "index.json"))
        assert result.returncode == 2
        assert f"corpus/{name}', expected names without" in result.stderr
    assert not (tmp_path / "index.json").exists()


def test_missing_and_refused_stores(url: str, run_cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = ("-o", str(tmp_path / "index.json"))
    for command in ("index", "scan"):
        for place in ("s3://not-there/x", f"{url}/nothing"):
            result = run_cli(command, place, *output)
            assert (result.returncode, place.split("/")[2] in result.stderr) == (10, True)
        assert run_cli(command, "https://example.com/x", *output).returncode == 2
    assert run_cli("index", url, "--videos", url, *output).returncode == 2
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("chordcache.object_stores.sources._stores", {})
    result = run_cli("index", url, *output)
    assert (result.returncode, "AWS_ACCESS_KEY_ID: got nothing" in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "index.json").exists()
