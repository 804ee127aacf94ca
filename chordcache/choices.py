"""The choices that options of the command line have, without the packages of the modules that act on them."""

SCAN_LEVELS = ("headers", "packets", "content")
"""Levels of ``scan``, from the least to the most reading. Each includes the levels before it."""

LIST_FORMATS = (
    *("csv", "kinetics", "ucf101", "ssv2", "activitynet", "ava", "mmaction", "webvid", "lerobot", "pairs"),
    *("cosmos", "webdataset", "frames"),
)
"""Formats of published lists, the keys of ``LIST_READERS``"""

EXPORT_FORMATS = ("webdataset", "parquet", "folder", "safetensors", "musubi-wan", "ltx")
"""Formats of ``export``, the keys of ``FORMATS``"""

EXPORT_FRAMES = ("jpg", "mp4", "none")
"""Forms of the frames of an export"""

SAMPLE_ITEMS = 8
"""Number of items that ``build --dry-run`` builds for its estimate by default. Of 200 samples of 48 parts of clips, all
sizes were right within 15 % with 8 items, and within 21 % with 5, see docs/development/performance-building.md"""
