"""Presets by name, in a clone and in a wheel, and the errors of YAML files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chordcache.config.config import Config, config_from_json
from chordcache.config.presets import preset_names, preset_path, preset_summary
from chordcache.config.yaml_files import config_to_yaml, load_config
from chordcache.errors import NotFoundError, UsageError

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CONFIGS = REPOSITORY / "configs"


def test_the_presets_are_the_files_of_configs() -> None:
    assert preset_names() == tuple(sorted(path.stem for path in CONFIGS.glob("*.yaml")))


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(name) == load_config(CONFIGS / f"{name}.yaml")
    assert load_config(Path(name)) == load_config(name)
    assert 20 <= len(preset_summary(name)) <= 100
    assert preset_summary(name).endswith(".")


def test_a_file_that_exists_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow").write_text("frames: {quality: 33}")
    assert load_config("flow") == config_from_json({"frames": {"quality": 33}})


@pytest.mark.parametrize("path", ["./flow", "configs/flow", "flow.yaml", "../flow", ".", "", "flow/"])
def test_other_paths_are_not_names(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((NotFoundError, UsageError), match=r"no config file|cannot read config"):
        load_config(path)


@pytest.mark.parametrize("name", ["flwo", "FLOW", "default\0", "\udcff", "*"])
def test_an_unknown_name_lists_the_presets(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match="^config: got '.*', expected a YAML file or a preset: compact, flow, "):
        load_config(name)


def test_a_wheel_has_the_presets(tmp_path: Path) -> None:
    """The package as it is installed, in a folder of its own: without the repository beside it."""
    make = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", str(REPOSITORY)]
    subprocess.run([*make, "-w", tmp_path], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", wheel]
    subprocess.run(install, check=True)
    code = "import chordcache, json\nfrom chordcache.config.presets import *\n"
    code += "print(json.dumps([chordcache.__file__, preset_names(), [preset_summary(n) for n in preset_names()]]))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site")},
        cwd="/",
        capture_output=True,
        check=True,
    )
    file, names, summaries = json.loads(done.stdout)
    assert Path(file).parent == tmp_path / "site" / "chordcache"
    assert tuple(names) == preset_names()
    assert summaries == [preset_summary(name) for name in names]


@pytest.mark.parametrize("name", [None, *preset_names()])
def test_a_config_that_is_shown_can_be_read(name: str | None, tmp_path: Path) -> None:
    config = load_config(name)
    text = config_to_yaml(config)
    (tmp_path / "shown.yaml").write_text(text)
    shown = load_config(tmp_path / "shown.yaml")
    assert (shown, shown.train) == (config, config.train)
    assert yaml.safe_load(text).keys() == {"frames", "features", "hdf5", "tiers", "train"}


def test_a_config_without_frames_or_with_a_plug_in_is_shown(tmp_path: Path) -> None:
    plug_in = {"extractor": "a.b:C", "size": [1, 2], "name": "größe"}
    for data in ({"frames": None}, {"features": {"latent": plug_in}, "hdf5": {"features": []}}):
        (tmp_path / "shown.yaml").write_text(config_to_yaml(config_from_json(data)), encoding="utf-8")
        assert load_config(tmp_path / "shown.yaml") == config_from_json(data)
    assert config_to_yaml(Config()).startswith("frames:\n  short_side: 256\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("frames:\n  quality: 80\n fps: 2\n", ":3:2: got text that is not YAML: "),
        ("frames: [", ":1:10: got text that is not YAML: "),
        ("frames:\n\tquality: 80\n", ":2:1: got text that is not YAML: while scanning for the next token found char"),
        ("frames:\n  quality: 'x\n", ":3:1: got text that is not YAML: while scanning a quoted scalar"),
        ("frames: {}\nfps: \x01", ":2:6: got text that is not YAML: the character #x0001: special characters"),
        ("frames:\n  fps: !!int x", ":2:8: got text that is not YAML: invalid literal for int() with base 10: 'x'"),
        ("frames: {}\nx: !!python/object:os.getcwd {}", ":2:4: got text that is not YAML: could not determine a con"),
        ("a: b: c", ":1:5: got text that is not YAML: mapping values are not allowed here"),
        ("frames: *nowhere", ":1:9: got text that is not YAML: found undefined alias 'nowhere'"),
        ("[" * 10_000, ": got text that is not YAML: it is nested too deeply"),
        ("a: \ud800".encode("utf-8", "surrogatepass"), "cannot read config"),
    ],
)  # fmt: skip
def test_yaml_errors_have_a_place(text: str | bytes, place: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        load_config(path)
    message = str(caught.value)
    assert (f"{path}{place}" if place.startswith(":") else place) in message
    assert message.startswith(str(path)) or "cannot read" in message
    assert "\n" not in message


def test_a_folder_does_not_hide_a_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow").mkdir()
    assert load_config("flow") == load_config(preset_path("flow"))
