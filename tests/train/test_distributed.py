"""Every sample once an epoch: over ranks, workers, kills and changes of the world's size."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from helpers.shares import bound, shares_of
from hypothesis import given
from hypothesis import strategies as st

from chordcache.errors import UsageError
from chordcache.train.samplers.distributed import ChordSampler


def ranks(num_samples: int, world_size: int, **options: Any) -> list[ChordSampler]:
    return [ChordSampler(num_samples, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def indices(sampler: ChordSampler, epoch: int | None = None) -> list[int]:
    if epoch is not None:
        sampler.set_epoch(epoch)
    pairs = list(sampler)
    assert {e for e, _ in pairs} <= {sampler.epoch}
    return [index for _, index in pairs]


WORLDS = {"num_samples": st.integers(1, 60), "world_size": st.integers(1, 9), "seed": st.integers(0, 2**64 - 1)}


@given(**WORLDS, shuffle=st.booleans(), epoch=st.integers(0, 5))
def test_padding_repeats_as_few_as_can_be(
    num_samples: int, world_size: int, seed: int, shuffle: bool, epoch: int
) -> None:
    split = [indices(s, epoch) for s in ranks(num_samples, world_size, seed=seed, shuffle=shuffle)]
    assert {len(part) for part in split} == {-(-num_samples // world_size)}
    in_turn = [index for round_ in zip(*split, strict=True) for index in round_]
    assert sorted(in_turn[:num_samples]) == list(range(num_samples))  # each once, before padding
    assert in_turn[num_samples:] == (in_turn[:num_samples] * world_size)[: len(in_turn) - num_samples]


@given(num_samples=st.integers(9, 60), world_size=st.integers(1, 9), epoch=st.integers(0, 5))
def test_dropping_leaves_out_less_than_one_round(num_samples: int, world_size: int, epoch: int) -> None:
    split = [indices(s, epoch) for s in ranks(num_samples, world_size, on_remainder="drop")]
    assert {len(part) for part in split} == {num_samples // world_size}
    seen = [index for part in split for index in part]
    assert len(set(seen)) == len(seen)


def test_dropping_leaves_out_others_in_each_epoch() -> None:
    left_out = [
        set(range(10)) - {i for s in ranks(10, 4, on_remainder="drop") for i in indices(s, e)} for e in range(20)
    ]
    assert {len(omitted) for omitted in left_out} == {2}
    assert len({frozenset(omitted) for omitted in left_out}) > 10


def test_order_depends_on_seed_and_epoch_alone() -> None:
    orders = {(seed, epoch): indices(ChordSampler(50, seed=seed), epoch) for seed in range(3) for epoch in range(3)}
    assert len({tuple(order) for order in orders.values()}) == 9
    np.random.seed(1)
    assert indices(ChordSampler(50, seed=2), 1) == orders[2, 1]
    assert indices(ChordSampler(50, shuffle=False), 7) == list(range(50))


def test_order_is_that_of_every_release() -> None:
    # Part of what a seed promises: a run that goes on with another numpy, or on a mixed cluster, relies on it
    assert indices(ChordSampler(8, seed=0)) == [7, 3, 4, 1, 6, 5, 0, 2]
    assert indices(ChordSampler(8, seed=1), 3) == [6, 7, 5, 2, 4, 0, 3, 1]


def test_every_place_is_equally_likely() -> None:
    first = Counter(indices(ChordSampler(5), epoch)[0] for epoch in range(2000))
    assert all(320 < count < 480 for count in first.values())  # 400 each; a standard deviation is 18


@given(
    **WORLDS,
    batch_size=st.integers(1, 7),
    later_world_size=st.integers(1, 9),
    share=st.floats(0, 1),
    on_remainder=st.sampled_from(["pad", "drop"]),
)
def test_every_sample_once_when_the_world_changes(
    num_samples: int,
    world_size: int,
    seed: int,
    batch_size: int,
    later_world_size: int,
    share: float,
    on_remainder: str,
) -> None:
    if on_remainder == "drop" and num_samples < max(world_size, later_world_size):
        return
    options = {"seed": seed, "batch_size": batch_size, "on_remainder": on_remainder}
    before = ranks(num_samples, world_size, **options)
    split = [indices(sampler, 4) for sampler in before]
    num_batches = int(share * -(-len(split[0]) // batch_size))
    used = [index for part in split for index in part[: num_batches * batch_size]]
    (state,) = {json.dumps(sampler.state_dict(num_batches_consumed=num_batches)) for sampler in before}
    after = ranks(num_samples, later_world_size, **{**options, "batch_size": 3})
    for sampler in after:
        sampler.load_state_dict(json.loads(state))
        sampler.set_epoch(4)  # as a loop over epochs does, also over the one that was begun
    rest = [indices(sampler) for sampler in after]
    assert len({len(part) for part in rest}) == 1
    seen = Counter(used + [index for part in rest for index in part])
    num_seen_twice = sum(seen.values()) - len(seen)
    if on_remainder == "drop":
        assert num_seen_twice == 0
        assert len(seen) > num_samples - max(world_size, later_world_size)
    else:
        assert len(seen) == num_samples
        assert num_seen_twice < world_size + later_world_size
    whole = ranks(num_samples, later_world_size, on_remainder=on_remainder)
    assert {len(indices(sampler, 5)) for sampler in after} == {len(whole[0])}


def test_state_while_a_resumed_pass_runs() -> None:
    sampler = ChordSampler(10, batch_size=2, rank=0, world_size=1)
    whole = indices(sampler)
    state = sampler.state_dict(num_batches_consumed=2)
    sampler.load_state_dict(state)
    assert sampler.state_dict(0) == state
    pairs = iter(sampler)
    assert [next(pairs)[1] for _ in range(3)] == whole[4:7]
    assert sampler.state_dict(1)["num_consumed"] == 6
    assert sampler.state_dict()["num_consumed"] == 7  # all that was drawn
    assert sampler.state_dict(3)["num_consumed"] == 10
    sampler.load_state_dict(sampler.state_dict(3))
    assert indices(sampler, 0) == []  # the epoch is over, and no sample comes again
    sampler.load_state_dict({**state, "num_consumed": 10})
    assert len(sampler) == 10
    assert len(indices(sampler)) == 10
    assert sampler.epoch == 1


def test_a_loaded_state_is_not_dropped_for_an_earlier_epoch() -> None:
    sampler = ChordSampler(10, batch_size=2)
    sampler.load_state_dict({**sampler.state_dict(0), "epoch": 3, "num_consumed": 4})
    with pytest.raises(UsageError, match="^epoch: got 0 after load_state_dict of a state of epoch 3, expected"):
        sampler.set_epoch(0)  # as a framework does that counts its own passes
    sampler.set_epoch(3)
    assert len(indices(sampler)) == 6
    assert len(indices(sampler, 0)) == 10  # once the pass has begun, any epoch may follow


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"seed": 1}, "^state: got seed=1, expected 0 as in the sampler, since another one gives another order"),
        ({"num_samples": 11}, "^state: got num_samples=11, expected 10"),
        ({"shuffle": False}, "^state: got shuffle=False, expected True"),
        ({"epoch": -1}, "^epoch: got -1"),
        ({"num_consumed": "3"}, "^num_consumed: got '3'"),
        ({"more": 1}, "^state: got keys seed, .*more, expected the state of a ChordSampler$"),
    ],
)
def test_states_that_do_not_fit(change: dict[str, Any], match: str) -> None:
    sampler = ChordSampler(10)
    with pytest.raises(UsageError, match=match):
        sampler.load_state_dict({**sampler.state_dict(0), **change})
    assert sampler.state_dict(0) == ChordSampler(10).state_dict(0)  # and it is as it was


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"dataset": 0}, "^dataset: got 0, expected an integer of at least 1$"),
        ({"dataset": 5, "seed": -1}, "^seed: got -1"),
        ({"dataset": 5, "batch_size": 0}, "^batch_size: got 0"),
        ({"dataset": 5, "on_remainder": "wrap"}, "^on_remainder: got 'wrap', expected one of pad, drop$"),
        ({"dataset": 5, "rank": 1}, "^rank and world_size: got 1 and None, expected both or neither$"),
        ({"dataset": 5, "rank": 2, "world_size": 2}, "^world_size: got 2, expected an integer of at least 3$"),
        ({"dataset": 5, "rank": -1, "world_size": 2}, "^rank: got -1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        ChordSampler(**arguments)


def test_too_few_samples_to_drop() -> None:
    with pytest.raises(UsageError, match="^world_size: got 4, expected at most 3, the number of samples. .*'pad'.$"):
        list(ChordSampler(3, rank=0, world_size=4, on_remainder="drop"))


# Draws by weights


def order_of(sampler: Any, epoch: int | None = None) -> list[tuple[int, int]]:
    if epoch is not None:
        sampler.set_epoch(epoch)
    return list(sampler)


def test_shares_of_samples_are_their_weights() -> None:
    weights = np.array([0, 1, 2, 0, 4, 1e-9, 3, 0])
    indices = [index for _, index in ChordSampler(8, weights=weights, num_samples=20_000)]
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
        ChordSampler(4, **arguments)


def test_draws_are_those_of_every_release() -> None:
    # Part of what a seed promises: a run that goes on with another numpy, or on a mixed cluster, relies on it
    assert [i for _, i in ChordSampler(4, weights=[1, 2, 3, 0])] == [2, 1, 2, 0]
    sampler = ChordSampler(4, weights=[0.1, 0.2, 0.3, 0.4], num_samples=10, seed=1)
    assert [i for _, i in order_of(sampler, 3)] == [2, 3, 2, 2, 2, 2, 1, 1, 1, 3]
    assert sampler.state_dict()["weights"] == 10641639017341337837


@pytest.mark.parametrize(("world_size", "later_world_size"), [(1, 1), (2, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("num_samples", [None, 37, 90])
@pytest.mark.parametrize("num_batches", [0, 2, 100])
def test_every_draw_once_when_the_world_changes(
    world_size: int, later_world_size: int, num_samples: int | None, num_batches: int
) -> None:
    options = {"weights": np.arange(40) % 5, "num_samples": num_samples, "seed": 2, "batch_size": 4}
    whole = order_of(ChordSampler(40, **options, rank=0, world_size=1), 3)
    assert len(whole) == (num_samples or 40)
    assert len(set(whole)) == len(whole)
    before = [ChordSampler(40, **options, rank=rank, world_size=world_size) for rank in range(world_size)]
    split = [order_of(sampler, 3) for sampler in before]
    in_turn = [pair for round_ in zip(*split, strict=True) for pair in round_]
    assert in_turn == whole + whole[: len(in_turn) - len(whole)]
    (state,) = {json.dumps(sampler.state_dict(num_batches)) for sampler in before}
    after = [ChordSampler(40, **options, rank=rank, world_size=later_world_size) for rank in range(later_world_size)]
    rest = []
    for sampler in after:
        sampler.load_state_dict(json.loads(state))
        rest.append(order_of(sampler, 3))
    used = min(num_batches * 4 * world_size, len(whole))
    in_turn = [pair for round_ in zip(*rest, strict=True) for pair in round_]
    assert in_turn[: len(whole) - used] == whole[used:]
    assert len(in_turn) - (len(whole) - used) < later_world_size


def test_states_of_other_weights() -> None:
    weighted, plain = ChordSampler(4, weights=[1, 2, 3, 4]), ChordSampler(4)
    for sampler, state in (
        (weighted, plain.state_dict()),
        (plain, weighted.state_dict()),
        (weighted, ChordSampler(4, weights=[1, 2, 3, 5]).state_dict()),
    ):
        with pytest.raises(UsageError, match="^state: got one of other weights, expected those of the sampler, since"):
            sampler.load_state_dict(state)
    with pytest.raises(UsageError, match="^state: got num_samples=9, expected 4"):
        weighted.load_state_dict(ChordSampler(4, weights=[1, 2, 3, 4], num_samples=9).state_dict())
    with pytest.raises(UsageError, match="^sampler: got one for 4 samples, expected 5 as in the dataset$"):
        ChordSampler(4, weights=[1, 2, 3, 4], num_samples=5).check_length(range(5))
