"""The feature "librosa": against librosa called directly on the samples that were written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import torch
from helpers.inline import HERE
from helpers.sound import RATE, noise, write_sound

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import NotFoundError, UsageError
from chordcache.features.librosa import LibrosaExtractor
from chordcache.features.registry import resolve

SECONDS = 3
SIGNAL = noise(SECONDS * RATE)
TOLERANCE = 1e-4
"""Relative: the last bits of BLAS and of FFTs depend on their threads"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A film with sound, and one without."""
    folder = tmp_path_factory.mktemp("librosa")
    (folder / "videos").mkdir()
    write_sound(folder / "videos" / "sound.mov", [(0, SIGNAL)], rate=RATE, num_frames=25 * SECONDS)
    make_video(folder / "videos" / "silent.mp4", num_frames=10)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    return folder / "index.json"


def built(index: Path, cache: Path, **section: Any) -> cc.Cache:
    """A cache with the feature."""
    config = config_from_json({"features": {"librosa": {"sample_rate": RATE, **section}}})
    summary = cc.build(index, cache, features="librosa", config=config, jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (2, 0)
    return cc.open_cache(cache)


def film(cache: cc.Cache) -> Any:
    return next(video for video in cache if video.key.startswith("sound"))


@pytest.mark.parametrize(
    ("function", "hop_length", "params"),
    [
        ("feature.mfcc", 512, {}),
        ("feature.mfcc", 160, {"n_mfcc": 13, "n_fft": 400}),
        ("feature.chroma_stft", 512, {"n_chroma": 24}),
        ("feature.spectral_contrast", 256, {}),
        ("feature.tempogram", 512, {"win_length": 64}),
        ("onset.onset_strength", 512, {}),
        ("feature.rms", 512, {}),
        ("feature.zero_crossing_rate", 512, {}),
    ],
)
def test_rows_are_those_of_librosa(
    function: str, hop_length: int, params: dict[str, Any], index: Path, tmp_path: Path
) -> None:
    cache = built(index, tmp_path / "cache", function=function, hop_length=hop_length, params=params)
    video = film(cache)
    rated = {} if function in ("feature.rms", "feature.zero_crossing_rate") else {"sr": RATE}
    called = getattr(librosa, function.split(".")[0])
    expected = getattr(called, function.split(".")[1])(y=SIGNAL, hop_length=hop_length, **rated, **params)
    info = video.feature("librosa")
    assert info.facts == {"start_seconds": 0.0, "row_seconds": hop_length / RATE, "silence": 0}
    assert info.num_rows == {"librosa": 1 + SECONDS * RATE // hop_length}
    columns = cache.read(video, "librosa")
    assert columns.shape[-1] == round(SECONDS * RATE / hop_length)
    np.testing.assert_allclose(columns, expected[..., : columns.shape[-1]], rtol=TOLERANCE, atol=TOLERANCE)
    assert not cc.verify(cache.path, level="deep", source=True, jobs=HERE).damage


def test_a_clip_has_the_columns_of_its_seconds(index: Path, tmp_path: Path) -> None:
    cache = built(index, tmp_path / "cache", function="onset.onset_strength", hop_length=160)
    video = film(cache)
    whole = cache.read(video, "librosa")
    start, stop = video.num_frames // 3, video.num_frames // 2
    first, _ = (round(seconds * RATE / 160) for seconds in video.seconds_of(start, stop))
    columns = cache.read(video, "librosa", start, stop)
    assert np.abs(first * 160 / RATE - video.seconds_of(start, stop)[0]) <= 160 / RATE
    assert any(np.array_equal(columns, whole[n : n + len(columns)]) for n in (first, first + 1))
    dataset = cc.ChordVideoDataset(cache, features=("librosa",), missing="skip", size=None)
    sample = dataset[0]
    assert sample["librosa"].dtype == torch.float32
    assert sample["librosa"].ndim == 1


def test_a_video_without_sound_does_not_have_it(index: Path, tmp_path: Path) -> None:
    cache = built(index, tmp_path / "cache")
    silent = next(video for video in cache if video.key.startswith("silent"))
    with pytest.raises(NotFoundError, match="'librosa' of video '.*' is absent: no audio track"):
        cache.read(silent, "librosa")


@pytest.mark.parametrize(
    ("section", "error", "match"),
    [
        ({"function": "os:system"}, UsageError, r"^features.librosa.function: got 'os:system', expected a name below"),
        ({"function": "feature.nothing"}, UsageError, "got 'feature.nothing', expected a function of librosa"),
        ({"function": "util.utils.np.load"}, UsageError, "expected a function of librosa with the parameters y and"),
        ({"function": "beat.beat_track"}, UsageError, "whose result has another form"),
        ({"params": {"n_mfcc": "many"}}, UsageError, r"params: librosa.feature.mfcc does not take them: "),
        ({"params": {"no_such": 1}}, UsageError, "does not take them: TypeError: .*no_such"),
        ({"params": {"sr": 8000}}, UsageError, "params: got sr, expected other parameters"),
        ({"params": {"win_length": {1}}}, UsageError, "params: got parameters other than plain data"),
        ({"params": [1]}, UsageError, r"params: got \[1\], expected a mapping"),
        ({"hop_length": 0}, UsageError, r"features.librosa.hop_length: got 0, expected"),
    ],
)
def test_bad_settings_end_the_build(
    section: dict[str, Any], error: type[Exception], match: str, index: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        built(index, tmp_path / "cache", **section)


def test_another_function_does_not_keep_the_parameters(index: Path) -> None:
    before = config_from_json({"features": {"librosa": {"function": "feature.mfcc", "params": {"n_mfcc": 13}}}})
    same = config_from_json({"features": {"librosa": {"hop_length": 256}}}, before)
    other = config_from_json({"features": {"librosa": {"function": "feature.rms"}}}, before)
    sections: list[Any] = [same.section("librosa"), other.section("librosa")]
    assert [section.params for section in sections] == [{"n_mfcc": 13}, {}]


def test_another_version_of_librosa_makes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_from_json({"features": {"librosa": {}}})
    before = resolve("librosa", config).fingerprint
    monkeypatch.setattr("importlib.metadata.version", lambda package: "99.0")
    assert resolve("librosa", config).fingerprint != before


def test_without_librosa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert LibrosaExtractor.missing_requirement({}) == "needs the package librosa; run: pip install 'chordcache[build]'"


def test_it_is_imported_by_workers_alone(index: Path, tmp_path: Path) -> None:
    script = (
        "import sys, chordcache as cc\n"
        f"summary = cc.build({str(index)!r}, {str(tmp_path / 'cache')!r}, features='librosa', jobs=1)\n"
        "assert summary.num_done == 2, summary\n"
        f"with cc.open_cache({str(tmp_path / 'cache')!r}) as cache:\n"
        "    cache.read(next(video for video in cache if 'sound' in video.key), 'librosa')\n"
        "assert 'librosa' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
