"""The bytes of a source, whose disk may fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from chordcache.errors import MediaError


@contextmanager
def as_media_error(stage: str = "open") -> Iterator[None]:
    """Raise an error of a source's disk as ``MediaError``, ``io``."""
    try:
        yield
    except OSError as error:
        raise MediaError(stage, "io", error.strerror or str(error)) from None


@contextmanager
def opened(place: str) -> Iterator[BinaryIO]:
    """Open a source to read its bytes. An error of its disk, also a later one, is raised as ``MediaError``, ``io``."""
    with as_media_error(), open(place, "rb") as file:
        yield file
