"""Configurations: defaults, merging, and everything that is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from chordcache.config import Config, FramesConfig, config_from_json, load_config
from chordcache.errors import ConfigError, NotFound, UsageError

DEFAULT_YAML = Path(__file__).resolve().parent.parent / "configs" / "default.yaml"


def test_default_yaml_is_the_packaged_default() -> None:
    assert load_config(DEFAULT_YAML) == Config() == load_config(None)


def test_default_yaml_has_every_key_with_a_comment() -> None:
    text = DEFAULT_YAML.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == dataclasses.asdict(Config())
    keys = [line for line in text.splitlines() if line.startswith(" ")]
    assert all("  # " in line for line in keys)


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("", FramesConfig()),
        ("frames: {}", FramesConfig()),
        ("frames: {quality: 75}", FramesConfig(quality=75)),
        ("frames: {short_side: null, fps: 12.5}", FramesConfig(short_side=None, fps=12.5)),
        ("frames: {codec: raw, fps: 2}", FramesConfig(codec="raw", fps=2)),
        ("frames: null", None),
    ],
)
def test_merges_onto_the_defaults(tmp_path: Path, text: str, frames: FramesConfig | None) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert load_config(path) == Config(frames=frames)


@pytest.mark.parametrize(
    ("frames", "match"),
    [
        ({"quality": 0}, "frames.quality: got 0, must be a number from 1 to 100"),
        ({"quality": 101}, "frames.quality: got 101"),
        ({"quality": 90.5}, "frames.quality: got 90.5"),
        ({"quality": True}, "frames.quality: got True"),
        ({"quality": "90"}, "frames.quality: got '90'"),
        ({"quality": None}, "frames.quality: got None"),
        ({"short_side": 0}, "frames.short_side: got 0, must be a number from 2 to 16384"),
        ({"short_side": 255}, "frames.short_side: got 255, must be even"),
        ({"short_side": 16386}, "frames.short_side: got 16386"),
        ({"fps": 0}, "frames.fps: got 0"),
        ({"fps": float("nan")}, "frames.fps: got nan"),
        ({"fps": float("inf")}, "frames.fps: got inf"),
        ({"codec": "png"}, "frames.codec: got 'png', must be one of jpeg, raw"),
        ({"codec": ["jpeg"]}, r"frames.codec: got \['jpeg'\]"),
        ({"tier": "s3"}, "frames.tier: got 's3', must be one of lmdb"),
        ({"colour": 1}, "unknown key 'frames.colour'; valid keys are tier, codec, quality, short_side, fps"),
        ({1: 1}, "unknown key 'frames.1'; valid keys are"),
        ([], r"frames: got \[\], must be a mapping or null"),
        ("jpeg", "frames: got 'jpeg', must be a mapping or null"),
    ],
)
def test_refuses_values(frames: object, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        config_from_json({"frames": frames})


@pytest.mark.parametrize(
    "edge", [{"quality": 1}, {"quality": 100}, {"short_side": 2}, {"short_side": 16384}, {"fps": 0.001}]
)
def test_takes_the_edges(edge: dict[str, float]) -> None:
    assert dataclasses.asdict(config_from_json({"frames": edge}).frames).items() >= edge.items()


def test_unknown_section_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="unknown key 'frame'; valid keys are frames"):
        config_from_json({"frame": {}})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("frames: {quality: 200}", "config '.*config.yaml': frames.quality: got 200"),
        ("frames: [", "config '.*config.yaml' is not YAML: "),
        ("- frames", "config '.*config.yaml': a config is a mapping of sections, got list"),
        ("!!python/object/apply:os.getcwd []", "config '.*config.yaml' is not YAML: "),
        (b"\xff\xfe\x00", "cannot read config '.*config.yaml'"),
        (b"frames: \x01", "config '.*config.yaml' is not YAML: "),
    ],
)
def test_refuses_files(tmp_path: Path, text: str | bytes, match: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=match) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no config file '.*none.yaml'"):
        load_config(tmp_path / "none.yaml")


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read config"):
        load_config(tmp_path)


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().frames = None


def test_config_error_is_a_usage_error() -> None:
    assert issubclass(ConfigError, UsageError)
    assert issubclass(ConfigError, ValueError)
