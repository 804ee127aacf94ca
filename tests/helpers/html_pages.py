"""An HTML page as its elements and texts, read by the parser of the standard library."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """A parsed page."""

    def __init__(self, page: Path | str) -> None:
        """Parse a file, or a text."""
        super().__init__()
        self.source = page if isinstance(page, str) else page.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        """Name and attributes of each element"""
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "other": []}
        """Texts in scripts, styles and all other elements"""
        self._open: str = "other"
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._open = tag
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = "other"

    def handle_data(self, data: str) -> None:
        if self._open == "other":
            self.inside["other"].append(data)
        else:
            self.inside[self._open][-1] += data

    @property
    def text(self) -> str:
        """All text outside of scripts and styles."""
        return " ".join(self.inside["other"])

    def script(self, name: str) -> Any:
        """Return the JSON in the script element of an id."""
        scripts = [attributes for tag, attributes in self.elements if tag == "script"]
        (place,) = (number for number, attributes in enumerate(scripts) if attributes.get("id") == name)
        return json.loads(self.inside["script"][place])

    @property
    def code(self) -> list[str]:
        """Scripts that run."""
        scripts = [attributes for tag, attributes in self.elements if tag == "script"]
        return [
            text for text, attributes in zip(self.inside["script"], scripts, strict=True) if not attributes.get("type")
        ]

    @property
    def policy(self) -> dict[str, list[str]]:
        """Directive of the content security policy to its sources."""
        (content,) = (
            str(attributes["content"])
            for tag, attributes in self.elements
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        )
        return {name: sources.split() for name, sources in re.findall(r"([a-z-]+) ([^;]+)", content)}

    @property
    def videos(self) -> dict[str, dict[str, Any]]:
        """Path of each video to the fields of its row, with labels and traits as texts, and its details."""
        data = self.script("data")
        videos = {}
        for number, values in enumerate(self.script("rows")):
            row = dict(zip(data["fields"], values, strict=True))
            block = self.script(f"b{number // data['per_block']}")
            row["details"] = block[number % data["per_block"]]
            for name in ("labels", "traits"):
                row[name] = [data[name][index] for index in row[name]]
            row["facts"] = dict(data["facts"][index] for index in row["details"].get("facts", ()))
            videos[row["path"]] = row
        return videos
