"""A vLLM that is started and supervised here: a stand-in with vLLM's command line, in a real process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from testbed.engine_app import make_app
from testbed.engine_stand_in import install_stand_in
from tests.support.homes.model_directories import model_directory
from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.engines.base import EngineLost, EngineSettings
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm import engine as module
from trainer_server.engines.vllm import process
from trainer_server.engines.vllm.dialect import VLLMClient
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.engines.vllm.parsers import Choice, Parsers
from trainer_server.engines.vllm.process import prepare_socket
from trainer_server.engines.vllm.settings import vllm_engines
from trainer_server.process.child import Child
from trainer_server.wire import ConfigError, EngineError

pytestmark = pytest.mark.slow

WAIT = 30.0


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT):
        while not done():
            await asyncio.sleep(0.01)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineSettings:
    """Settings with which the stand-in is launched in vLLM's place."""
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    install_stand_in(tmp_path / "cache", name="one")
    return EngineSettings(base=ServedModel("base", str(tmp_path)), home=Home(tmp_path / "home"), cpu=True)


@asynccontextmanager
async def launched(settings: EngineSettings) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine.with_child(settings)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


def place(engine: VLLMEngine) -> Path:
    return Path(engine.url.removeprefix("unix:"))


async def test_it_listens_where_no_other_user_can_and_leaves_nothing(settings: EngineSettings) -> None:
    async with launched(settings) as engine:
        assert engine.ready, engine.failure
        assert stat.S_IMODE(place(engine).parent.stat().st_mode) == 0o700
    assert not place(engine).parent.exists()


