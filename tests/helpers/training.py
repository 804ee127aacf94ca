"""Datasets of a config, and the comparison of what datasets and loaders give."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

import chordcache as cc


def make_dataset(config: Mapping[str, Any], **arguments: Any) -> Any:
    """Return the dataset of a config, which may be without a loader."""
    train = {"loader": {"name": "threads", "batch_size": 1}, **config["train"]}
    return cc.from_config({**config, "train": train}, **arguments)[0]


def assert_same(value: Any, expected: Any, but: Collection[str] = ()) -> None:
    """Compare samples or batches in all that they hold, but for some names."""
    assert type(value) is type(expected)
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for name in expected.keys() - set(but):
            assert_same(value[name], expected[name])
    elif isinstance(expected, list):
        assert len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        assert torch.equal(value.nan_to_num(), expected.nan_to_num())
    else:
        assert value == expected
