"""The conversion of a network's output to the dtype in which it is stored."""

from __future__ import annotations

import numpy as np


def stored(found: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an output of a network in another dtype.

    Raises
    ------
    ValueError
        If a value is not finite, or does not fit.
    """
    if not np.isfinite(found).all():
        raise ValueError("the network returned values that are not finite")
    with np.errstate(over="ignore"):
        rows = found.astype(dtype)
    if not np.isfinite(rows).all():
        raise ValueError(f"values up to {np.abs(found).max():.3g} do not fit into {dtype}; use float32")
    return rows
