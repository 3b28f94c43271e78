import numpy as np
import pytest
import torch
from refusals import refused

from vanillaformer.data.preprocessing.batching import LengthGroupedEpochs, RandomEpochs, TokenBatches

LENGTHS = [(7 * index) % 40 + 1 for index in range(1000)]


@pytest.mark.parametrize("make", [lambda seed: RandomEpochs(1000, seed), lambda s: LengthGroupedEpochs(LENGTHS, 7, s)])
def test_order_is_a_permutation_that_seed_and_epoch_decide(make) -> None:
    first, again, other = make(1), make(1), make(2)
    torch.manual_seed(3)
    orders = [list(first)]
    torch.manual_seed(4)
    assert list(again) == orders[0]
    first.set_epoch(1)
    orders += [list(first), list(other)]
    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    first.set_epoch(0)
    assert list(first) == orders[0]
    assert len(first) == 1000


def test_batches_hold_rows_of_similar_length_in_random_order() -> None:
    order = list(LengthGroupedEpochs(LENGTHS, 8, 0))
    batches = [[LENGTHS[row] for row in order[start : start + 8]] for start in range(0, 1000, 8)]
    padding = sum(max(batch) * len(batch) - sum(batch) for batch in batches) / sum(LENGTHS)
    assert padding < 0.1
    longest = torch.tensor([max(batch) for batch in batches], dtype=torch.float)
    following = torch.corrcoef(torch.stack([longest[:-1], longest[1:]]))[0, 1]
    assert abs(following) < 0.3  # sorted batches would have 0.9


def pairs(count: int = 5000) -> np.ndarray:
    generator = np.random.default_rng(0)
    sources = generator.integers(3, 40, count)
    return np.stack([sources, np.clip(sources + generator.integers(-3, 4, count), 1, None)], axis=1)


def rows_of(batches: TokenBatches) -> list[list[int]]:
    return [list(map(int, batch)) for batch in batches]


@pytest.mark.parametrize("by_length", [True, False])
def test_token_batches_have_every_row_once_and_about_equal_tokens(by_length: bool) -> None:
    lengths = pairs()
    batches = TokenBatches(lengths, 1024, seed=3, packed=not by_length)
    found = rows_of(batches)
    assert sorted(row for batch in found for row in batch) == list(range(len(lengths)))
    assert len(found) == len(batches) == round(lengths.sum() / 1024)
    tokens = np.array([lengths[batch].sum() for batch in found])
    assert abs(tokens - lengths.sum() / len(batches)).max() <= lengths.sum(axis=1).max()


def test_token_batches_pad_little_and_those_of_packed_rows_have_rows_of_all_lengths() -> None:
    lengths = pairs()
    by_length, of_all = (rows_of(TokenBatches(lengths, 1024, seed=0, packed=not wanted)) for wanted in (True, False))
    at_random = np.array_split(np.random.default_rng(1).permutation(len(lengths)), len(by_length))
    padding = [
        sum(lengths[batch].max(axis=0).sum() * len(batch) for batch in found) / lengths.sum() - 1
        for found in (by_length, at_random)
    ]
    assert padding[0] < padding[1] / 10
    spread = [np.mean([lengths[batch, 0].std() for batch in batches]) for batches in (by_length, of_all)]
    assert spread[1] > 0.9 * lengths[:, 0].std() > 5 * spread[0]


def test_token_batches_differ_by_epoch_and_seed_only() -> None:
    one, same, other = (TokenBatches(pairs(), 512, seed=seed) for seed in (1, 1, 2))
    torch.manual_seed(5)
    first = rows_of(one)
    torch.manual_seed(6)
    assert rows_of(same) == first != rows_of(other)
    one.set_epoch(1)
    assert rows_of(one) != first
    assert len(rows_of(one)) == len(first)
    # not the same rows in another order either
    assert {frozenset(batch) for batch in rows_of(one)}.isdisjoint({frozenset(batch) for batch in first})


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 4), (2, 1), (2, 3), (4, 1)])
def test_token_batches_are_divided_among_processes_and_accumulated_steps(processes: int, accumulation: int) -> None:
    whole = rows_of(TokenBatches(pairs(), 2048, seed=0))
    parts = [
        rows_of(TokenBatches(pairs(), 2048, 0, accumulation=accumulation, processes=processes, process=process))
        for process in range(processes)
    ]
    assert all(len(part) == len(whole) * accumulation and all(part) for part in parts)
    for step, batch in enumerate(whole):
        turns = slice(step * accumulation, (step + 1) * accumulation)
        assert sorted(row for part in parts for turn in part[turns] for row in turn) == sorted(batch)


def test_processes_have_equal_work() -> None:
    totals = pairs().sum(axis=1)
    parts = [TokenBatches(pairs(), 2048, 0, processes=2, process=number, packed=True) for number in range(2)]
    one, other = (np.array([totals[rows].sum() for rows in part]) for part in parts)
    assert abs(one / other - 1).mean() < 0.01


def test_rows_as_long_as_a_batch_make_a_batch_each_and_longer_ones_are_refused() -> None:
    assert sorted(rows_of(TokenBatches(np.full((7, 1), 64), 64, seed=0))) == [[row] for row in range(7)]
    lengths = np.array([[80]] + [[10]] * 100)
    refused("--tokens_per_batch 64: the longest row has 80 tokens", TokenBatches, lengths, 64, seed=0)
    message = r"4 parts \(2 processes x 2 accumulated steps\): give at least 400"
    refused(message, TokenBatches, np.full((100, 1), 80), 240, 0, processes=2, accumulation=2)
