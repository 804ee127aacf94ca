"""The order to build one part, as a driver sends it to a node."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from chordcache.building.build_options import BuildOptions
from chordcache.config.config import Config, config_from_json, config_to_json
from chordcache.engine.limits import Limits

MODULE = "chordcache.building.part_process"
"""Module that takes an order"""


@dataclass(frozen=True)
class PartOrder:
    """The order to build one part. All paths are on a disk that the nodes share."""

    folder: str
    """Folder of the plan"""
    cache: str
    config: str | Config | None
    tiers: list[str] | None
    features: list[str] | None
    roots: dict[str, str]
    jobs: int
    options: BuildOptions
    log_file: str

    def to_line(self) -> str:
        """Return the order as one line."""
        config = {"config": config_to_json(self.config)} if isinstance(self.config, Config) else self.config
        options = {name: value for name, value in asdict(self.options).items() if name != "rebuild"}
        return json.dumps({**vars(self), "config": config, "options": options})

    @classmethod
    def of_line(cls, line: str) -> PartOrder:
        """Return the order of a line."""
        data: dict[str, Any] = json.loads(line)
        if isinstance(data["config"], dict):
            data["config"] = config_from_json(data["config"]["config"])
        options = {**data["options"], "limits": Limits(**data["options"]["limits"])}
        return cls(**{**data, "options": BuildOptions(**{**options, "drop": tuple(options["drop"])})})
