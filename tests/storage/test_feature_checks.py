"""Sidecars forged under a right seal are damage when they are read, whatever they say of a feature."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from chordcache.errors import DamageError
from chordcache.features.built_in import BUILT_IN
from chordcache.records import Identity
from chordcache.storage import sealed_json
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.feature_rules import RULES
from chordcache.storage.sidecar import Sidecar

KEY = "a-0123456789abcdef"
NUM = 10


def _info(feature: str, shape: tuple[int, ...], dtype: str, params: Any, facts: Any, **rows: int) -> FeatureInfo:
    file = StoredFile(f"npz/01/{KEY}.{feature}.00000000.npz", 10**6, "0" * 32)
    num_rows = {feature: shape[0], **{name.replace("__", "."): count for name, count in rows.items()}}
    return FeatureInfo(feature, "npz", "0" * 16, params, file, shape, dtype, num_rows, facts)


_MEL = {"sample_rate": 16000, "hop_length": 160, "n_mels": 80, "mono": True}
_CLOCK = {"row_seconds": 0.01, "start_seconds": 0.0, "silence": -100.0}
_CAPTIONS: dict[str, Any] = {
    "shape": [2, 5, 512], "num_rows": {"text": 2}, "params": {"padding": "zeros", "max_tokens": 9},
    "facts": {"is_of_video": True, "num_tokens": [4, 5]},
}  # fmt: skip
"""Changes that make text of two captions"""
_BLOCKS = {"row_seconds": 0.256, "start_seconds": 0.0, "silence": 0, "sample_rate": 16000, "num_samples": 8000}
_WAVEFORM = {"sample_rate": 16000, "dtype": "float32", "channels": "mono"}
_CLIPS = {"frames_per_row": 4, "frames_in_first_row": 1}

SOUND = {
    "frames": _info("frames", (NUM, 32, 48, 3), "uint8", {"codec": "h264", "gop": 8, "stride": 1}, {}),
    "flow": _info("flow", (NUM - 1, 32, 48, 2), "int8", {"short_side": 32}, {}, flow__scale=NUM - 1),
    "motion": _info(
        "motion",
        (NUM, 2, 3, 2),
        "float16",
        {},
        {"height": 32, "width": 48},
        motion__covered=NUM,
        motion__types=NUM,
    ),
    "mel": _info("mel", (40, 80), "float32", _MEL, _CLOCK),
    "waveform": _info("waveform", (2, 4096), "float32", _WAVEFORM, _BLOCKS),
    "text": _info("text", (5, 8), "float16", {}, {"is_of_video": True}),
    "latents": _info("latents", (4, 2, 4, 6), "float16", {"compression": [4, 8]}, _CLIPS),
    "embed": _info("embed", (NUM, 8), "float16", {}, {}),
    "pose": _info("pose", (NUM, 33, 4), "float32", {}, {}),
    "mine": _info("mine", (NUM, 7), "int32", {"anything": {"goes": 1}}, {"a": [1]}),
}


def _line(data: Mapping[str, Any], name: str, **changes: Any) -> str:
    info = {**_plain(SOUND[name]), **changes}
    if "num_bytes" in changes:
        info["file"] = SOUND[name].file.replace(num_bytes=info.pop("num_bytes"))
    return sealed_json.seal({**_sidecar(), "features": [info], **data})


def _plain(info: FeatureInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__struct_fields__}


def _sidecar() -> dict[str, Any]:
    sidecar = Sidecar(KEY, "root", "a.mp4", Identity(1, 1), NUM, 48, 32, 0.0, 0.4, "pts", ())
    return {name: getattr(sidecar, name) for name in sidecar.__struct_fields__}


def _read(line: str) -> Sidecar:
    return Sidecar.from_line(line, "a.json")


@pytest.mark.parametrize("feature", SOUND)
def test_what_builds_write_is_read(feature: str) -> None:
    assert _read(_line({}, feature)).features == (SOUND[feature],)


def test_each_built_in_feature_has_rules() -> None:
    assert RULES.keys() == BUILT_IN.keys()


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


OF_ANY: list[dict[str, Any]] = [
    {"dtype": "object"},
    {"dtype": "V8"},
    {"dtype": "i4,i4"},
    {"dtype": "S999999999"},
    {"dtype": "x" * 1000},
    {"tier": "tape"},
    {"feature": "Frames"},
    *({"used": "0" * 16, "params": params} for params in ({}, *({"uses": uses} for uses in (["__class__"], [{}], 5)))),
    {"num_rows": {}},
    {"num_rows": {"other": NUM}},
    {"num_bytes": 70},
    {"num_bytes": -1},
    {"file": None},
    {"absent": "not there"},
    {"shape": []},
    {"shape": [-1, 32, 48, 3]},
    {"shape": [1 << 40, 2]},
    {"facts": {"row_seconds": 0.01}},
    {"facts": {"row_seconds": 0, "start_seconds": 0, "silence": 0}},
    {"facts": {"row_seconds": 1e-300, "start_seconds": 0, "silence": 0}},
    {"facts": {"row_seconds": 0.01, "start_seconds": 1e300, "silence": 0}},
    {"facts": {"row_seconds": "0.01", "start_seconds": 0, "silence": 0}},
    {"facts": {"frames_per_row": 0, "frames_in_first_row": 1}},
    {"facts": {"is_of_video": 1}},
]


@pytest.mark.parametrize("feature", SOUND)
@pytest.mark.parametrize("changes", OF_ANY, ids=lambda changes: str(changes)[:50])
def test_no_feature_has_these(feature: str, changes: dict[str, Any]) -> None:
    with pytest.raises(DamageError, match=r"'a\.json' is damaged: it is not a sidecar"):
        _read(_line({}, feature, **changes))


def test_more_rows_and_frames_than_readers_have_arrays_of() -> None:
    """A sparse file is as large as these rows need, and takes no space."""
    for num_rows, is_right in ((1 << 26, True), ((1 << 26) + 1, False)):
        line = _line({}, "mine", shape=[num_rows, 7], num_rows={"mine": num_rows}, num_bytes=1 << 40)
        assert _is_read(line) == is_right
    for num_frames, is_right in ((1 << 24, True), ((1 << 24) + 1, False)):
        assert _is_read(_line({"num_frames": num_frames}, "mine", num_bytes=1 << 40)) == is_right
    assert not _is_read(_line({}, "mine", shape=[-1, 7], num_rows={"mine": -1}))


def _is_read(line: str) -> bool:
    try:
        _read(line)
    except DamageError:
        return False
    return True


FORGED: list[tuple[str, dict[str, Any]]] = [
    *(("frames", {"shape": shape}) for shape in ([NUM, 32, 48, c] for c in (0, 1, 2, 4))),
    ("frames", {"shape": [NUM, 32, 48]}),
    *((name, {"shape": [], "dtype": ""}) for name in SOUND if name != "mine"),
    *((name, {"shape": [SOUND[name].shape[0]]}) for name in SOUND if name != "mine"),
    ("frames", {"shape": [NUM, 16385, 48, 3]}),
    ("frames", {"shape": [NUM, 48, 32, 3]}),
    ("flow", {"shape": [NUM - 1, 50, 48, 2]}),
    ("mel", {"params": {**_MEL, "n_mels": 32770}, "shape": [40, 32770]}),
    ("mel", {"params": {**_MEL, "n_fft": 156}}),
    ("mel", {"params": {**_MEL, "mono": False, "n_mels": 8192}, "shape": [40, 513, 8192]}),
    ("waveform", {"shape": [2, (1 << 22) + 1]}),
    ("waveform", {"params": {**_WAVEFORM, "channels": "all"}, "shape": [2, 1025, 4096]}),
    ("mine", {"dtype": "uint8", "shape": [NUM, (1 << 29) + 1]}),
    ("frames", {"shape": [NUM - 1, 32, 48, 3], "num_rows": {"frames": NUM - 1}}),
    ("frames", {"dtype": "int8"}),
    ("frames", {"params": {}}),
    ("frames", {"params": {"codec": "planes"}}),
    ("frames", {"params": {"codec": "h264"}}),
    *(("frames", {"params": {"codec": "h264", "gop": gop, "stride": 1}}) for gop in (0, -1, 65, "8", 0.5, None)),
    *(("frames", {"params": {"codec": "mpeg4", "gop": 8, "stride": stride}}) for stride in (0, 17, 10**30)),
    ("frames", {"facts": {"row_seconds": 0.1, "start_seconds": 0, "silence": 0}}),
    ("frames", {"num_rows": {"frames": NUM, "frames.more": NUM}}),
    ("flow", {"shape": [NUM, 32, 48, 2]}),
    ("flow", {"shape": [NUM - 1, 32, 48, 3]}),
    ("flow", {"shape": [NUM - 1, 0, 48, 2]}),
    ("flow", {"num_rows": {"flow": NUM - 1}}),
    ("flow", {"dtype": "float64"}),
    ("flow", {"params": {"short_side": 0}}),
    ("motion", {"facts": {}}),
    ("motion", {"facts": {"height": 0, "width": 48}}),
    ("motion", {"facts": {"height": 33, "width": 48}}),
    ("motion", {"num_rows": {"motion": NUM}}),
    *(("mel", {"params": _without(_MEL, name)}) for name in _MEL),
    *(("mel", {"facts": _without(_CLOCK, name)}) for name in _CLOCK),
    ("mel", {"facts": {**_CLOCK, "row_seconds": 0.02}}),
    ("mel", {"params": {**_MEL, "sample_rate": 0}}),
    ("mel", {"shape": [40, 79]}),
    ("mel", {"shape": [40, 2, 80]}),
    *(("waveform", {"params": _without(_WAVEFORM, name)}) for name in _WAVEFORM),
    *(("waveform", {"facts": _without(_BLOCKS, name)}) for name in _BLOCKS),
    ("waveform", {"facts": {**_BLOCKS, "num_samples": 8193}}),
    ("waveform", {"facts": {**_BLOCKS, "num_samples": -1}}),
    ("waveform", {"facts": {**_BLOCKS, "sample_rate": 0}}),
    ("waveform", {"shape": [2, 1, 4096]}),
    ("text", {"facts": {}}),
    ("text", {"params": {"padding": "zeros", "max_tokens": 9}}),
    ("text", {"params": {"padding": "left"}}),
    *(
        ("text", {**_CAPTIONS, **changes})
        for changes in (
            {"facts": {"is_of_video": True}},
            {"facts": {"is_of_video": True, "num_tokens": [4]}},
            {"facts": {"is_of_video": True, "num_tokens": [4, 6]}},
            {"facts": {"is_of_video": True, "num_tokens": [4, -1]}},
            {"facts": {"is_of_video": True, "num_tokens": 4}},
            {"shape": [0, 5, 512], "num_rows": {"text": 0}, "facts": {"is_of_video": True, "num_tokens": []}},
            {"params": {"padding": "zeros", "max_tokens": 5, "pooled_model": "/a"}},
            {"params": {"padding": "zeros"}},
            {"params": {"padding": "zeros", "max_tokens": 4}},
            {"params": {"padding": "zeros", "max_tokens": 1 << 20}},
            {"params": {"padding": "zeros", "max_tokens": 1 << 40}},
        )
    ),
    ("latents", {"params": {}}),
    ("latents", {"params": {"compression": [4, 8], "moments": True}}),
    ("latents", {"params": {"compression": [4, 8], "first_frame": "alone"}}),
    ("latents", {"params": {"compression": [4, 8], "first_frame": "gray"}}),
    ("latents", {"params": {"compression": [4, 8], "axes": "ctwh"}}),
    ("latents", {"params": {"compression": [4, 8], "normalization": {"latents_mean": [0.5]}}}),
    ("latents", {"params": {"compression": [4, 8], "normalization": {"latents_std": [1, 0]}}}),
    ("latents", {"facts": {**_CLIPS, "normalization": {"latents_std": [1, 1, 1]}}}),
    ("latents", {"facts": {**_CLIPS, "normalization": 3}}),
    ("latents", {"params": {"compression": [4]}}),
    ("latents", {"params": {"compression": [4, 0]}}),
    ("latents", {"params": {"compression": [1, 8]}}),
    ("latents", {"facts": _without(_CLIPS, "frames_in_first_row")}),
    ("latents", {"facts": {**_CLIPS, "frames_per_clip": 0}}),
    ("latents", {"shape": [2, 2, 4, 6], "num_rows": {"latents": 2}}),
    ("embed", {"shape": [NUM]}),
    ("pose", {"shape": [NUM, 32, 4]}),
    ("mine", {"shape": [NUM, 1 << 29]}),
    ("mine", {"facts": {**_CLOCK, "silence": 1 << 40}}),
]


@pytest.mark.parametrize(
    ("feature", "data", "changes"),
    [
        ("frames", {"width": 16384, "height": 8192}, {"shape": [NUM, 8192, 16384, 3]}),
        ("frames", {"width": 8194, "height": 16384}, {"shape": [NUM, 16384, 8194, 3]}),
        ("flow", {"display_size": [480, 320]}, {"shape": [NUM - 1, 320, 480, 2]}),
        ("flow", {"display_size": [480, 320]}, {"shape": [NUM - 1, 482, 480, 2]}),
        ("flow", {"display_size": [1 << 20, 2]}, {"shape": [NUM - 1, 16384, 8194, 2]}),
    ],
)
def test_pictures_have_the_size_of_a_source(feature: str, data: dict[str, Any], changes: dict[str, Any]) -> None:
    """Flow may be larger than the frames, by ``flow.short_side``, and not larger than the source."""
    height, width = changes["shape"][1:3]
    is_right = height * width <= 1 << 27 and (feature == "frames" or height <= 480)
    with nullcontext() if is_right else pytest.raises(DamageError, match=f"{feature}: "):
        _read(_line(data, feature, **changes))


def test_text_of_several_captions() -> None:
    _read(_line({}, "text", **_CAPTIONS))


@pytest.mark.parametrize(("feature", "changes"), FORGED, ids=lambda value: str(value)[:60])
def test_a_feature_has_what_its_extractor_writes(feature: str, changes: dict[str, Any]) -> None:
    with pytest.raises(DamageError, match=r"'a\.json' is damaged: it is not a sidecar"):
        _read(_line({}, feature, **changes))


@pytest.mark.parametrize(
    "data",
    [
        {"key": "../x-0123456789abcdef"},
        {"key": "a\x1b[2J-0123456789abcdef"},
        {"num_frames": 0},
        {"num_frames": -1},
        {"num_frames": 11},
        {"num_frames": 1 << 40},
        {"width": 0},
        {"width": 16385},
        {"width": 32, "height": 48},
        {"start_seconds": 1e300},
        {"start_seconds": "0"},
        {"duration_seconds": -0.5},
        {"duration_seconds": 1e300},
    ],
    ids=str,
)
def test_a_video_has_these_bounds(data: dict[str, Any]) -> None:
    with pytest.raises(DamageError, match=r"'a\.json' is damaged: it is not a sidecar"):
        _read(_line(data, "frames"))


def test_an_absent_feature_may_lack_parameters_that_only_rows_need() -> None:
    absent = {"absent": "no audio track", "file": None, "shape": [], "dtype": "", "num_rows": {}}
    assert _read(_line({}, "mel", **absent, facts={})).features[0].absent
    with pytest.raises(DamageError, match="mel: parameters or facts"):
        _read(_line({}, "mel", **absent, params={**_MEL, "hop_length": 0}))
