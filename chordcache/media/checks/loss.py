"""A loss that the numbers of a container reveal."""

from __future__ import annotations

from typing import NamedTuple


class Loss(NamedTuple):
    """First place where the numbers of a container disagree with its content."""

    what: str
    at: int | None = None
    """[bytes] Position from which on packets may be missing or wrong; None if it is unknown"""
    cause: str = "decode"
    """Cause of the ``MediaError``. "truncated": the content before the end is right."""
