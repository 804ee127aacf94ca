"""An extractor that notes the shapes of the pictures that it gets."""

from __future__ import annotations

from typing import Any

import numpy as np

from chordcache.features.base import Extractor, Rows


class Shapes(Extractor):
    """(height, width) of each picture that an extractor can ask for [shape=(T, 5, 2), dtype=int32, pixels]."""

    def add_frame(self, frame: Any) -> Rows:
        """Return the shapes of the picture in RGB, of its planes, and of its luma with a short side of 32."""
        shapes = frame.rgb().shape[:2], *(plane.shape for plane in frame.planes()), frame.luma(32).shape
        return {self.name: np.array(shapes, np.int32)[None]}
