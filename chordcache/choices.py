"""The choices that options of the command line have, without the packages of the modules that act on them."""

SCAN_LEVELS = ("headers", "packets", "content")
"""Levels of ``scan``, from the one that reads least to the one that reads most. Each includes the levels before it."""

LIST_FORMATS = ("csv", "kinetics", "ucf101", "ssv2", "activitynet", "ava", "mmaction", "webvid", "lerobot", "pairs")
"""Formats of published lists, the keys of ``LIST_READERS``"""

SHELLS = ("bash", "zsh", "fish")
"""Shells that have a completion"""

ON_DAMAGE = ("quarantine", "trim")
"""Choices for a damaged file: cache nothing of it, or the frames before its first damage"""

PLAN_FILES = 24
"""Number of files that ``plan`` builds by default. Of 83 videos, the sizes that 60 samples of 24 gave were wrong by at
most 15 %, and those of 60 samples of 16 by up to 20 %"""
