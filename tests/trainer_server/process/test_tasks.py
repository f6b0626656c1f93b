"""Tasks that outlive the errors of their rounds."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.patience import PATIENCE
from trainer_server.process.tasks import PeriodicTask


async def test_a_round_that_fails_is_logged_shown_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[str | None] = []
    enough = asyncio.Event()

    async def work() -> None:
        rounds.append(task.failure)
        if len(rounds) < 3:
            raise RuntimeError(f"round {len(rounds)}")
        if len(rounds) > 3:
            enough.set()
            await asyncio.sleep(600)

    task = PeriodicTask("the work", work, pause=0.0)
    task.start()
    await asyncio.wait_for(enough.wait(), PATIENCE)
    assert rounds == [None, "the work: RuntimeError: round 1", "the work: RuntimeError: round 2", None]
    assert "RuntimeError: round 2" in caplog.text
    await task.stop()
    await task.stop()
    assert len(rounds) == 4


async def test_the_same_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[int] = []
    enough = asyncio.Event()

    async def work() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 5:
            enough.set()
        raise RuntimeError("no disk")

    task = PeriodicTask("the work", work, pause=0.0)
    task.start()
    await asyncio.wait_for(enough.wait(), PATIENCE)
    await task.stop()
    assert [text for text in caplog.messages if "the work" in text] == ["the work failed; it is tried again every 0 s"]


async def test_a_round_whose_work_is_cancelled_by_others_does_not_end_the_task() -> None:
    rounds: list[int] = []
    enough = asyncio.Event()

    async def work() -> None:
        rounds.append(len(rounds))
        if len(rounds) > 1:
            enough.set()
            await asyncio.sleep(600)
        waited_for = asyncio.create_task(asyncio.sleep(600))
        waited_for.cancel()
        await waited_for

    task = PeriodicTask("the work", work, pause=0.0)
    task.start()
    await asyncio.wait_for(enough.wait(), PATIENCE)
    assert task.failure == "the work: CancelledError: "
    await asyncio.wait_for(task.stop(), PATIENCE)
    assert len(rounds) == 2


async def test_a_task_that_was_never_started_can_be_stopped() -> None:
    async def work() -> None:
        raise AssertionError

    await PeriodicTask("the work", work).stop()
