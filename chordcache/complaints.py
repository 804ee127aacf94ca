"""What libav complains of: collected while somebody listens, silence otherwise."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import av.logging

Complaint: TypeAlias = "tuple[int, str, str]"
"""(level, who, what)."""

_lock = threading.Lock()
_num_listeners = 0
_quiet_level: int | None = None
"""The level from before the first listener: libav has one for all threads."""


def _nobody_listens() -> None:
    """In the child of a fork, which has none of the threads that did."""
    global _lock, _num_listeners
    _lock = threading.Lock()
    if _num_listeners:
        _num_listeners = 0
        av.logging.set_level(_quiet_level)


os.register_at_fork(after_in_child=_nobody_listens)


@contextmanager
def listening() -> Iterator[list[Complaint]]:
    """Collect this thread's libav error messages; outside of it libav stays silent, as PyAV has it."""
    global _num_listeners, _quiet_level
    with _lock:
        if not _num_listeners:
            _quiet_level = av.logging.get_level()
            av.logging.set_level(av.logging.ERROR)
            av.logging.set_skip_repeated(False)
        _num_listeners += 1
    try:
        with av.logging.Capture() as complaints:
            yield complaints
    finally:
        with _lock:
            _num_listeners -= 1
            if not _num_listeners:
                av.logging.set_level(_quiet_level)
