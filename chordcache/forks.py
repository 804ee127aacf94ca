"""Blocks during which no thread of this process may fork.

A forked process has a copy of every open file, and of every lock as it is at that moment. A file that another thread is
about to close or to mark then stays open in the fork: the start of a process, which waits for the end of a pipe, hangs
until the fork ends, and a lock on a file is held as long. The workers of a DataLoader live for the whole training.
"""

from __future__ import annotations

import os
import threading

no_fork = threading.Lock()
"""Held around a fork. ``subprocess`` does not fork in this sense: it starts another program, and closes all files."""

os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)
