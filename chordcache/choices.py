"""The choices that options of the command line have, without the packages of the modules that act on them."""

SCAN_LEVELS = ("headers", "packets", "content")
"""Levels of ``scan``, from the one that reads least to the one that reads most. Each includes the levels before it."""

LIST_FORMATS = ("csv", "kinetics", "ucf101", "ssv2", "activitynet", "ava", "mmaction", "webvid", "lerobot", "pairs")
"""Formats of published lists, the keys of ``LIST_READERS``"""

SEGMENT_MODES = ("only", "share")
"""Forms of cached segments, see ``BuildOptions``"""

ON_DAMAGE = ("quarantine", "keep", "keep-concealed")
"""Choices for a damaged file, from the strictest to the most permissive"""
