"""Engines for requests: when a request takes a turn at one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.support.engines.letters import LettersEngine
from tests.support.patience import PATIENCE
from trainer_server.engines.pool import Engines
from trainer_server.gateway.sampler import Admission, Sampler, _prompt_key


class SlowEngine(LettersEngine):
    """It may be away for a while."""

    def __init__(self) -> None:
        super().__init__("base")
        self.up = asyncio.Event()

    async def wait_ready(self, timeout: float) -> None:
        await self.up.wait()


def sampler(engine: SlowEngine, admission: Admission) -> Sampler:
    nothing: Any = None
    return Sampler(Engines([engine]), nothing, nothing, admission, base="base", engine_wait=10.0)


async def test_whoever_waits_for_an_engine_keeps_nobody_else_in_line() -> None:
    """Else requests would wait one after another for an engine that is away, each for minutes."""
    engine, admission, order = SlowEngine(), Admission(running=1, waiting=9), []
    first_may_leave = asyncio.Event()
    engine.ready = True

    async def ask(number: int) -> None:
        async with sampler(engine, admission)._turn():
            order.append(number)
            if number == 0:
                await first_may_leave.wait()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(ask(number))
        while not order:
            await asyncio.sleep(0)
        engine.ready = False
        first_may_leave.set()
        for _ in range(20):
            await asyncio.sleep(0)
        async with admission.turn():
            assert order == [0]
        engine.ready = True
        engine.up.set()
    assert order == [0, 1, 2]


def test_long_first_prompts_have_a_key_that_depends_on_all_that_a_prefix_cache_depends_on() -> None:
    def key(text: str, system: str = "", version: int = 1, prompt: str | None = None, **body: Any) -> str | None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        chat: Any = SimpleNamespace(prompt=prompt, body={"messages": messages, **body})
        return _prompt_key(chat, ("agent", version))

    long, tools = "a" * 4000, [{"type": "function", "function": {"name": "look"}}]
    assert key(long) == key(long)
    assert len({key(long), key(long + "b"), key(long, "c"), key(long, version=2), key(long, tools=tools)}) == 5
    assert key("short") is key("short", system=long) is key(long, prompt=long) is None
