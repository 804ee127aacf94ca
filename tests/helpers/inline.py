"""The engine of tests that are about results, and not about the processes that make them."""

from __future__ import annotations

from chordcache.engine.choice import Engine

HERE = Engine("inline")
"""For ``jobs``: the work is done in this process, in a tenth of the time"""
