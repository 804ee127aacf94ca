"""The remedies have an entry for each cause that the code names, and none for others."""

from __future__ import annotations

import ast
from pathlib import Path

from chordcache.building.fix_commands import REMEDIES, remedy

PACKAGE = Path(__file__).resolve().parent.parent.parent / "chordcache"

POSITION_OF_CAUSE = {"MediaError": 1, "Crash": 0}


def causes_in_code() -> set[str]:
    """Return the causes that calls name as constants, and those of the checks of packets, which keep theirs."""
    causes = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                position = POSITION_OF_CAUSE.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
                if position is not None and len(node.args) > position and isinstance(node.args[position], ast.Constant):
                    causes.add(node.args[position].value)
    return causes


def test_each_cause_in_the_code_has_a_remedy():
    assert causes_in_code() <= set(REMEDIES)


def test_each_cause_of_the_errors_documentation_has_a_remedy():
    documented = (PACKAGE / "errors.py").read_text().partition("cause : str")[2].partition("message : str")[0]
    assert {cause for cause in REMEDIES if f"``{cause}``" in documented} == set(REMEDIES)


def test_each_remedy_is_a_sentence_or_two():
    for text in REMEDIES.values():
        assert text[0].isupper()
        assert text.endswith(".")


def test_an_unknown_cause_has_a_general_remedy():
    assert remedy("of a later version").endswith(".")
