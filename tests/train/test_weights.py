"""Draws by weights: a function of seed and epoch, over ranks, kills and changes of the world's size."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.shares import bound, shares_of

import chordcache as cc
from chordcache.errors import UsageError


def order_of(sampler: Any, epoch: int | None = None) -> list[tuple[int, int]]:
    if epoch is not None:
        sampler.set_epoch(epoch)
    return list(sampler)


def test_shares_of_samples_are_their_weights() -> None:
    weights = np.array([0, 1, 2, 0, 4, 1e-9, 3, 0])
    indices = [index for _, index in cc.ChordSampler(8, weights=weights, num_samples=20_000)]
    for drawn, share in zip(shares_of(indices, np.arange(8), 8), weights / weights.sum(), strict=True):
        assert abs(drawn - share) <= bound(share, 20_000)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"weights": "even"}, "^weights: got 'even', expected 'balanced', a number for each sample, or None$"),
        ({"weights": [1, 2]}, r"^weights: got list of shape \(2,\), expected 'balanced', or 4 numbers as the dataset"),
        ({"weights": [1, 2, 3, -1]}, "^weights: got -1.0 at position 3"),
        ({"weights": [1, 2, 3, np.inf]}, "^weights: got inf at position 3"),
        ({"weights": [0, 0, 0, 0]}, "^weights: got a sum of 0.0"),
        ({"weights": [1e308] * 4}, "^weights: got a sum of inf, expected a finite number above 0$"),
        ({"weights": [1] * 4, "shuffle": False}, "^shuffle: got False with weights, expected True. For the order of"),
        ({"weights": [1] * 4, "num_samples": 0}, "^num_samples: got 0, expected an integer of at least 1$"),
        ({"num_samples": 4}, "^num_samples: got 4 without weights, expected None. Without weights, an epoch has every"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in reduce:RuntimeWarning")
def test_wrong_weights(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.ChordSampler(4, **arguments)


def test_draws_are_those_of_every_release() -> None:
    # Part of what a seed promises: a run that goes on with another numpy, or on a mixed cluster, relies on it
    assert [i for _, i in cc.ChordSampler(4, weights=[1, 2, 3, 0])] == [2, 1, 2, 0]
    sampler = cc.ChordSampler(4, weights=[0.1, 0.2, 0.3, 0.4], num_samples=10, seed=1)
    assert [i for _, i in order_of(sampler, 3)] == [2, 3, 2, 2, 2, 2, 1, 1, 1, 3]
    assert sampler.state_dict()["weights"] == 10641639017341337837


def test_a_million_weights() -> None:
    weights = np.ones(1_000_000)
    weights[:500_000] = 3
    sampler = cc.ChordSampler(1_000_000, weights=weights, rank=1, world_size=3)
    pairs = iter(sampler)
    drawn = np.array([next(pairs)[1] for _ in range(20_000)])
    assert len(sampler) == 333_334
    assert abs(np.mean(drawn < 500_000) - 0.75) <= bound(0.75, 20_000)
    arrays = [value for value in vars(sampler).values() if isinstance(value, np.ndarray)]
    assert [array.nbytes for array in arrays] == [8_000_000]


@pytest.mark.parametrize(("world_size", "later_world_size"), [(1, 1), (2, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("num_samples", [None, 37, 90])
@pytest.mark.parametrize("num_batches", [0, 2, 100])
def test_every_draw_once_when_the_world_changes(
    world_size: int, later_world_size: int, num_samples: int | None, num_batches: int
) -> None:
    options = {"weights": np.arange(40) % 5, "num_samples": num_samples, "seed": 2, "batch_size": 4}
    whole = order_of(cc.ChordSampler(40, **options, rank=0, world_size=1), 3)
    assert len(whole) == (num_samples or 40)
    assert len(set(whole)) == len(whole)
    before = [cc.ChordSampler(40, **options, rank=rank, world_size=world_size) for rank in range(world_size)]
    split = [order_of(sampler, 3) for sampler in before]
    in_turn = [pair for round_ in zip(*split, strict=True) for pair in round_]
    assert in_turn == whole + whole[: len(in_turn) - len(whole)]
    (state,) = {json.dumps(sampler.state_dict(num_batches)) for sampler in before}
    after = [cc.ChordSampler(40, **options, rank=rank, world_size=later_world_size) for rank in range(later_world_size)]
    rest = []
    for sampler in after:
        sampler.load_state_dict(json.loads(state))
        rest.append(order_of(sampler, 3))
    used = min(num_batches * 4 * world_size, len(whole))
    in_turn = [pair for round_ in zip(*rest, strict=True) for pair in round_]
    assert in_turn[: len(whole) - used] == whole[used:]
    assert len(in_turn) - (len(whole) - used) < later_world_size


def test_states_of_other_weights() -> None:
    weighted, plain = cc.ChordSampler(4, weights=[1, 2, 3, 4]), cc.ChordSampler(4)
    for sampler, state in (
        (weighted, plain.state_dict()),
        (plain, weighted.state_dict()),
        (weighted, cc.ChordSampler(4, weights=[1, 2, 3, 5]).state_dict()),
    ):
        with pytest.raises(UsageError, match="^state: got one of other weights, expected those of the sampler, since"):
            sampler.load_state_dict(state)
    with pytest.raises(UsageError, match="^state: got num_samples=9, expected 4"):
        weighted.load_state_dict(cc.ChordSampler(4, weights=[1, 2, 3, 4], num_samples=9).state_dict())
    with pytest.raises(UsageError, match="^sampler: got one for 4 samples, expected 5 as in the dataset$"):
        cc.ChordSampler(4, weights=[1, 2, 3, 4], num_samples=5).check_length(range(5))
