"""Slots: who makes room for whom, and who waits, over a real engine that holds two adapters."""

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
from tests.support.patience import PATIENCE, until
from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.engines.base import Engine, EngineSettings
from trainer_server.engines.local_slots import LocalSlots
from trainer_server.engines.pool import Engines
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.slots import Key, NoFreeSlot
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.policies.leases import LocalLeases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import EngineError

pytestmark = pytest.mark.slow

A, B, C, D = ("a", 0), ("b", 0), ("c", 0), ("d", 0)


class Case(SlotRequests):
    """Slots over an engine, and adapters a, b, c, d on disk."""

    def __init__(self, root: Path, engine: Engine, state: dict[str, Any], wait: float) -> None:
        self.store, self.leases, self.state = AdapterStore(root), LocalLeases(900), state
        for policy, version in (A, B, C, D, ("a", 1)):
            directory = self.store.directory(policy, version)
            directory.mkdir(parents=True)
            (directory / "adapter_config.json").write_text("{}")
            save_file({}, directory / "adapter_model.safetensors")
        self.names = PolicyNames(self.store)
        self.slots = LocalSlots(
            engines=Engines([engine]),
            capacity=2,
            directory=self.store.directory,
            pinned_versions=self.leases.versions,
            is_named=self.names.is_named,
            wait=wait,
            patience=0.2,
        )

    @property
    def loaded(self) -> set[str]:
        return set(self.state["loaded"])

    async def serve(self, key: Key) -> None:
        """Loads a version and makes its policy's name mean it."""
        async with self.slots.use(key):
            self.names.serve(key)


@asynccontextmanager
async def case(root: Path, wait: float = 20.0) -> AsyncIterator[Case]:
    app = make_app()
    with serving(app) as url:
        settings = EngineSettings(base=ServedModel("base", str(root)), home=Home(root), cpu=True)
        engine = VLLMEngine.at(url, settings)
        await engine.start()
        try:
            yield Case(root, engine, app.state.engine, wait)
        finally:
            await engine.stop()


async def test_the_one_used_least_recently_makes_room(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        await it.touch(A, B, A, C)
        assert it.loaded == {"a@0", "c@0"}


async def test_an_old_version_goes_before_the_newest_of_an_idle_policy_which_can_go_too(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        for key in (A, B):
            await it.serve(key)
        await it.serve(("a", 1))
        assert it.loaded == {"b@0", "a@1"}
        await it.serve(C)
        await it.serve(D)
        assert it.loaded == {"c@0", "d@0"}
        await it.touch(("a", 1))
        assert "a@1" in it.loaded


async def test_a_pinned_version_goes_last_and_comes_back(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        await it.leases.pin("r", "a", 0)
        await it.touch(A, B, C)
        assert it.loaded == {"a@0", "c@0"}
        await it.leases.pin("s", "c", 0)
        await it.touch(D)
        assert it.loaded == {"c@0", "d@0"}
        await it.touch(A)
        assert "a@0" in it.loaded


async def test_a_request_waits_in_line_while_every_slot_answers(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        first, one = it.hold(A)
        await it.touch(B)
        second, two = it.hold(B)
        await until(lambda: it.loaded == {"a@0", "b@0"})
        waiting = asyncio.create_task(it.touch(C))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        second.set()
        await asyncio.wait_for(waiting, PATIENCE)
        assert it.loaded == {"a@0", "c@0"}
        first.set()
        await asyncio.gather(one, two)


async def test_requests_for_one_adapter_stand_in_line_once(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        ends, tasks = zip(*(it.hold(key) for key in (A, B)), strict=True)
        await until(lambda: it.loaded == {"a@0", "b@0"})
        waiting = [it.hold(key) for key in (C, D) for _ in range(5)]
        await asyncio.sleep(0.05)
        for end in ends:
            end.set()
        await until(lambda: it.loaded == {"c@0", "d@0"})
        assert it.state["loads"] == 4
        for end, _ in waiting:
            end.set()
        await asyncio.wait_for(asyncio.gather(*tasks, *(task for _, task in waiting)), PATIENCE)
        await it.touch(A, B)
        assert it.state["loads"] == 6


async def test_policies_that_never_rest_do_not_keep_others_out(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        stop = asyncio.Event()
        done = dict.fromkeys((A, B, C, D), 0)

        async def ask(key: Key) -> None:
            while not stop.is_set():
                async with it.slots.use(key) as name:
                    assert name in it.loaded
                    await asyncio.sleep(0.01)
                done[key] += 1

        busy = [asyncio.create_task(ask(key)) for key in (A, A, A, B, B, B)]
        await until(lambda: it.loaded == {"a@0", "b@0"})
        busy += [asyncio.create_task(ask(key)) for key in (C, D)]
        await until(lambda: min(done.values()) >= 5)
        stop.set()
        await asyncio.gather(*busy)
        assert it.state["most_loaded"] == 2


async def test_a_long_answer_of_one_policy_does_not_keep_others_out(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        end, long = it.hold(A)
        await until(lambda: it.loaded == {"a@0"})
        stop = asyncio.Event()

        async def ask() -> None:
            while not stop.is_set():
                async with it.slots.use(B):
                    await asyncio.sleep(0.05)

        busy = [asyncio.create_task(ask()) for _ in range(5)]
        await until(lambda: it.loaded == {"a@0", "b@0"})
        await asyncio.wait_for(it.touch(C), PATIENCE)
        assert "a@0" in it.loaded
        stop.set()
        end.set()
        await asyncio.gather(long, *busy)


async def test_after_its_time_in_line_a_request_is_told_what_helps(tmp_path: Path) -> None:
    async with case(tmp_path, wait=0.2) as it:
        ends, tasks = zip(*(it.hold(key) for key in (A, B)), strict=True)
        await until(lambda: it.loaded == {"a@0", "b@0"})
        with pytest.raises(NoFreeSlot, match="--adapter-slots"):
            await it.touch(C)
        await it.touch(A, B)  # who drained takes requests again
        for end in ends:
            end.set()
        await asyncio.gather(*tasks)
        await it.touch(C)


async def test_loading_takes_the_time_that_it_takes(tmp_path: Path) -> None:
    async with case(tmp_path, wait=0.2) as it:
        it.state["load_seconds"] = 1.0
        await it.touch(A)
        assert it.loaded == {"a@0"}


async def test_a_client_that_leaves_the_line_blocks_nobody(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        ends, tasks = zip(*(it.hold(key) for key in (A, B)), strict=True)
        await until(lambda: it.loaded == {"a@0", "b@0"})
        gone, next_one = asyncio.create_task(it.touch(C)), asyncio.create_task(it.touch(D))
        await asyncio.sleep(0.05)
        gone.cancel()
        for end in ends:
            end.set()
        await asyncio.wait_for(next_one, PATIENCE)
        assert "c@0" not in it.loaded
        await asyncio.gather(*tasks)


async def test_a_version_in_use_is_not_forgotten(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        end, task = it.hold(A)
        await until(lambda: it.loaded == {"a@0"})
        with pytest.raises(NoFreeSlot, match="a@0"):
            await it.slots.forget(A)
        end.set()
        await task
        await it.slots.forget(A)
        assert it.loaded == set()


async def test_a_refused_adapter_takes_no_slot(tmp_path: Path) -> None:
    async with case(tmp_path) as it:
        it.state["blind"] = True
        with pytest.raises(EngineError, match="a@0"):
            await it.touch(A)
        assert not it.slots.holds(A)
        it.state["blind"] = False
        await it.touch(A, B)
        assert it.loaded == {"a@0", "b@0"}
