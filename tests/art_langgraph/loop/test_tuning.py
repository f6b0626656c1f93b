"""How many runs at once a training finds best, and what it never does on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from art_langgraph.loop.tuning import Pace, Slots, Tuner, Tuning


class Runs:
    """Runs that take slots, and how many there are."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self.ends, self.count = slots, list[asyncio.Event](), 0
        self.tasks = list[asyncio.Task[None]]()

    async def _run(self) -> None:
        async with self._slots:
            self.count += 1
            self.ends.append(end := asyncio.Event())
            await end.wait()
            self.count -= 1

    async def begin(self, count: int) -> None:
        self.tasks += [asyncio.create_task(self._run()) for _ in range(count)]
        await self.settle()

    async def end(self, count: int) -> None:
        for _ in range(count):
            self.ends.pop(0).set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_slots_that_are_in_use_go_with_their_runs() -> None:
    slots = Slots(8)
    runs = Runs(slots)
    await runs.begin(6)
    await slots.resize(3)
    await runs.begin(6)
    assert runs.count == 6, "runs go on, and none begins"
    await runs.end(3)
    assert runs.count == 3
    await runs.end(1)
    assert runs.count == 3, "one begins where one has ended"
    await slots.resize(5)
    await runs.settle()
    assert runs.count == 5
    await slots.resize(1)
    await slots.resize(4)
    await runs.end(2)
    await runs.begin(4)
    assert runs.count == 4, "narrower and wider again, while all were in use"


async def test_slots_that_are_free_go_at_once() -> None:
    slots = Slots(8)
    runs = Runs(slots)
    await slots.resize(2)
    await runs.begin(8)
    assert runs.count == 2


Machine = Callable[[int], dict[str, Any]]
"""What steps are like with so many slots: the groups of 100 seconds, `wait`, `bottleneck`, and `runs` at once."""


async def find(
    machine: Machine, *, first: int, most: int, settle: int = 1, evaluations: tuple[int, ...] = ()
) -> tuple[Tuning, list[int]]:
    """What is found, and the slots of each step until then."""
    slots, tried = Slots(first), list[int]()
    tuner = Tuner(slots, most, settle)
    for step in range(1, 60):
        tried.append(slots.count)
        facts = {"wait": 50.0, "bottleneck": "slots", "runs": float(slots.count), **machine(slots.count)}
        if step - 1 in evaluations or step - 2 in evaluations:
            facts["groups"] = 1000  # whoever counts them is led astray
        waits = {"groups": facts["wait"], "slots": 0.0, "in_flight": 0.0, "room": 0.0, facts["bottleneck"]: 10.0}
        pace = None if step == 1 else Pace(slots.count, facts["groups"], 100.0, 100 * facts["runs"], waits)
        tuning = await tuner.add(pace, overlaps_evaluation=step in evaluations)
        if tuning is not None:
            assert slots.count == tuning.max_concurrency
            assert await tuner.add(pace) is None
            return tuning, tried
    raise AssertionError("it does not end")


def peak(best: int, **facts: Any) -> Machine:
    """A machine that makes fewer groups with fewer slots than `best`, and with more."""
    return lambda slots: {"groups": 60 * min(slots / best, (best / slots) ** 0.5), **facts}


@pytest.mark.parametrize(("first", "best"), [(32, 128), (256, 32), (64, 64), (64, 1), (3, 6)])
async def test_the_best_number_of_slots_is_found_from_either_side(first: int, best: int) -> None:
    tuning, tried = await find(peak(best), first=first, most=256)
    assert (tuning.max_concurrency, tuning.first) == (best, first)
    assert tuning.steps == len(tried)
    assert max(tried) <= 2 * max(best, first)


async def test_what_engines_hold_is_never_exceeded() -> None:
    tuning, tried = await find(lambda slots: {"groups": slots}, first=32, most=100)
    assert tuning.max_concurrency == max(tried) == 100
    tuning, tried = await find(lambda slots: {"groups": slots}, first=100, most=100)
    assert tuning.max_concurrency == max(tried) == 100
    assert "neither fewer nor more" in str(tuning)


async def test_where_groups_wait_for_the_trainer_nothing_is_tried() -> None:
    tuning, tried = await find(lambda slots: {"groups": 10, "wait": 2.0}, first=32, most=256)
    assert set(tried) == {32}
    assert "max_concurrency=32 stays, since groups wait for the trainer, which is busy 98% of the time" in str(tuning)


async def test_slots_that_no_run_has_are_not_tried() -> None:
    def machine(slots: int) -> dict[str, Any]:
        return {"groups": 10 + (slots < 40), "bottleneck": "room", "runs": min(slots, 60.0)}

    tuning, tried = await find(machine, first=256, most=256)
    assert sorted(set(tried)) == [32, 256], "with 60 runs at once, 128 and 64 slots are no difference"
    assert tuning.max_concurrency == 256, "a tenth more may be chance"
    assert "a larger max_staleness or groups_per_step" in str(tuning)


async def test_without_the_times_of_runs_slots_are_halved() -> None:
    tuning, tried = await find(lambda slots: {"groups": 10, "bottleneck": "room", "runs": 0.0}, first=256, most=256)
    assert sorted(set(tried)) == [128, 256]
    assert tuning.max_concurrency == 256


async def test_the_way_ends_where_the_trainer_becomes_the_bottleneck() -> None:
    def machine(slots: int) -> dict[str, Any]:
        return {"groups": min(slots, 64), "wait": 50.0 if slots < 64 else 1.0}

    tuning, tried = await find(machine, first=32, most=256)
    assert (tuning.max_concurrency, max(tried)) == (64, 64)
    assert "max_concurrency=64 in place of 32 makes 2.00 × the groups" in str(tuning)


async def test_steps_that_share_slots_with_an_evaluation_are_not_counted() -> None:
    plain, _ = await find(peak(128), first=32, most=256)
    tuning, _ = await find(peak(128), first=32, most=256, evaluations=tuple(range(3, 60, 3)))
    assert (tuning.max_concurrency, tuning.gain) == (128, plain.gain)
    assert tuning.steps > plain.steps
    assert tuning.summary()["max_concurrency"] == 128
