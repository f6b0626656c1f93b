"""Batches have every row once a pass, and keep rows that begin alike together."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_server.jobs.demonstrations import Row
from trainer_server.training.sft.batches import Paths, batches, families


def row(prompt: list[int], *answer: int) -> Row:
    return Row(ids=[*prompt, *answer], loss_spans=[(len(prompt), len(prompt) + len(answer))])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 9), st.integers(0, 5))
def test_a_pass_has_every_row_once_in_as_few_updates_as_can_be(family_of: list[int], size: int, seed: int) -> None:
    found = batches(family_of, size, random.Random(seed))
    assert sorted(index for batch in found for index in batch) == list(range(len(family_of)))
    assert len(found) == -(-len(family_of) // size)
    whole = sum(family_of.count(family) // size for family in set(family_of))
    assert sum(len(batch) == size and len({family_of[at] for at in batch}) == 1 for batch in found) >= whole


def test_rows_of_one_system_prompt_are_a_family_whatever_order_they_come_in() -> None:
    first, second = list(range(10, 40)), list(range(50, 80))
    rows = [row([*first, 1], 5), row([*second, 1], 5), row([*first, 2, 3], 6), row([*second, 2], 7), row([1, 2], 3)]
    found = families(rows)
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert len(set(found)) == 3


def test_two_agents_whose_rows_come_mixed_cost_one_prefix_an_update() -> None:
    first, second = list(range(10, 110)), list(range(200, 300))
    rows = [row([*(first, second)[at % 2], 300 + at], at) for at in range(8)]
    for batch in batches(families(rows), 4, random.Random(0)):
        (packed,) = Paths.of([rows[at] for at in batch]).pack(1000, share=True, ranks=1).rows
        assert len(packed.tokens_T) == 100 + 4


@pytest.mark.parametrize("budget", [1, 1000])
def test_a_demonstration_that_is_longer_than_the_budget_is_computed_all_the_same(budget: int) -> None:
    paths = Paths.of([Row(ids=[1, 2, 3, 4, 5], loss_spans=[(1, 2), (3, 5)]), row([7, 8], 9)])
    packing = paths.pack(budget, share=True, ranks=1)
    assert packing.too_long == ()
    assert sorted(int(target) for packed in packing.rows for target in packed.target_R) == [2, 4, 5, 9]


def test_without_a_source_of_randomness_rows_keep_their_order() -> None:
    assert batches([0] * 5, 2, None) == [[0, 1], [2, 3], [4]]
    assert batches([0, 1, 0, 1, 0], 2, None) == [[0, 2], [1, 3], [4]]
