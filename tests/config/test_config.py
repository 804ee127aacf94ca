"""Configurations: defaults, merging, and everything that is refused, also files that would take much memory."""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chordcache.config.bounds import MAX_CONFIG_BYTES
from chordcache.config.config import Config, config_from_json, config_to_json
from chordcache.config.features import FlowConfig, MelConfig, PluginConfig, TextConfig
from chordcache.config.picture import Bucket, FramesConfig, PictureConfig
from chordcache.config.yaml_files import config_to_yaml, load_config, read_config
from chordcache.errors import UsageError

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
DEFAULT_YAML = CONFIGS.parent / "docs/reference/default.yaml"
BUCKETS = (Bucket(16, 32, 1), Bucket(480, 720, 49))


def test_default_yaml_is_the_packaged_default() -> None:
    assert load_config(DEFAULT_YAML) == Config() == load_config(None)


def test_default_yaml_has_every_key_with_a_comment() -> None:
    text = DEFAULT_YAML.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == json.loads(json.dumps(config_to_json(Config())))
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
        ("frames: {codec: mpeg4, quantizer: 3, stride: 4}", FramesConfig(codec="mpeg4", quantizer=3, stride=4)),
        ("frames: {codec: h264, crf: 20, gop: 16}", FramesConfig(codec="h264", crf=20, gop=16)),
        ("frames: {buckets: [[16, 32, 1], [480, 720, 49]]}", FramesConfig(buckets=BUCKETS)),
        ("frames: null", None),
    ],
)
def test_merges_onto_the_defaults(tmp_path: Path, text: str, frames: FramesConfig | None) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert load_config(path) == Config(frames=frames)


def test_buckets_survive_json_and_yaml(tmp_path: Path) -> None:
    config = Config(frames=FramesConfig(buckets=BUCKETS))
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config
    (tmp_path / "c.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "c.yaml") == config
    assert config.picture.buckets == BUCKETS


def test_the_order_of_buckets_is_without_meaning() -> None:
    one, other = PictureConfig(buckets=BUCKETS), PictureConfig(buckets=BUCKETS[::-1])
    assert one.normalized() == other.normalized()
    assert one.params()["buckets"] == [[16, 32, 1], [480, 720, 49]]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("features: {flow: null, mel: null}", ("frames", "motion")),
        ("frames: null", ("flow", "motion", "mel")),
        ("features: {pose: {}}", ("frames", "flow", "motion", "mel", "pose")),
        ("features: {latent: {extractor: 'a.b:C', size: 3}}", ("frames", "flow", "motion", "mel", "latent")),
        ("features:", ("frames", "flow", "motion", "mel")),
    ],
)
def test_features_are_added_and_taken_out(text: str, names: tuple[str, ...]) -> None:
    assert config_from_json(yaml.safe_load(text)).names() == names


def test_settings_that_are_left_out_have_their_defaults() -> None:
    config = config_from_json({"features": {"flow": {"dtype": "float16"}, "mel": {"n_mels": 40}}})
    assert config.features["flow"] == FlowConfig(method="dis", dtype="float16")
    assert config.features["mel"] == MelConfig(n_mels=40, hop_length=160)


