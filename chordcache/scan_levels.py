"""The levels of a scan. They lie in a module of their own, because ``chordcache --help`` lists them."""

SCAN_LEVELS = ("headers", "packets", "content")
"""Levels of a scan. Each level includes the one before it."""
