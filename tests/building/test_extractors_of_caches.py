"""A cache names the extractors and models of its features. It must not choose what is run or read outside of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.faulty_extractor import ENVIRONMENT

import chordcache as cc
from chordcache.config.config import config_from_json, config_to_json
from chordcache.features import registry
from chordcache.storage import sealed_json

Cli = Callable[..., subprocess.CompletedProcess[str]]

CLASS = "cache.evilmod:Evil"
"""A module beside the working folder, as Python finds it from there"""

EVIL = """
from pathlib import Path
Path({marker!r}).touch()
import numpy as np
from chordcache.features.base import Extractor
class Evil(Extractor):
    def add_frame(self, frame):
        return {{self.name: np.full((1, 2), 7, np.uint8)}}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("built")
    make_video(folder / "videos/0.mp4", num_frames=4)
    make_video(folder / "videos/1.mp4", num_frames=4)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    config = config_from_json({"features": {"flow": None, "motion": None, "mel": None}})
    cc.build(folder / "index.json", folder / "cache", tiers=["lmdb"], config=config, jobs=1)
    return folder


@pytest.fixture
def received(built: Path, tmp_path: Path) -> Path:
    """cache/, whose config names a module in it; index.json; and config.yaml, which names it too."""
    shutil.copytree(built / "cache", tmp_path / "cache")
    shutil.copy(built / "index.json", tmp_path)
    _seal(tmp_path / "cache/chordcache.json")
    (tmp_path / "cache/evilmod.py").write_text(EVIL.format(marker=str(tmp_path / "marker")))
    (tmp_path / "config.yaml").write_text(yaml.dump({"features": {"mine": {"extractor": CLASS}}}))
    (tmp_path / "other.yaml").write_text(yaml.dump({"frames": {"quality": 80}}))
    return tmp_path


def _seal(path: Path, **sections: dict[str, Any]) -> None:
    sections = sections or {"mine": {"extractor": CLASS}}
    data = sealed_json.unseal(path.read_text(), str(path))
    data["config"]["features"].update(sections)
    data["features"]["npz"] = [*sections]
    path.write_text(sealed_json.seal(data) + "\n")


USE = """
import sys
import chordcache as cc
from chordcache.look.summary import summarize

def run(function, *args, **options):
    try:
        return function(*args, **options)
    except cc.ChordcacheError as error:
        print(f"{function.__name__}: {error}")

print(*cc.verify("cache", jobs=1).notes)
cc.verify("cache", level="deep", source=True, jobs=1)
with cc.open_cache("cache") as cache:
    cache.read(0)
dataset = cc.ChordVideoDataset("cache", clip_sampler=cc.RegularClipSampler(num_frames=2))
dataset[0]
for on_miss in ("skip", "source", "build"):
    videos = run(cc.videos.indexed, "index.json", "cache", on_miss=on_miss)
    dataset = run(cc.ChordVideoDataset, videos, features=["frames", "mine"]) if videos else None
    if dataset is not None:
        run(dataset.__getitem__, 0)
for config in (None, "other.yaml"):
    run(cc.build, "index.json", "cache", config=config, jobs=1)
run(cc.build, "index.json", "cache", features=["frames"], config="other.yaml", jobs=1)
run(cc.dry_run, "index.json", "cache")
run(cc.repair, "cache", cc.verify("cache", jobs=1).damage, jobs=1)
run(cc.merge, ["cache", "cache"], "merged")
run(summarize, "cache")
run(cc.report, "cache", "report.html")
run(cc.collect_garbage, "cache")  # a build of a missed video may have the lock
"""