def test_features_of_a_tier() -> None:
    config = Config()
    assert config.in_tier("lmdb") == ("frames",)
    assert config.in_tier("npz") == ("flow", "motion", "mel")
    assert config.in_tier("hdf5") == ("frames", "flow", "mel")
    with pytest.raises(UsageError, match="hdf5.features: got 'flow', expected some of frames, motion, mel."):
        config_from_json({"features": {"flow": None}}).in_tier("hdf5")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"features": {"flow": {"method": "raft"}}}, "features.flow.method: got 'raft', expected one of farneback"),
        (
            {"features": {"flow": {"preset": "slow"}}},
            "features.flow.preset: got 'slow', expected one of ultrafast",
        ),
        ({"features": {"flow": {"dtype": "float64"}}}, "features.flow.dtype: got 'float64', expected one of float32"),
        ({"features": {"flow": {"speed": 1}}}, "features.flow.speed: got an unknown key, expected one of method"),
        ({"features": {"flow": {"short_side": 3}}}, "features.flow.short_side: got 3, expected an even number"),
        ({"features": {"motion": {"tier": "npz"}}}, "features.motion.tier: got an unknown key, expected one of "),
        ({"features": {"mel": {"hop_length": 0}}}, "features.mel.hop_length: got 0, expected a number from 1 to 400"),
        ({"features": {"mel": {"fmax": 9000}}}, "features.mel.fmax: got 9000, expected a number from 0 to 8000"),
        ({"features": {"mel": {"fmin": 500, "fmax": 400}}}, "features.mel.fmin: got 500, expected a frequency below"),
        ({"features": {"mel": {"n_mels": 200}}}, "features.mel.n_mels: got 200, expected a lowest band that is not"),
        ({"features": {"mel": {"mono": 1}}}, "features.mel.mono: got 1, expected one of True, False"),
        ({"features": {"pose": {"stride": 0}}}, "features.pose.stride: got 0"),
        ({"features": {"latent": {"size": 3}}}, "features.latent: got an unknown feature, expected one of flow, mot"),
        ({"features": {"latent": {"extractor": "nowhere"}}}, "features.latent.extractor: got 'nowhere', expected 'p"),
        ({"features": {"Latent": {"extractor": "a:B"}}}, "features: got the name 'Latent', expected lower case lette"),
        ({"features": {"frames": {"extractor": "a:B"}}}, "features: got the name 'frames', expected .* not one of f"),
        ({"features": {"latent": {"extractor": "a:B", "x": {1, 2}}}}, "features.latent: got parameters other than"),
        ({"features": []}, r"features: got \[\], expected a mapping"),
        ({"hdf5": {"features": "flow"}}, "hdf5.features: got 'flow', expected a list"),
        ({"hdf5": {"features": ["flow", "flow"]}}, "expected each name once"),
        ({"frames": {"hdr": "hable"}}, "frames.hdr: got 'hable', expected one of as_is, tonemap"),
        ({"frames": {"stereo": "both"}}, "frames.stereo: got 'both', expected one of as_is, left, right"),
        ({"frames": {"stereo_layout": "rows"}}, "frames.stereo_layout: got 'rows', expected one of auto"),
    ],
)
def test_refuses_features(data: object, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        config_from_json(data)


@pytest.mark.parametrize(
    ("frames", "match"),
    [
        ({"quality": 0}, "frames.quality: got 0, expected a number from 1 to 100"),
        ({"quality": 90.5}, "frames.quality: got 90.5"),
        ({"quality": True}, "frames.quality: got True"),
        ({"quality": None}, "frames.quality: got None"),
        ({"short_side": 0}, "frames.short_side: got 0, expected a number from 2 to 16384"),
        ({"short_side": 255}, "frames.short_side: got 255, expected an even number"),
        ({"fps": 0}, "frames.fps: got 0"),
        ({"fps": float("inf")}, "frames.fps: got inf"),
        ({"codec": "png"}, "frames.codec: got 'png', expected one of jpeg, yuv420, raw"),
        ({"codec": ["jpeg"]}, r"frames.codec: got \['jpeg'\]"),
        ({"color": 1}, "frames.color: got an unknown key, expected one of short_side, fps, hdr, stereo, stereo_layout"),
        ({1: 1}, "frames.1: got an unknown key, expected one of"),
        ({"buckets": []}, r"^frames.buckets: got \[\], expected a list of 1 to 1000 buckets"),
        ({"buckets": "480x720x49"}, "^frames.buckets: got '480x720x49', expected a list"),
        ({"buckets": [[480, 720, 49]] * 1001}, r"^frames.buckets: got .{80}, expected a list of 1 to 1000 buckets"),
        ({"buckets": [480, 720, 49]}, r"^frames.buckets\[0\]: got 480, expected \[height, width, num_frames\]"),
        ({"buckets": [[480, 720, 49], [480, 720]]}, r"^frames.buckets\[1\]: got \[480, 720\], expected \[height"),
        ({"buckets": [[481, 720, 49]]}, r"^frames.buckets\[0\]: height: got 481, expected an even number"),
        ({"buckets": [[480, 14, 49]]}, r"^frames.buckets\[0\]: width: got 14, expected a number from 16 to 8192"),
        ({"buckets": [[480, 720, 0]]}, r"^frames.buckets\[0\]: num_frames: got 0, expected a number from 1 to 100000"),
        ({"buckets": [[480, 720, True]]}, r"^frames.buckets\[0\]: num_frames: got True, expected"),
        ({"buckets": [[16, 16, 1], [16, 16, 1]]}, r"^frames.buckets\[1\]: got \[16, 16, 1\] a second time"),
        ({"buckets": [[16, 16, 1]], "short_side": 224}, "^frames.short_side: got 224 with frames.buckets"),
        ({"buckets": [[16, 16, 1]], "short_side": None}, "^frames.short_side: got None with frames.buckets"),
        ([], r"frames: got \[\], expected a mapping or null"),
        ("jpeg", "frames: got 'jpeg', expected a mapping or null"),
    ],
)
def test_refuses_values(frames: object, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        config_from_json({"frames": frames})


@pytest.mark.parametrize(
    "edge", [{"quality": 1}, {"quality": 100}, {"short_side": 2}, {"short_side": 16384}, {"fps": 0.001}]
)
def test_takes_the_edges(edge: dict[str, float]) -> None:
    assert dataclasses.asdict(config_from_json({"frames": edge}).frames).items() >= edge.items()


def test_a_plug_in_with_the_name_of_a_built_in_feature() -> None:
    with pytest.raises(UsageError, match=r"^features\.mel: got a PluginConfig, expected a MelConfig\. Choose another"):
        Config(features={"mel": PluginConfig("mel", "my.mel:Mel")})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("frames: {quality: 200}", "config '.*config.yaml': frames.quality: got 200"),
        ("- frames", "config '.*config.yaml': got a list, expected a mapping of sections"),
        (b"\xff\xfe\x00", "cannot read config '.*config.yaml'"),
        ("frames: {fps: 2020-99-99}", "config.yaml.*: frames.fps: got .2020-99-99., expected a number"),
    ],
)
def test_refuses_files(tmp_path: Path, text: str | bytes, match: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=match) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("of_cache", "changes", "frames"),
    [
        ({"quality": 80}, {"codec": "raw"}, {"codec": "raw"}),
        ({"codec": "h264", "crf": 20, "gop": 16}, {"codec": "mpeg4"}, {"codec": "mpeg4", "gop": 16}),
        ({"codec": "h264", "crf": 20, "gop": 16}, {"codec": "jpeg"}, {}),
        ({"codec": "h264", "crf": 20}, {"codec": "h264", "gop": 4}, {"codec": "h264", "crf": 20, "gop": 4}),
        ({"short_side": 128}, {"buckets": [[64, 96, 9]]}, {"buckets": [[64, 96, 9]]}),
        ({"short_side": 128, "quality": 80}, {"fps": 8}, {"short_side": 128, "quality": 80, "fps": 8}),
    ],
)
def test_settings_of_a_cache_end_with_what_they_belong_to(
    of_cache: dict[str, Any], changes: dict[str, Any], frames: dict[str, Any]
) -> None:
    """A user cannot remove them from the file with the changes, which does not have them."""
    merged = config_from_json({"frames": changes}, config_from_json({"frames": of_cache}))
    assert merged.frames == config_from_json({"frames": frames}).frames


