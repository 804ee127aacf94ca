"""Configurations: defaults, merging, and everything that is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from chordcache.config.config import Config, config_from_json, config_to_json
from chordcache.config.features import FlowConfig, MelConfig, PluginConfig, TextConfig
from chordcache.config.picture import Bucket, FramesConfig, PictureConfig
from chordcache.config.yaml_files import config_to_yaml, load_config
from chordcache.errors import NotFoundError, UsageError
from chordcache.storage.artefacts.tiers import TIERS

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


@pytest.mark.parametrize("name", ["flow", "multimodal", "compact", "smallest"])
def test_presets_load_and_survive_json(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config
    for tier in TIERS:
        assert set(config.in_tier(tier)) <= set(config.names())


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


def test_every_preset_is_tested() -> None:
    (mark,) = test_presets_load_and_survive_json.pytestmark  # type: ignore[attr-defined]
    assert sorted(mark.args[1]) == sorted(path.stem for path in CONFIGS.glob("*.yaml"))


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
        (
            {"features": {"flow": {"method": "raft"}}},
            "features.flow.method: got 'raft', expected one of farneback, dis",
        ),
        ({"features": {"flow": {"dtype": "int4"}}}, "features.flow.dtype: got 'int4', expected one of"),
        ({"features": {"flow": {"speed": 1}}}, "features.flow.speed: got an unknown key, expected one of method"),
        ({"features": {"flow": {"short_side": 3}}}, "features.flow.short_side: got 3, expected an even number"),
        ({"features": {"motion": {"tier": "npz"}}}, "features.motion.tier: got an unknown key, expected one of "),
        ({"features": {"mel": {"hop_length": 0}}}, "features.mel.hop_length: got 0, expected a number from 1 to 400"),
        ({"features": {"mel": {"fmax": 9000}}}, "features.mel.fmax: got 9000, expected a number from 0 to 8000"),
        (
            {"features": {"mel": {"fmin": 500, "fmax": 400}}},
            "features.mel.fmin: got 500, expected a frequency below fmax",
        ),
        (
            {"features": {"mel": {"n_mels": 200}}},
            "features.mel.n_mels: got 200, expected a lowest band that is not narrower than",
        ),
        ({"features": {"mel": {"mono": 1}}}, "features.mel.mono: got 1, expected one of True, False"),
        ({"features": {"pose": {"stride": 0}}}, "features.pose.stride: got 0"),
        (
            {"features": {"latent": {"size": 3}}},
            "features.latent: got an unknown feature, expected one of flow, motion, mel",
        ),
        ({"features": {"latent": {"extractor": "nowhere"}}}, "features.latent.extractor: got 'nowhere', expected 'p"),
        (
            {"features": {"Latent": {"extractor": "a:B"}}},
            "features: got the name 'Latent', expected lower case letters",
        ),
        (
            {"features": {"frames": {"extractor": "a:B"}}},
            "features: got the name 'frames', expected .* not one of frames",
        ),
        (
            {"features": {"latent": {"extractor": "a:B", "x": {1, 2}}}},
            "features.latent: got parameters other than plain",
        ),
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
        ({"quality": 101}, "frames.quality: got 101"),
        ({"quality": 90.5}, "frames.quality: got 90.5"),
        ({"quality": True}, "frames.quality: got True"),
        ({"quality": "90"}, "frames.quality: got '90'"),
        ({"quality": None}, "frames.quality: got None"),
        ({"short_side": 0}, "frames.short_side: got 0, expected a number from 2 to 16384"),
        ({"short_side": 255}, "frames.short_side: got 255, expected an even number"),
        ({"short_side": 16386}, "frames.short_side: got 16386"),
        ({"fps": 0}, "frames.fps: got 0"),
        ({"fps": float("nan")}, "frames.fps: got nan"),
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
        ({"buckets": [[480, 8194, 49]]}, r"^frames.buckets\[0\]: width: got 8194, expected"),
        ({"buckets": [[480, 720.0, 49]]}, r"^frames.buckets\[0\]: width: got 720.0, expected"),
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


def test_unknown_section_lists_the_valid_ones() -> None:
    with pytest.raises(UsageError, match="frame: got an unknown key, expected one of frames, features, hdf5"):
        config_from_json({"frame": {}})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("frames: {quality: 200}", "config '.*config.yaml': frames.quality: got 200"),
        ("frames: [", "config.yaml.*: got text that is not YAML: "),
        ("- frames", "config '.*config.yaml': got a list, expected a mapping of sections"),
        ("!!python/object/apply:os.getcwd []", "config.yaml.*: got text that is not YAML: "),
        (b"\xff\xfe\x00", "cannot read config '.*config.yaml'"),
        (b"frames: \x01", "config.yaml.*: got text that is not YAML: "),
        ("frames: {fps: 2020-99-99}", "config.yaml.*: frames.fps: got .2020-99-99., expected a number"),
        ("[" * 10_000, "config.yaml.*: got text that is not YAML: "),
    ],
)
def test_refuses_files(tmp_path: Path, text: str | bytes, match: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=match) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no config file '.*none.yaml'"):
        load_config(tmp_path / "none.yaml")


def test_a_folder_is_not_a_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read config"):
        load_config(tmp_path)


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().frames = None


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


def test_codecs_that_are_not_known(tmp_path: Path) -> None:
    for codec in ("gif", ["jpeg"], None):
        with pytest.raises(UsageError, match="frames.codec: got"):
            config_from_json({"frames": {"codec": codec}}, config_from_json({"frames": {"quality": 80}}))
