"""The section ``train`` of a config as plain data. ``chordcache.train.from_config`` makes objects from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chordcache.config.checks import check_keys
from chordcache.errors import ConfigError

TRAIN_SECTIONS = (
    "source",
    "dataset",
    "clip_sampler",
    "time_transform",
    "crop",
    "augment",
    "collate",
    "sampler",
    "loader",
)
"""Keys of ``train``. Each has a mapping with a name and arguments, only ``dataset`` does not have a name"""


def checked_train(data: Any) -> dict[str, Any]:
    """Return the sections of ``train`` that are not null. Names and arguments are checked later.

    Raises ``ConfigError`` if a section is unknown, does not have a name, or has something else than plain JSON data.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"train: got {data!r}, expected a mapping of sections")
    check_keys("train.", data, TRAIN_SECTIONS)
    sections = {key: section for key, section in data.items() if section is not None}
    for key, section in sections.items():
        _check_section(key, section)
    try:
        json.dumps(sections, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"train: got a value other than plain data: {error}") from None
    return sections


def _check_section(key: str, section: Any) -> None:
    if key == "dataset":
        if not isinstance(section, Mapping):
            raise ConfigError(f"train.{key}: got {section!r}, expected a mapping of arguments")
        return
    several = section if key == "time_transform" and isinstance(section, (list, tuple)) else [section]
    for part in several:
        if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
            raise ConfigError(f"train.{key}: got {part!r}, expected a mapping with a name and arguments")
