"""Sealed lines that a test changes."""

from __future__ import annotations

import json
from pathlib import Path

from chordcache.storage import sealed_json


def reseal(path: Path, line_number: int = 0, **changes: object) -> None:
    """Change members of a sealed line and give it the digest that goes with them."""
    lines = path.read_text().splitlines()
    data = json.loads(lines[line_number])
    del data["xxh3_128"]
    lines[line_number] = sealed_json.seal({**data, **changes})
    path.write_text("".join(f"{line}\n" for line in lines))