def test_another_model_has_its_own_tokenizer() -> None:
    before = config_from_json({"features": {"text": {"model": "/a", "tokenizer": "/b", "dtype": "float32"}}})
    assert config_from_json({"features": {"text": {"model": "/c"}}}, before).section("text") == TextConfig(
        "/c", dtype="float32"
    )
    assert config_from_json({"features": {"text": {"dtype": "float16"}}}, before).section("text") == TextConfig(
        "/a", "/b"
    )
    pooled = config_from_json({"features": {"text": {"pooled_model": "/p", "pooled_tokenizer": "/q"}}}, before)
    changed = config_from_json({"features": {"text": {"pooled_model": "/r"}}}, pooled).section("text")
    assert (changed.tokenizer, changed.pooled_model, changed.pooled_tokenizer) == ("/b", "/r", None)


LAUGHS = "a: &a [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


BEYOND = {
    LAUGHS: r"config.yaml:\d+:\d+: got more than 10,000 values",
    MERGES: r"config.yaml:\d+:\d+: got more than 10,000 values",
    "train: &a {dataset: *a}": r"config.yaml:1:\d+: got values nested more than 64 deep",
    "[" * 65 + "]" * 65: r"config.yaml:1:65: got values nested more than 64 deep",
    "[" * 100_000: r"config.yaml: got text that is not YAML: it is nested too deeply",
    "# " + "x" * MAX_CONFIG_BYTES: "config '.*config.yaml': got more than 262,144 bytes, expected a smaller file",
    "frames:\n  quality: 80\n  quality: 90\n": r"config.yaml:3:3: got the key 'quality' twice, expected it once",
    "frames: {quality: " + "9" * 100_000 + "}": r"config.yaml:1:19: got text that is not YAML: Exceeds the limit",
}
"""Text of a file to the error about it"""
LOAD = """
import sys
from chordcache.config.yaml_files import load_config
from chordcache.errors import UsageError
for path in sys.argv[1:]:
    try:
        load_config(path)
    except UsageError as error:
        print(error)
"""


def test_files_beyond_a_bound(tmp_path: Path) -> None:
    """A process that may use 512 MiB reads them all."""
    paths = [tmp_path / str(number) / "config.yaml" for number in range(len(BEYOND))]
    for path, text in zip(paths, BEYOND, strict=True):
        path.parent.mkdir()
        path.write_text(text)
    limit = 512 << 20
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *paths], capture_output=True, text=True, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]
    for line, message in zip(done.stdout.splitlines(), BEYOND.values(), strict=True):
        assert re.search(message, line), line


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
