"""Shares of samples that a sampler drew, and the bound of their random error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shares_of(indices: Sequence[int], groups: np.ndarray, num_groups: int) -> np.ndarray:
    """Return the share of each group [shape=(num_groups,)] in samples; ``groups`` has the group of each sample."""
    return np.bincount(groups[indices], minlength=num_groups) / len(indices)


def bound(share: float, num_draws: int) -> float:
    """Five standard deviations of a binomial share."""
    return 5 * (share * (1 - share) / num_draws) ** 0.5
