"""The levels of detail of pictures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """Amount of pictures for each video."""

    name: str
    """Phrase for people"""
    num_cells: int
    """Frames of each video"""
    cell_px: int
    """Area of a frame, [pixels]"""
    quality: int
    """Quality of WebP, 1 to 100"""
    max_share: float
    """The level is chosen if the page is expected to need at most this share of its limit"""
    has_features: bool = False
    """True if flow, mel, motion vectors and landmarks are shown too"""
    mel_px: int = 0
    """Height of mel, [pixels]"""

    def fits(self, num_bytes: float, max_bytes: int) -> bool:
        """Return whether a page that is expected to need a number of bytes leaves enough room."""
        return num_bytes <= max_bytes * self.max_share


NO_PICTURES = Level("no pictures", 0, 0, 0, 1.0)

LEVELS = (
    Level("large contact sheets, flow and mel", 6, 168 * 95, 52, 0.5, True, 80),
    Level("contact sheets, flow and mel", 6, 120 * 68, 48, 0.53, True, 60),
    Level("contact sheets", 6, 128 * 72, 50, 0.66),
    Level("posters", 1, 128 * 72, 45, 0.66),
    Level("small posters", 1, 96 * 54, 40, 0.9),
    NO_PICTURES,
)
"""Levels from the richest to none. The shares leave room for videos that need more than those that were tried. They
keep a page of 1,000 videos below 16 MB, and one of 10,000 below 20 MB, at the default limit of 30 MB"""
