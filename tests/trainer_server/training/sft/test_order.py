"""Which rows come when: pass after pass, or as many as there is time for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_server.jobs.demonstrations import Row
from trainer_server.training.sft.order import PROBED, Order
from trainer_server.wire import SFTConfig

PROMPT = list(range(100, 140))


def rows(count: int, own: int = 10) -> list[Row]:
    """Rows of `own` tokens each, after a prompt that all share."""
    spans = [(len(PROMPT), len(PROMPT) + own)]
    return [Row(ids=[*PROMPT, *[number + 1] * own], loss_spans=spans) for number in range(count)]


def config(size: int = 2, *, fit: bool = True, shuffle: bool = True) -> SFTConfig:
    return SFTConfig(per_device_train_batch_size=size, fit_to_time=fit, max_seconds=60, shuffle_dataset=shuffle, seed=3)


def test_a_time_must_be_given() -> None:
    with pytest.raises(ValueError, match="set max_seconds"):
        SFTConfig(fit_to_time=True)


def run(order: Order, seconds: float, each: float) -> list[list[int]]:
    """The rows of all updates for which there is time, if each row of one takes `each` seconds."""
    taken: list[list[int]] = []
    while seconds > 0:
        taken.append(order.take(seconds))
        order.record(taken[-1], each * len(taken[-1]))
        seconds -= each * len(taken[-1])
    return taken


def test_the_first_rows_are_imitated_for_which_there_is_time() -> None:
    order = Order(rows(100), config())
    taken = run(order, 40.0, each=1.0)
    flat = [index for update in taken for index in update]
    assert set(flat[: PROBED * 2]) == set(range(PROBED * 2))
    assert set(flat) == set(range(40)) == order.imitated_rows
    assert flat != sorted(flat), "those after the first come in a random order"
    assert order.fits
    assert order.passes == 0


def test_time_that_is_left_shows_more_and_never_the_same_before_all_have_come() -> None:
    order = Order(rows(80), config())
    for _ in range(PROBED):
        order.record(order.take(30.0), 6.0)  # slow at first: six seconds for two rows
    taken = run(order, 30.0, each=0.5)
    flat = [index for update in taken for index in update]
    assert len(flat) == len(set(flat)) > 50
    assert order.fits


def test_after_all_rows_come_whole_passes() -> None:
    order = Order(rows(10), config())
    taken = run(order, 25.0, each=1.0)
    flat = [index for update in taken for index in update]
    assert sorted(flat[:10]) == sorted(flat[10:20]) == list(range(10))
    assert order.passes == 2


def test_one_update_is_taken_however_little_time_there_is() -> None:
    order = Order(rows(40), config())
    for _ in range(PROBED):
        order.record(order.take(1.0), 50.0)
    assert len(order.take(1.0)) == 2


def test_a_long_row_counts_for_what_it_takes() -> None:
    """A row of 50 tokens takes a second. In 20 s there is time for 20 of them, or for 11 and one of 440 tokens."""
    long = Row(ids=[*PROMPT, *range(1000, 1400)], loss_spans=[(len(PROMPT), len(PROMPT) + 400)])
    for first, found in ((rows(60)[PROBED:], 20), ([long, *rows(60)[PROBED:]], 12)):
        order = Order([*rows(PROBED), *first], config(1))
        for _ in range(PROBED):
            order.record(order.take(20.0), 1.0)
        order.take(20.0)
        assert len(order._queue) + 1 == found


@given(st.integers(1, 30), st.integers(1, 4))
def test_where_it_was_not_asked_for_a_pass_has_every_row_once(count: int, size: int) -> None:
    order = Order(rows(count), config(size, fit=False))
    taken = [index for _ in range(order.epoch) for index in order.take(None)]
    assert sorted(taken) == list(range(count))
    assert order.passes == 1
    assert not order.fits


def test_rows_that_are_not_shuffled_come_as_they_were_given() -> None:
    order = Order(rows(20), config(shuffle=False))
    flat = [index for update in run(order, 16.0, each=1.0) for index in update]
    assert flat == list(range(16))
