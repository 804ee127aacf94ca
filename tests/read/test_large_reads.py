"""Reads that need more memory than there is, or than the user allows: an error that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from helpers.inline import HERE

import chordcache as cc
from chordcache.features.flow import FlowReadSide
from chordcache.storage import opener
from chordcache.storage.artefacts import artefact as artefact_module


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("large reads")
    make_video(folder / "videos/a.mp4", num_frames=6, audio=True)
    config = {"features": {"flow": {}, "mel": {}, "waveform": {}}}
    (folder / "c.yaml").write_text(str(config))
    cc.build(folder / "videos", folder / "cache", config=folder / "c.yaml", jobs=HERE)
    return folder / "cache"


def _no_memory(*arguments: object, **options: object) -> NoReturn:
    raise MemoryError("Unable to allocate 50.0 GiB")


@pytest.mark.parametrize("feature", ["frames", "flow", "mel", "waveform"])
def test_the_file_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    monkeypatch.setattr(artefact_module, "checked_out", _no_memory)
    opened = cc.open_cache(cache)
    info = opened[0].feature(feature)
    words = rf"'{cache / info.file.name}': .*'{feature}' that needs more memory .*50"
    with pytest.raises(cc.StorageError, match=words):
        opened.read(0, feature)


def test_the_file_is_named_if_a_clip_needs_more(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flow of a clip is composed outside of its file."""
    monkeypatch.setattr(FlowReadSide, "read_clip", _no_memory)
    with pytest.raises(cc.StorageError, match=r"\.flow\..*\.npz': got a read of 'flow' that needs more memory"):
        cc.ChordVideoDataset(cache, features=("flow",))[0]


@pytest.mark.parametrize("feature", ["frames", "mel"])
def test_a_read_has_a_limit(cache: Path, monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Frames compress, and forged times ask for silence that is in no file."""
    monkeypatch.setattr(opener, "MAX_GROWTH", 0)
    opened = cc.open_cache(cache)
    video = opened[0]
    expected = opened.read(video, feature)
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", f"{expected.nbytes}B")
    assert np.array_equal(opened.read(video, feature), expected)
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", f"{expected.nbytes - 1}B")
    with pytest.raises(cc.StorageError, match=f"got a read of {expected.nbytes} bytes, expected at most"):
        opened.read(video, feature)
    if feature == "frames":
        assert sum(map(len, opened.iter_frames(video, range(video.num_frames)))) == video.num_frames
