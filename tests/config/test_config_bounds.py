"""Configs that would take much memory, or that YAML 1.1 reads as something else than what they show."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chordcache.config.bounds import MAX_CONFIG_BYTES
from chordcache.config.config import Config, config_from_json
from chordcache.config.yaml_files import config_to_yaml, load_config, read_config
from chordcache.errors import UsageError

LAUGHS = "a: &a [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"config.yaml:\d+:\d+: got more than 10,000 values"),
        (MERGES, r"config.yaml:\d+:\d+: got more than 10,000 values"),
        ("train: &a {dataset: *a}", r"config.yaml:1:\d+: got values nested more than 64 deep"),
        ("[" * 65 + "]" * 65, r"config.yaml:1:65: got values nested more than 64 deep"),
        ("[" * 100_000, r"config.yaml: got text that is not YAML: it is nested too deeply"),
        ("# " + "x" * MAX_CONFIG_BYTES, "config '.*config.yaml': got more than 262,144 bytes, expected a smaller file"),
        ("frames:\n  quality: 80\n  quality: 90\n", r"config.yaml:3:3: got the key 'quality' twice, expected it once"),
        ("frames: {quality: " + "9" * 100_000 + "}", r"config.yaml:1:19: got text that is not YAML: Exceeds the limit"),
    ],
)
def test_files_beyond_a_bound(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    code = (
        "import sys; from chordcache.config.yaml_files import load_config\n"
        "from chordcache.errors import UsageError\n"
        "try: load_config(sys.argv[1])\n"
        "except UsageError as error: print(error)"
    )
    limit = 512 << 20
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]
    with pytest.raises(UsageError, match=message):
        raise UsageError(done.stdout)


@pytest.mark.parametrize(
    "text", ["1:30", "1:30.5", "010", "0x1F", "1_000", "2024-01-01", "on", "Off", "yes", "NO", "y"]
)
def test_plain_text_is_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(f"value: {text}\n{text}: key\n")
    assert read_config(tmp_path / "c.yaml") == {"value": text, text: "key"}


def test_plain_values_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = "[0, -7, +3, 1.5, .5, 2., 1e3, -.inf, true, FALSE, null, ~, 'no', !!str 12]"
    (tmp_path / "c.yaml").write_text(text)
    expected = [0, -7, 3, 1.5, 0.5, 2.0, 1000.0, float("-inf"), True, False, None, None, "no", "12"]
    values = read_config(tmp_path / "c.yaml")
    assert values == expected
    assert list(map(type, values)) == list(map(type, expected))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frames: {quality: 1:30}", "frames.quality: got '1:30', expected a number"),
        ("frames: {quality: 010}", "frames.quality: got '010', expected a number"),
        ("features: {mel: {mono: yes}}", "features.mel.mono: got 'yes', expected"),
        ("frames: {fps: !!timestamp 2024-01-01}", "could not determine a constructor for the tag"),
    ],
)
def test_a_setting_of_another_type_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_config(tmp_path / "c.yaml")


def test_aliases_are_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n")
    assert read_config(tmp_path / "c.yaml") == {
        "a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": [{"x": 1, "y": 2}] * 2
    }  # fmt: skip


def test_written_configs_are_read_back(tmp_path: Path) -> None:
    texts = ["1e3", "no", "1:30", "010", "2024-01-01", "1_0", "~", "", "a: b", "é", "\x1b[2J", "\u202e", "<<", "0x1"]
    config = config_from_json({"train": {"dataset": {"texts": texts, "numbers": [1e3, 1e300, 1e-9, 0.1, -3, True]}}})
    (tmp_path / "c.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "c.yaml").train == config.train
    assert yaml.safe_load(config_to_yaml(Config())) == read_config_of(config_to_yaml(Config()), tmp_path)


def read_config_of(text: str, folder: Path) -> object:
    (folder / "again.yaml").write_text(text)
    return read_config(folder / "again.yaml")