async def test_an_engine_that_dies_again_and_again_waits_longer_each_time(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_BACKOFF", (0.0, 0.01, 0.02))
    monkeypatch.setattr(module, "_HEALTH_INTERVAL", 0.01)

    async def die(engine: VLLMEngine) -> None:
        restarts = engine.restarts
        os.kill(int((settings.home.logs / "engine.pid").read_text().split()[0]), signal.SIGKILL)
        await until(lambda: engine.restarts > restarts)
        await engine.wait_ready(WAIT)

    async with launched(settings) as engine:
        assert engine.ready, engine.failure
        for _ in range(4):
            await die(engine)
        monkeypatch.setattr(module, "_STEADY", 0.0)
        await until(lambda: engine._tries == 0)
        await die(engine)
    assert re.findall(r"died .* again in (\S+) s", caplog.text) == ["0", "0.01", "0.02", "0.02", "0"]


async def test_an_engine_that_dies_at_every_request_says_so_and_of_what(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client would wait for each start of it, and never hear why there is no answer."""
    monkeypatch.setattr(module, "_BACKOFF", (0.0,))
    monkeypatch.setattr(module, "_HEALTH_INTERVAL", 0.01)
    asked = {"model": "base", "messages": [{"role": "user", "content": "say hi"}], "max_tokens": 5}

    async def die(engine: VLLMEngine) -> asyncio.Task[None]:
        """The wait of the next request after one at which the engine died."""
        with pytest.raises(EngineLost):
            async with engine.chat(asked) as reply:
                await reply.whole()
        assert not engine.ready
        return asyncio.create_task(engine.wait_ready(WAIT))

    async with launched(replace(settings, args=("--middleware", "tests.support.engines.fatal.Fatal"))) as engine:
        for _ in range(2):
            await (await die(engine))
            assert engine.ready
        with pytest.raises(EngineError) as early:
            await (await die(engine))
        crash = "vLLM died 3 times, and has answered no request in between: RuntimeError: Failed to find C compiler."
        assert str(early.value).startswith(crash)
        assert crash in str(engine.describe()["error"])
        assert f"not in use: {crash}" in caplog.text
        await until(lambda: engine.ready)
        async with engine.complete({"model": "base", "prompt": "say hi", "max_tokens": 5}) as reply:
            await reply.whole()
        await (await die(engine))
        assert engine.ready, "an answer came in between"
        os.kill(int((settings.home.logs / "engine.pid").read_text().split()[0]), signal.SIGKILL)
        await until(lambda: engine.restarts == 5)
        await until(lambda: engine.ready)
        assert engine._deaths == 1, "it was ended from outside, under no request"


async def test_an_engine_that_does_not_start_is_not_waited_for_for_ever(
    settings: EngineSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF", (0.0,))
    install_stand_in(tmp_path / "cache", before=["echo ValueError: no memory left", "exit 1"])
    async with launched(settings) as engine:
        with pytest.raises(EngineError, match="ValueError: no memory left"):
            await engine.wait_ready(WAIT)
        assert engine._deaths >= 3


def test_a_launched_engine_names_its_parsers(settings: EngineSettings, tmp_path: Path) -> None:
    template = "{{ tools }}<tool_call>"
    base = ServedModel("base", str(model_directory(tmp_path / "model", template, model_type="qwen3")))
    engine = VLLMEngine.with_child(replace(settings, base=base))
    assert {"tool_parser": "hermes", "reasoning_parser": None}.items() <= engine.describe().items()
    assert engine.no_tools is None
    engine = VLLMEngine.with_child(replace(settings, base=base, tool_call_parser="none"))
    assert engine.describe()["tool_parser"] is None
    assert "since --tool-call-parser none was given. Start `art-langgraph serve` with --tool-call-parser NAME" in str(
        engine.no_tools
    )


@pytest.mark.parametrize("tools", [True, False])
async def test_an_engine_elsewhere_is_asked_whether_it_reads_tool_calls(settings: EngineSettings, tools: bool) -> None:
    with serving(make_app(tools=tools)) as url:
        engine = VLLMEngine.at(url, settings)
        await engine.start()
        try:
            assert engine.ready, engine.failure
            assert engine.describe()["tool_parser"] == (module.UNKNOWN if tools else None)
            assert engine.describe()["reasoning_parser"] == module.UNKNOWN
            start = f"the vLLM at {url} reads no tool calls: start it with --enable-auto-tool-choice --tool-call-parser"
            assert engine.no_tools is None if tools else str(engine.no_tools).startswith(start)
        finally:
            await engine.stop()


async def test_a_socket_of_somebody_else_is_not_used(settings: EngineSettings) -> None:
    """Whoever can write into the socket's directory could take vLLM's place, and get its key."""
    engine = VLLMEngine.with_child(settings)
    place(engine).parent.mkdir()
    place(engine).parent.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place(engine)))
        listener.listen()
        listener.setblocking(False)
        await engine.start()
        try:
            assert not engine.ready
            assert "other users can write there" in str(engine.failure)
            with pytest.raises(BlockingIOError):
                listener.accept()
        finally:
            await engine.stop()


def test_sockets_have_paths_of_their_own_that_are_short_enough(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 200)
    engines = [VLLMEngine.with_child(settings) for _ in range(2)]
    assert len({engine.url for engine in engines}) == 2
    assert all(len(str(place(engine))) < 108 for engine in engines)


async def test_an_unexpected_error_is_logged_and_shown_and_the_engine_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here: a fault of the program that reads vLLM's answers."""
    monkeypatch.setattr(module, "_REMOTE_BACKOFF", 0.01)
    faulty, check = True, VLLMClient.check

    async def checked(self: VLLMClient, *, sleeps: bool) -> int | None:
        return {}["id"] if faulty else await check(self, sleeps=sleeps)

    monkeypatch.setattr(VLLMClient, "check", checked)

    async def ok(_request: Request) -> Response:
        return Response()

    async def listed(_request: Request) -> Response:
        return JSONResponse({"data": [{"id": "base", "max_model_len": 10}]})

    app = Starlette(
        routes=[Route("/health", ok), Route("/v1/models", listed), Route("/v1/load_lora_adapter", ok, methods=["POST"])]
    )
    with serving(app) as url:
        base = ServedModel("base", str(tmp_path))
        (engine,) = vllm_engines(EngineSettings(base=base, home=Home(tmp_path), cpu=True, urls=(url,)))
        await engine.start()
        try:
            assert engine.failure == "KeyError: 'id'"
            faulty = False
            await engine.wait_ready(WAIT)
            assert engine.failure is None
            faulty = True
            engine.suspect()
            await until(lambda: engine.failure == "KeyError: 'id'")
            assert not engine.ready
            faulty = False
            await engine.wait_ready(WAIT)
        finally:
            await engine.stop()
    assert [record.exc_info is not None for record in caplog.records if "KeyError" in record.message] == [True, True]


def test_an_engine_elsewhere_may_have_a_socket(tmp_path: Path) -> None:
    given = EngineSettings(base=ServedModel("base", str(tmp_path)), home=Home(tmp_path), cpu=True)
    (engine,) = vllm_engines(EngineSettings(base=given.base, home=given.home, cpu=True, urls=("unix:/run/vllm.sock",)))
    assert engine.url == "unix:/run/vllm.sock"
    with pytest.raises(ConfigError, match=r"--engine-url unix:here: .* unix:/path/of/socket"):
        vllm_engines(EngineSettings(base=given.base, home=given.home, cpu=True, urls=("unix:here",)))
    with pytest.raises(ConfigError, match=r"a name or a password for gpu: give its key in ART_ENGINE_API_KEY"):
        vllm_engines(EngineSettings(base=given.base, home=given.home, cpu=True, urls=("http://me:pw@gpu:8000",)))


def test_variables_for_an_engine_that_is_started_elsewhere_are_refused(tmp_path: Path) -> None:
    base = ServedModel("base", str(tmp_path))
    urls = ("http://127.0.0.1:1",)
    with pytest.raises(ConfigError, match="--engine-env is for engines that are started here"):
        vllm_engines(EngineSettings(base=base, home=Home(tmp_path), cpu=True, urls=urls, env=("RAY_ADDRESS",)))


@pytest.mark.parametrize("words", [("--port", "9000"), ("--api-key=mine",)])
def test_flags_that_would_make_it_unreachable_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    given = EngineSettings(base=ServedModel("base", str(tmp_path)), home=Home(tmp_path), cpu=True, args=words)
    with pytest.raises(ConfigError, match=f"--engine-args {words[0]}: the server chooses where"):
        vllm_engines(given)


def test_where_the_directory_is_private_old_sockets_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "art-engine" / "vllm.sock"
    prepare_socket(path)
    path.touch()
    (path.parent / "6bd6e4f5-3f4a-4f41-a5c1-7b0f0f3f8a10").touch()  # of vLLM's own processes
    prepare_socket(path)
    assert list(path.parent.iterdir()) == []
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(EngineError, match="cannot listen"):
        prepare_socket(link / "vllm.sock")


PROCESS = [sys.executable, "-c", "import time; time.sleep(600)"]
"""Stands for vLLM's process. What it would answer comes from the small engine."""


async def test_nobody_can_take_the_place_of_the_socket_before_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "command", lambda *_, **__: PROCESS)
    settings = EngineSettings(base=ServedModel("base", ""), home=Home(tmp_path), cpu=True)
    parsers = Parsers(Choice("none", ""), Choice("none", ""))
    vllm = process.VLLMProcess(settings, "key", parsers, name="engine", gpus=None)
    directory = vllm.socket.parent
    await vllm.close()
    assert not directory.exists()
    await vllm.start()
    await vllm.stop()
    assert directory.is_dir()
    await vllm.start()
    await vllm.close()
    assert not directory.exists()


@pytest.fixture
async def engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[VLLMEngine, dict[str, Any], Child]]:
    monkeypatch.setattr("trainer_server.engines.vllm.dialect._HEALTH_TIMEOUT", 0.02)
    monkeypatch.setattr(module, "_HEALTH_INTERVAL", 0.01)
    app = make_app()
    with serving(app) as url:
        child = Child("engine", PROCESS, tmp_path, dict(os.environ))
        engine = VLLMEngine(VLLMClient(url, None, base="base", cpu=True), ServedModel("base", ""), child=child)
        monkeypatch.setattr("trainer_server.engines.vllm.dialect._HEALTH_TIMEOUT", 5.0)
        await engine.start()
        monkeypatch.setattr("trainer_server.engines.vllm.dialect._HEALTH_TIMEOUT", 0.02)
        assert engine.ready
        yield engine, app.state.engine, child
        await engine.stop()


async def test_an_engine_that_is_slow_to_answer_checks_is_left_alone(
    engine: tuple[VLLMEngine, dict[str, Any], Child],
) -> None:
    """A front end that streams hundreds of answers is. They would all be broken off."""
    vllm, state, child = engine
    pid, before = child.pid, state["looks"]
    state["deaf"] = True
    await until(lambda: state["looks"] > before + 2 * process.PATIENT_CHECKS)
    assert vllm.ready
    vllm.suspect()  # as after a request that failed
    await until(lambda: not vllm.ready)
    before = state["looks"]
    await until(lambda: state["looks"] > before + 2 * process.PATIENT_CHECKS)
    assert (vllm.restarts, child.pid) == (0, pid)
    state["deaf"] = False
    await until(lambda: vllm.ready)
    assert (vllm.restarts, child.pid) == (0, pid)


async def test_an_engine_that_answers_no_check_for_long_is_started_again(
    engine: tuple[VLLMEngine, dict[str, Any], Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm, state, child = engine
    pid = child.pid
    monkeypatch.setattr(process, "PATIENCE", 0.2)
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
