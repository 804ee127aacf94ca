"""The picture of a video that ``Video.show`` returns."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chordcache.errors import NoSpaceError, UsageError, printable
from chordcache.look import pictures
from chordcache.look.canvas import TimeAxis
from chordcache.storage.atomic import no_space_as_error


@dataclass(frozen=True)
class Place:
    """A rectangle of a sheet that shows a frame, [pixels]."""

    number: int
    """Number of the frame in the cache"""
    seconds: float
    """Presentation time of the frame"""
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Sheet:
    """A picture of a video with one axis in seconds. A notebook displays it."""

    picture: np.ndarray
    """[shape=(H, W, 3), dtype=uint8, RGB]"""
    key: str
    axis: TimeAxis
    """Columns of times, on the clock of ``Video.pts_seconds``"""
    rows: dict[str, tuple[int, int]]
    """First row of pixels and height of "frames", "keyframes", "flow", "motion" and "mel", as far as they are drawn"""
    frames: tuple[Place, ...]
    """The frames that are drawn, each in the middle of its part of the axis"""
    absent: dict[str, str]
    """Feature that is not drawn, to the reason"""
    damage: dict[str, str]
    """Feature that is damaged, to the message"""

    def __repr__(self) -> str:
        height, width = self.picture.shape[:2]
        return f"<Sheet of video {self.key}: {width}x{height}, {', '.join(self.rows)}>"

    def png(self) -> bytes:
        """Return the picture as a PNG file."""
        return pictures.png(self.picture)

    def _repr_png_(self) -> bytes:
        return self.png()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture as PNG. The file appears complete or not at all.

        Raises ``UsageError`` if the file cannot be written or is not a regular one, and ``NoSpaceError``.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            if target.exists() and not target.is_file():
                raise UsageError(f"cannot write the picture '{printable(target)}': it exists and is not a regular file")
            with no_space_as_error(target):
                partial.write_bytes(self.png())
                os.replace(partial, target)
        except NoSpaceError:
            raise
        except OSError as error:
            raise UsageError(f"cannot write the picture '{printable(target)}': {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        return target
