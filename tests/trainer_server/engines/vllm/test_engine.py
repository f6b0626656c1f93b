"""The supervisor: what ends an engine, and what does not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.engine_app import make_app
from tests.support.serving import serving
from trainer_server.engines.vllm import engine as module
from trainer_server.engines.vllm.dialect import VLLMClient
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.process.child import Child

PROCESS = [sys.executable, "-c", "import time; time.sleep(600)"]
"""Stands for vLLM's process. What it would answer comes from the small engine."""


@pytest.fixture
async def engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[VLLMEngine, dict[str, Any], Child]]:
    monkeypatch.setattr("trainer_server.engines.vllm.dialect._HEALTH_TIMEOUT", 0.02)
    monkeypatch.setattr(module, "_HEALTH_INTERVAL", 0.01)
    app = make_app()
    with serving(app) as url:
        child = Child("engine", PROCESS, tmp_path)
        engine = VLLMEngine(VLLMClient(url, None, base="base", cpu=True), child=child)
        monkeypatch.setattr("trainer_server.engines.vllm.dialect._HEALTH_TIMEOUT", 5.0)
        await engine.start()
        monkeypatch.setattr("trainer_server.engines.vllm.dialect._HEALTH_TIMEOUT", 0.02)
        assert engine.ready
        yield engine, app.state.engine, child
        await engine.stop()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


async def test_an_engine_that_is_slow_to_answer_checks_is_left_alone(
    engine: tuple[VLLMEngine, dict[str, Any], Child],
) -> None:
    """A front end that streams hundreds of answers is. They would all be broken off."""
    vllm, state, child = engine
    pid, before = child.pid, state["looks"]
    state["deaf"] = True
    await until(lambda: state["looks"] > before + 2 * module._PATIENT_CHECKS)
    assert vllm.ready
    vllm.suspect()  # as after a request that failed
    await until(lambda: not vllm.ready)
    before = state["looks"]
    await until(lambda: state["looks"] > before + 2 * module._PATIENT_CHECKS)
    assert (vllm.restarts, child.pid) == (0, pid)
    state["deaf"] = False
    await until(lambda: vllm.ready)
    assert (vllm.restarts, child.pid) == (0, pid)


async def test_an_engine_that_answers_no_check_for_long_is_started_again(
    engine: tuple[VLLMEngine, dict[str, Any], Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm, state, child = engine
    pid = child.pid
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    state["deaf"] = True
    await until(lambda: vllm.restarts == 1)
    state["deaf"] = False
    await until(lambda: vllm.ready)
    assert child.pid != pid


async def test_an_engine_whose_process_ended_is_started_again_at_once(
    engine: tuple[VLLMEngine, dict[str, Any], Child],
) -> None:
    vllm, _, child = engine
    pid = child.pid
    await child.stop()
    await until(lambda: vllm.restarts == 1 and vllm.ready)
    assert child.pid != pid
