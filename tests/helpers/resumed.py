"""The check that a loader resumes exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def assert_resumes(make_loader: Callable[[], Any], contents: Callable[[Iterable[Any]], list[Any]]) -> None:
    """Stop a loader after three batches, and let another one go on from its state."""
    whole = contents(make_loader())
    first = make_loader()
    batches = iter(first)
    used = contents(next(batches) for _ in range(3))
    state = first.state_dict()
    del batches
    second = make_loader()
    second.load_state_dict(state)
    assert used + contents(second) == whole
