"""Records that are stored together in chains: how they are joined to one value, and found in it again."""

from __future__ import annotations

from typing import Any

import numpy as np


def first_of_chain(number: int, gop: int, stride: int) -> int:
    """Return the first record of the chain that a record belongs to.

    A chain holds ``gop`` records at a distance of ``stride``.

    Examples
    --------
    >>> [first_of_chain(number, gop=2, stride=3) for number in range(12)]
    [0, 1, 2, 0, 1, 2, 6, 7, 8, 6, 7, 8]
    """
    return number - number % (gop * stride) + number % stride


class ChainIndex:
    """The place of each record in its chain.

    ``sizes`` has the size of each record, and ``starts`` the first record of its chain [shape=(T,), dtype=uint32].
    Raises ``ValueError`` if the arrays do not describe chains.
    """

    def __init__(self, sizes: np.ndarray, starts: np.ndarray) -> None:
        numbers = np.arange(len(starts))
        if not (sizes.dtype == starts.dtype == np.uint32 and sizes.shape == starts.shape == (len(starts),)):
            raise ValueError("sizes and starts of records: got other types or lengths than those of one for each row")
        if np.any(starts > numbers) or np.any(starts[starts.astype(np.int64)] != starts):
            raise ValueError("starts of records: got a chain that does not begin with its first record")
        order = np.argsort(starts, kind="stable")
        ends = np.cumsum(sizes[order], dtype=np.int64)
        is_first = starts[order] == order
        base = np.repeat((ends - sizes[order])[is_first], np.diff(np.flatnonzero(np.append(is_first, True))))
        ends_in_chain = np.empty(len(starts), np.int64)
        ends_in_chain[order] = ends - base
        self._starts = starts.tolist()
        self._begins: list[int] = (ends_in_chain - sizes).tolist()
        self._ends: list[int] = ends_in_chain.tolist()
        self.num_chains = int(np.count_nonzero(is_first))

    def start(self, number: int) -> int:
        """Return the first record of the chain that a record belongs to."""
        start: int = self._starts[number]
        return start

    def cut(self, chain: Any, number: int) -> Any:
        """Return a record [bytes-like] of its chain [bytes-like]. It is shorter if the chain is too short."""
        return chain[self._begins[number] : self._ends[number]]