def test_a_cache_runs_no_code(received: Path) -> None:
    """Nothing imports a module that only a cache names, though Python would find it."""
    done = subprocess.run([sys.executable, "-c", USE], cwd=received, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert not (received / "marker").exists(), done.stdout
    assert (
        f"whether 'mine' is stale is not known, and --repair does not build it: features.mine.extractor: got '{CLASS}'"
        in done.stdout
    )
    assert done.stdout.count("build: features.mine.extractor") == 2, done.stdout


WATCH = """
import sys
names = ("open", "os.listdir", "os.scandir", "socket.connect", "socket.getaddrinfo")
sys.addaudithook(lambda event, args: event in names and "private" in str(args) + event and print("OPENED", args))
"""


def test_a_cache_names_no_model(built: Path, tmp_path: Path) -> None:
    """Models in the header are neither opened nor looked up, and are built once the user's config names them too."""
    shutil.copytree(built / "cache", tmp_path / "cache")
    shutil.copy(built / "index.json", tmp_path)
    private = tmp_path / "private"
    for name, kind in {"vae": {"_class_name": "AutoencoderKL"}, "text": {"model_type": "t5"}}.items():
        (private / name).mkdir(parents=True)
        (private / name / "config.json").write_text(json.dumps(kind))
    models = {"text": {"model": str(private / "text")}, "latents": {"model": str(private / "vae")}}
    _seal(tmp_path / "cache/chordcache.json", **models, embed={"model": "private/unknown"})
    (tmp_path / "other.yaml").write_text(
        yaml.dump({"frames": {"quality": 80}, "features": {"text": {"max_tokens": 8}}})
    )
    done = subprocess.run(
        [sys.executable, "-c", WATCH + USE], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "OPENED" not in done.stdout
    for name in ("text", "latents", "embed"):
        assert f"whether '{name}' is stale is not known, and --repair does not build it" in done.stdout
    assert done.stdout.count("build: features.text.model: got") == 2, done.stdout

    (tmp_path / "models.yaml").write_text(yaml.dump({"features": models}))
    use = "import chordcache as cc\nprint(*cc.verify('cache', config='models.yaml', jobs=1).notes)"
    done = subprocess.run(
        [sys.executable, "-c", WATCH + use], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert "OPENED" in done.stdout, done.stderr
    assert "'text'" not in done.stdout


def test_the_config_of_a_user_may_name_the_module(received: Path, run_process: Cli) -> None:
    done = run_process("build", "index.json", "-o", "cache", "-c", "config.yaml", "-j1", cwd=received)
    assert done.returncode == 0, done.stderr
    assert (received / "marker").exists()
    with cc.open_cache(received / "cache") as cache:
        assert cache.read(0, "mine").tolist() == [[7, 7]] * 4
    (received / "marker").unlink()
    done = run_process("build", "index.json", "-o", "cache", "--features", "frames", "-j1", cwd=received)
    assert done.returncode == 0, done.stderr
    assert not (received / "marker").exists()


def test_a_dataset_with_a_config_may_name_the_module(built: Path, tmp_path: Path) -> None:
    """Its module is that of the helpers, which background builds can import."""
    config = tmp_path / "config.yaml"
    mine = {"extractor": "helpers.row_extractors:Groups", "facts": {"is_of_video": True}}
    config.write_text(yaml.dump({"features": {"mine": mine}}))
    script = f"""
import chordcache as cc
videos = cc.videos.indexed({str(built / "index.json")!r}, "new", on_miss="build", config={str(config)!r})
dataset = cc.ChordVideoDataset(videos, features=["mine"], clip_sampler=cc.RegularClipSampler(num_frames=2))
print(dataset[0]["mine"].shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_an_installed_package_may_be_named(received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata is in a folder of packages, and not beside the program that runs."""
    config = config_from_json({"features": {"mine": {"extractor": CLASS}}}, trusted=())
    metadata = tmp_path / "packages/evil-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[chordcache.extractors]\nmine = {CLASS}\n")
    registry._installed.cache_clear()
    monkeypatch.syspath_prepend(metadata.parent)
    with pytest.raises(cc.UsageError, match="installed package"):
        registry.resolve("mine", config)
    monkeypatch.setattr(sys, "path", [*sys.path[1:], str(metadata.parent)])
    registry._installed.cache_clear()
    monkeypatch.syspath_prepend(received)
    try:
        assert registry.resolve("mine", config).extractor == CLASS
    finally:
        registry._installed.cache_clear()
        sys.modules.pop("cache.evilmod", None)
        sys.modules.pop("cache", None)


TOKENIZED = {"text": {"model": "/a", "tokenizer": "/b"}}
POOLED = {"text": {"model": "/a", "pooled_model": "/p"}}
MINE = {"mine": {"extractor": CLASS}}


@pytest.mark.parametrize(
    ("of_cache", "own", "is_trusted"),
    [
        (MINE, {}, False),
        (MINE, {"mine": {"size": 2}}, False),
        (MINE, {"flow": {}}, False),
        (MINE, MINE, True),
        (TOKENIZED, {}, False),
        (TOKENIZED, {"text": {"max_tokens": 8}}, False),
        (TOKENIZED, {"text": {"model": "/a"}}, False),
        (TOKENIZED, TOKENIZED, True),
        (TOKENIZED, {"text": {"model": "/c", "tokenizer": None}}, True),
        (POOLED, {"text": {"model": "/a", "max_tokens": 8}}, False),
        (POOLED, POOLED, True),
    ],
)
def test_only_a_section_that_names_all_models_is_trusted(of_cache: Any, own: Any, is_trusted: bool) -> None:
    cached = config_from_json({"features": of_cache}, trusted={"/a"})
    assert cached.untrusted == of_cache.keys()
    merged = config_from_json({"features": own}, cached)
    assert merged.untrusted == (set() if is_trusted else of_cache.keys())
    assert "untrusted" not in config_to_json(merged)
