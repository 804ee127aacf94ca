"""Docstrings, messages, help texts and docs are written in plain technical English."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = sorted((REPOSITORY / "chordcache").rglob("*.py"))
DOCS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]

QUESTION = re.compile(r"(What|Which|How|Whether|Of)\b")
"""How no docstring begins: functions begin with a verb, everything else with a noun"""

RULED_OUT = re.compile(
    r"\b(anew|mends?|mended|mending|told|tells?|dealt|bears?|borne|amiss|whoever|somebody|nobody|hand(s|ed|ing)? out"
    r"|for ever|costs? itself)\b",
    re.IGNORECASE,
)
"""Words that are old, or that mean something else to most readers"""

BRITISH = re.compile(
    r"(grey|colour|centre[ds]?\b|normalis|neighbour|behaviour|recognis|initialis|labell)", re.IGNORECASE
)
"""Beginnings of words that are spelled differently in the US"""

NEGATED_NOUN = re.compile(
    r"(?<!\bthere )\b(is|are|was|were|be) no (?!longer\b|more\b)|\bnone (but|too)\b", re.IGNORECASE
)
"""Write "is not a sidecar" instead of "is no sidecar\""""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands alone: of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string and comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from enumerate(token.string.splitlines(), token.start[0])


def bad_words(text: str) -> list[str]:
    return [found[0] for pattern in (RULED_OUT, BRITISH, NEGATED_NOUN) for found in pattern.finditer(text)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_words_of_the_package(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    found = [f"{line}: {words}" for line, text in prose(source) if (words := bad_words(text))]
    found += [f"{line}: begins with '{text.split()[0]}'" for line, text in docstrings(source) if QUESTION.match(text)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_words_of_the_docs(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [f"{number}: {words}" for number, line in enumerate(lines, 1) if (words := bad_words(line))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text", ["it is no sidecar", "a colour", "Write it anew.", "handed out", "none but these", "is told from it"]
)
def test_bad_words_are_found(text: str) -> None:
    assert bad_words(text)


@pytest.mark.parametrize(
    "text", ["there is no decoder", "it is no longer there", "is not a sidecar", "total", "bearing"]
)
def test_good_words_pass(text: str) -> None:
    assert not bad_words(text)
