"""Slots of two servers over one engine that holds two adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from testbed.engine_app import make_app
from tests.support.engines.slot_requests import SlotRequests
from tests.support.patience import until
from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.pool import Engines
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.shared_slots import SharedSlots
from trainer_server.engines.slots import NoFreeSlot
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.ledger.fleet import Fleet
from trainer_server.ledger.postgres import postgres_fleet
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import EngineError

pytestmark = pytest.mark.slow

A, B, C = ("a", 0), ("b", 0), ("c", 0)


class Server(SlotRequests):
    """What one server has: slots, and the engine as it sees it."""

    def __init__(self, slots: SharedSlots, engine: VLLMEngine, fleet: Fleet) -> None:
        self.slots, self.engine, self.fleet = slots, engine, fleet


@asynccontextmanager
async def two(root: Path, url: str, wait: float = 20.0) -> AsyncIterator[tuple[Server, Server, dict[str, Any]]]:
    """Two servers, and the state of their engine."""
    app, store = make_app(), AdapterStore(root)
    for key in (A, B, C):
        directory = store.directory(*key)
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").write_text("{}")
        save_file({}, directory / "adapter_model.safetensors")
    servers = []
    with serving(app) as engine_url:
        try:
            for _ in range(2):
                settings = EngineSettings(base=ServedModel("base", str(root)), home=Home(root), cpu=True)
                engine, fleet = VLLMEngine.at(engine_url, settings), postgres_fleet(url)
                slots = SharedSlots(
                    gateways=fleet.gateways,
                    engines=Engines([engine]),
                    capacity=2,
                    directory=store.directory,
                    wait=wait,
                    patience=2.0,  # a server gives back within half a second what another one wants
                )
                servers.append(Server(slots, engine, fleet))
                await engine.start()
                await slots.start()
            yield servers[0], servers[1], app.state.engine
        finally:
            for server in servers:
                await server.slots.stop()
                await server.engine.stop()
                await server.fleet.gateways.leave()


async def test_servers_make_room_for_one_another_and_engines_stay_ready(tmp_path: Path, postgres_url: str) -> None:
    async with two(tmp_path, postgres_url) as (one, other, state):
        await one.touch(A, B)
        await other.touch(B, C)
        assert set(state["loaded"]) == {"b@0", "c@0"}
        await asyncio.sleep(2.5)  # each looks at the engine every second: one that misses an adapter is not ready
        assert one.engine.ready
        assert other.engine.ready
        assert set(state["loaded"]) == {"b@0", "c@0"}
        await one.touch(A, C)
        assert one.slots.holds(A)
        assert len(state["loaded"]) == 2


async def test_what_a_request_of_the_other_server_uses_stays_loaded(tmp_path: Path, postgres_url: str) -> None:
    async with two(tmp_path, postgres_url, wait=3.0) as (one, other, state):
        end, request = other.hold(A)
        await until(lambda: "a@0" in state["loaded"])
        await one.touch(B, C, B, C)
        assert "a@0" in state["loaded"]
        with pytest.raises(NoFreeSlot):
            await one.slots.forget(A)
        end.set()
        await request
        await one.slots.forget(A)
        assert "a@0" not in state["loaded"]
        waiting = asyncio.create_task(other.touch(A))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await one.slots.reopen(A)
        await waiting


async def test_with_all_slots_in_use_the_others_wait_and_are_refused_in_the_end(
    tmp_path: Path, postgres_url: str
) -> None:
    async with two(tmp_path, postgres_url, wait=1.0) as (one, other, state):
        held = [one.hold(A), other.hold(B)]
        await until(lambda: set(state["loaded"]) == {"a@0", "b@0"})
        with pytest.raises(NoFreeSlot, match="all 2 adapter slots were in use"):
            await other.touch(C)
        await one.touch(B)  # is held again by whoever asks: nothing was taken away
        waiting = asyncio.create_task(other.touch(C))
        held[0][0].set()
        await waiting
        held[1][0].set()
        await asyncio.gather(*(request for _, request in held))


async def test_a_server_that_the_others_took_for_dead_claims_its_slots_again(tmp_path: Path, postgres_url: str) -> None:
    async with two(tmp_path, postgres_url) as (one, other, state):
        await one.touch(A)
        await one.fleet.gateways.clear()
        await other.touch(B)
        await until(lambda: not one.slots._holds)
        await one.touch(A)
        assert set(state["loaded"]) == {"a@0", "b@0"}


async def test_an_adapter_that_engines_refuse_is_held_by_nobody(tmp_path: Path, postgres_url: str) -> None:
    async with two(tmp_path, postgres_url) as (one, other, state):
        state["refused"] = ["a@0"]
        with pytest.raises(EngineError):
            await one.touch(A)
        assert await other.fleet.gateways.holders(A) == 0
        await other.touch(B, C)
        assert set(state["loaded"]) == {"b@0", "c@0"}
