"""Datasets of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chordcache as cc


def make_dataset(config: Mapping[str, Any], **arguments: Any) -> Any:
    """Return the dataset of a config, which may be without a loader."""
    train = {"loader": {"name": "threads", "batch_size": 1}, **config["train"]}
    return cc.from_config({**config, "train": train}, **arguments)[0]
