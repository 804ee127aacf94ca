"""Docstrings, messages, help texts, docs and the names of tests are written in plain technical English."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for top in ("chordcache", "bench", "examples", "scripts") for path in (REPOSITORY / top).rglob("*.py")
)
TESTS = sorted(set((REPOSITORY / "tests").rglob("*.py")) - {Path(__file__).resolve()})
DOCS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]

FOLDER_OF_THE_CORPUS = "odd/colour"
"""The one name with another spelling that tests contain"""

QUESTION = re.compile(r"(What|Which|How|Whether|Of)\b")
"""Words that no docstring begins with: functions begin with a verb, everything else with a noun"""

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

NEGATED_NOUN = re.compile(r"\b(is|are|was|were|be) no\b|\bnone (but|too)\b", re.IGNORECASE)
"""Write "is not a sidecar" instead of "is no sidecar\""""

VAGUE_NAMES = {"found", "each", "made"}
"""Variables are named by what they hold: `video`, `findings`, `summary`. Functions and attributes are too."""

PAGES = [REPOSITORY / "chordcache/look/report" / name for name in ("page.js", "page.html.j2")]
"""Scripts and templates, whose variables have names as in Python"""

NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
"""Statements and patterns that give a name"""


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


def names(source: str) -> Iterator[tuple[int, str]]:
    """Line and words of the name of every function and class: ``BadName`` and ``bad_name`` as "bad name"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", node.name).replace("_", " ").lower()


def identifiers(source: str) -> Iterator[tuple[int, str | None]]:
    """Line and name of every function, class and parameter, and of everything that is assigned to."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname
        elif isinstance(node, ast.MatchMapping):
            yield node.lineno, node.rest
        elif isinstance(node, NAMED):
            yield node.lineno, node.name


def bad_words(text: str) -> list[str]:
    return [match[0] for pattern in (RULED_OUT, BRITISH, NEGATED_NOUN) for match in pattern.finditer(text)]


def findings(source: str) -> list[str]:
    """Return every violation of the rules in the strings, comments and names of a Python file, with its line."""
    violations = [f"{line}: {words}" for line, text in prose(source) if (words := bad_words(text))]
    violations += [f"{line}: begins with a question" for line, text in docstrings(source) if QUESTION.match(text)]
    return violations + [
        f"{line}: name {name}" for line, name in identifiers(source) if name and name.strip("_") in VAGUE_NAMES
    ]


def bad_names(source: str) -> list[str]:
    """Return the names of functions and classes that violate the rules, with their lines."""
    return [f"{line}: {words}" for line, text in names(source) if (words := bad_words(text))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_words_of_the_sources(path: Path) -> None:
    violations = findings(path.read_text(encoding="utf-8"))
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_words_of_the_tests(path: Path) -> None:
    source = path.read_text(encoding="utf-8").replace(FOLDER_OF_THE_CORPUS, "")
    violations = findings(source) + bad_names(source)
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_words_of_the_docs(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    violations = [f"{number}: {words}" for number, line in enumerate(lines, 1) if (words := bad_words(line))]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_variables_of_the_pages(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    vague = re.compile(rf"\b({'|'.join(VAGUE_NAMES)})( ?[=.,;)\]}}]| in )")
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if vague.search(line)] == []


@pytest.mark.parametrize(
    "text",
    [
        "it is no sidecar",
        "a colour",
        "Write it anew.",
        "none but these",
    ],
)
def test_bad_words_are_found(text: str) -> None:
    assert bad_words(text)


@pytest.mark.parametrize(
    "source",
    [
        "def test_damage_is_mended(): ...",
        "class ToldItems: ...",
        "x = 'a colour'  # fine",
        "def f():\n    'Whether.'",
        "found = 1",
        "lambda *made: 0",
        "try:\n    pass\nexcept OSError as found:\n    pass",
        "self.found = 1",
        "import numpy as each",
        "match x:\n    case {**found}:\n        pass",
    ],
)
def test_bad_words_in_code_are_found(source: str) -> None:
    assert len(findings(source) + bad_names(source)) == 1
