"""A plug-in whose extractors return rows of every kind, or change the picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from chordcache.features.base import Extractor, Rows


class RowsOfAKind(Extractor):
    """Six numbers for each frame, in one of several forms.

    Parameters
    ----------
    name : str
        Name of the feature.
    how : str
        Form of the rows, or what is done to the picture.
    """

    def __init__(self, name: str, how: str) -> None:
        super().__init__(name)
        self.how = how
        self._buffer, self._held = np.zeros((1, 6), "f4"), list[np.ndarray]()

    def add_frame(self, frame: Any) -> Rows:
        """Return a row, or hold it back."""
        row = np.arange(6.0)[None] + frame.number
        match self.how:
            case "views of one buffer":
                self._buffer[:] = row
                return {self.name: self._buffer}
            case "on finish only":
                self._held.append(row)
                return {}
            case "no rows in between":
                self._held.append(row)
                rows, self._held = (self._held, []) if frame.number % 3 == 2 else ([np.zeros((0, 6))], self._held)
                return {self.name: np.concatenate(rows)}
            case "every other column":
                return {self.name: np.repeat(row, 2, axis=1)[:, ::2]}
            case "Fortran order":
                return {self.name: np.asfortranarray(np.stack([row, row + 1], 2))}
            case "changes the picture":
                frame.rgb().fill(0)
            case "changes the luma":
                frame.luma(None)[:] = 0
            case "changes the planes":
                frame.planes()[1][:] = 0
            case "prints":
                print("hello from a plug-in")  # noqa: T201
        return {self.name: row.astype({"big-endian": ">f4", "bool": "?"}.get(self.how, "f8"))}

    def finish(self) -> Rows:
        """Return the rows that were held back."""
        return {self.name: np.concatenate(self._held)} if self._held else {}


class Million(Extractor):
    """A million rows of a microsecond each, all at once."""

    def finish(self) -> Rows:
        """Return them."""
        self.facts.update(start_seconds=0.0, row_seconds=1e-6, silence=0)
        return {self.name: np.arange(1_000_000, dtype="i4")[:, None]}

    def num_rows(self, num_frames: int) -> int | None:
        """Return None, since rows have another clock."""
        return None
