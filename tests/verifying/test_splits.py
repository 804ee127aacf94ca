"""Splits whose videos have equal names, or claim a length that no memory holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.catalogs import forge, rows_of
from helpers.inline import HERE

import chordcache as cc
from chordcache.storage import sealed_json

pytestmark = pytest.mark.usefixtures("inline")


def moving(seed: int) -> Callable[[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the planes of pictures whose blocks change at random with the seed."""

    def planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        blocks = np.random.default_rng([seed, number // 5]).integers(16, 236, (height // 8, width // 8), np.uint8)
        gray = np.full((height // 2, width // 2), 128, np.uint8)
        return np.kron(blocks, np.ones((8, 8), np.uint8)), gray, gray

    return planes


@pytest.fixture
def caches(tmp_path: Path, make_video: Callable[..., Path]) -> list[Path]:
    """Two caches, whose videos have the same names and show something else, but for one."""
    caches = []
    for number in (1, 2):
        for name, seed in (("same", 0), ("other", number)):
            make_video(tmp_path / f"{number}/v/{name}.mp4", num_frames=100, size=(96, 64), planes=moving(seed))
        cc.scan([tmp_path / f"{number}/v"], output=tmp_path / f"{number}.json", jobs=HERE)
        cc.build(tmp_path / f"{number}.json", tmp_path / f"cache-{number}", jobs=HERE)
        caches.append(tmp_path / f"cache-{number}")
    return caches


def test_videos_of_equal_names_in_two_caches_are_not_pairs(caches: list[Path]) -> None:
    assert cc.open_cache(caches[0]).keys() == cc.open_cache(caches[1]).keys()
    assert [(leak.train_path, leak.val_path) for leak in cc.leaks(*caches)] == [("same.mp4", "same.mp4")]


def test_a_length_that_no_memory_holds(caches: list[Path]) -> None:
    for number, cache in enumerate(caches):
        for position, row in enumerate(rows_of(cache)):
            sidecar = sealed_json.unseal(row, "row")
            sidecar["duration_seconds"] = 1e12
            sidecar["content"]["content_id"] = f"{number:032x}"  # else their pictures are not read
            forge(cache, rows={position: sealed_json.seal({"format_version": 5, **sidecar})})
    [leak] = cc.leaks(*caches)
    assert (leak.train_path, leak.val_path) == ("same.mp4", "same.mp4")
