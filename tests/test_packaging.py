"""The files around the package: what an index, a forge and a citation take from them."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
import yaml
from hatchling.build import build_sdist

import chordcache as cc

REPOSITORY = Path(__file__).resolve().parent.parent


def test_actions_are_pinned_by_hash() -> None:
    """A tag of a repository can be moved to other code."""
    for workflow in (REPOSITORY / ".github" / "workflows").glob("*.yml"):
        uses = re.findall(r"uses: (\S+)", workflow.read_text(encoding="utf-8"))
        assert uses
        assert [name for name in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name)] == []
        assert yaml.safe_load(workflow.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == cc.__version__.removesuffix(".dev0")


@pytest.mark.usefixtures("in_the_repository")
def test_the_source_distribution_has_what_its_readme_names(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", readme)
    assert {"pyproject.toml", "LICENSE", "SECURITY.md", "configs/flow.yaml"} <= names
    missing = [link for link in links if not any(name == link or name.startswith(link) for name in names)]
    assert missing == []


@pytest.fixture
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
