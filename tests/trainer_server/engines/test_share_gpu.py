"""`--share-gpu`: engine and trainer by turns. Here with a small engine that must not be asked while it sleeps; the real
one needs a GPU, see tests/full/engines/test_share_gpu.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.engine_app import make_app
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on, trainer_server_over
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.command import command, environment
from trainer_server.jobs.trainer_process import TrainerSettings
from trainer_server.jobs.trainer_process import command as trainer_command
from trainer_server.server.app import check_engines, create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError, EngineError

pytestmark = pytest.mark.slow


@contextmanager
def sharing(
    home: Path, base: Path, *, engines: int = 1, policies: str = "p", **settings: Any
) -> Iterator[tuple[TrainerServer, httpx.Client]]:
    """server.engine: the state of the first one."""
    apps = [make_app(base=base.name, sleeps=True) for _ in range(engines)]
    with ExitStack() as stack:
        urls = tuple([stack.enter_context(serving(app)) for app in apps])
        server = stack.enter_context(trainer_server_over(urls, home, base, share_gpu=True, **settings))
        http = stack.enter_context(server.http())
        server.engine = apps[0].state.engine
        for name in policies:
            assert http.post("/api/policies", json={"name": name}).status_code == 201
        yield server, http


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def say(http: httpx.Client, content: str, model: str = "p") -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def batch(http: httpx.Client, **config: Any) -> dict[str, Any]:
    refs = [
        {"id": f"t{reward}", "reward": reward, "completions": [say(http, "say abc")["id"]]} for reward in (0.0, 1.0)
    ]
    return {"groups": [{"scenario_id": "s", "trajectories": refs}], "config": {"lr": 1e-3, **config}}


def send_step(http: httpx.Client, **config: Any) -> str:
    return send(http, batch(http, **config))


def send(http: httpx.Client, body: dict[str, Any]) -> str:
    answer = http.post("/api/policies/p/steps", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def final(http: httpx.Client, job: str) -> dict[str, Any]:
    return dict(until(lambda: (one := http.get(f"/api/jobs/{job}?wait=30").json())["status"][0] in "sf" and one))


def hold_trainer(server: TrainerServer) -> int:
    """Stops the trainer's processes where they are; returns the pid to continue."""
    pid = int(json.loads((server.home.root / "trainer.json").read_text())["pid"])
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_the_engine_sleeps_for_the_length_of_a_step_and_answers_wait(tmp_path: Path, base_model: Path) -> None:
    with sharing(tmp_path / "home", base_model) as (server, http):
        engine = server.engine
        assert engine["naps"] == 0, "an untrained policy needs no turn"
        under_way = threading.Thread(target=say, args=(http, "when released say done"))
        pid = hold_trainer(server)
        try:
            under_way.start()
            until(lambda: engine["under_way"])
            job = send_step(http)
            told = until(lambda: (one := http.get("/api/engines").json()["engines"][0])["resting"] and one)
            assert under_way.is_alive()
            assert not engine["asleep"], "what is under way is finished first"
            engine["released"] = True
            until(lambda: engine["asleep"])
            under_way.join(PATIENCE)
            assert not under_way.is_alive()
            assert (told["ready"], told["resting"], told["error"]) == (False, True, None)
            late: list[dict[str, Any]] = []
            waiting = threading.Thread(target=lambda: late.append(say(http, "say late")))
            waiting.start()
            waiting.join(1.0)
            assert waiting.is_alive(), "a request waits for the step"
        finally:
            os.kill(pid, signal.SIGCONT)
        found = final(http, job)
        assert (found["status"], found["result"]["version"]) == ("succeeded", 1), found
        waiting.join(PATIENCE)
        assert late[0]["choices"][0]["message"]["content"] == "late"
        assert say(http, "say x")["model"] == "p@1"
        assert not (server.home.jobs / "turn.json").exists()
        assert (engine["asleep"], engine["naps"], engine["disturbed"]) == (False, 1, 0)


def asking(said: list[str], http: httpx.Client, content: str, model: str = "p") -> threading.Thread:
    """A request under way, which adds what it is answered."""

    def ask() -> None:
        said.append(say(http, content, model)["choices"][0]["message"]["content"])

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_an_adapter_that_is_asked_for_while_engines_go_to_sleep_one_after_another_is_loaded_afterwards(
    tmp_path: Path, base_model: Path
) -> None:
    with sharing(tmp_path / "home", base_model, engines=2, policies="pqr", adapter_slots=2) as (server, http):
        said: list[str] = []
        body = batch(http)
        say(http, "say x", "q")
        say(http, "say x", "r")
        threads = [asking(said, http, "when released say slow", model) for model in "qr"]  # one on each engine
        until(lambda: [one["requests"] for one in http.get("/api/engines").json()["engines"]] == [1, 1])
        job = send(http, body)
        until(lambda: [one["resting"] for one in http.get("/api/engines").json()["engines"]] == [True, False])
        assert "p@0" not in server.engine["loaded"]
        threads.append(asking(said, http, "say late"))
        for _ in range(20):
            assert http.get("/health").status_code == 200, "the server answers meanwhile"
            time.sleep(0.05)
        for one in http.get("/api/engines").json()["engines"]:
            httpx.post(f"{one['url']}/state", json={"released": True})
        assert final(http, job)["status"] == "succeeded"
        for thread in threads:
            thread.join(PATIENCE)
        assert said == ["slow", "slow", "late"]
        assert server.engine["disturbed"] == 0


def test_a_request_that_stands_in_line_when_a_step_begins_waits_for_its_end(tmp_path: Path, base_model: Path) -> None:
    with sharing(tmp_path / "home", base_model, policies="pqr", adapter_slots=2, slot_wait=5.0) as (server, http):
        said: list[str] = []
        body = batch(http)
        say(http, "say x", "q")
        say(http, "say x", "r")
        threads = [asking(said, http, "when released say slow", model) for model in "qr"]
        until(lambda: server.engine["under_way"] == 2)
        threads.append(asking(said, http, "say late"))
        until(lambda: server.app.state.server.slots.in_use(("p", 0)))  # both slots answer: it stands in line
        pid = hold_trainer(server)
        try:
            job = send(http, body)
            server.engine["released"] = True
            until(lambda: server.engine["asleep"])
            threads[-1].join(5.5)
            assert threads[-1].is_alive()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert final(http, job)["status"] == "succeeded"
        for thread in threads:
            thread.join(PATIENCE)
        assert said == ["slow", "slow", "late"]
        assert server.engine["disturbed"] == 0


def test_a_trainer_that_dies_in_its_turn_keeps_it(tmp_path: Path, base_model: Path) -> None:
    with sharing(tmp_path / "home", base_model) as (server, http):
        pid = hold_trainer(server)
        job = send_step(http)
        until(lambda: server.engine["asleep"])
        os.kill(pid, signal.SIGKILL)
        found = final(http, job)
        assert (found["status"], found["result"]["version"]) == ("succeeded", 1), found
        assert server.app.state.server.jobs.process.restarts == 1
        assert (server.engine["naps"], server.engine["disturbed"]) == (1, 0)


def test_a_failed_step_wakes_the_engine_too(tmp_path: Path, base_model: Path) -> None:
    with sharing(tmp_path / "home", base_model) as (server, http):
        found = final(http, send_step(http, max_logp_gap=1e-9))
        assert found["status"] == "failed", found
        assert say(http, "say x")["model"] == "p@0"
        assert (server.engine["asleep"], server.engine["naps"]) == (False, 1)


def test_a_server_that_starts_wakes_what_it_finds_asleep(tmp_path: Path, base_model: Path) -> None:
    engine = make_app(base=base_model.name, sleeps=True)
    engine.state.engine["asleep"] = True
    (tmp_path / "home" / "jobs").mkdir(parents=True)
    stale = tmp_path / "home" / "jobs" / "turn.json"
    stale.write_text('{"job": "job-of-an-earlier-server"}')
    with serving(engine) as url, trainer_server_over((url,), tmp_path / "home", base_model, share_gpu=True):
        assert not engine.state.engine["asleep"]
        assert not stale.exists()


def test_an_engine_that_does_not_sleep_does_not_keep_the_step_from_being_done(
    tmp_path: Path, base_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sharing(tmp_path / "home", base_model) as (server, http):
        server.engine["sleepless"] = 1
        assert final(http, send_step(http))["result"]["version"] == 1
        assert "does not sleep, and keeps its GPU memory" in caplog.text


def test_an_engine_that_cannot_sleep_is_refused_at_start(tmp_path: Path, base_model: Path) -> None:
    with serving(make_app(base=base_model.name)) as url:
        config = ServerConfig(Home(tmp_path), model=str(base_model), engine_urls=(url,), share_gpu=True)
        with pytest.raises(EngineError, match="--enable-sleep-mode"):
            asyncio.run(check_engines(config))


@pytest.mark.parametrize(
    ("settings", "words"),
    [({}, "needs an NVIDIA GPU"), ({"trainer_processes": 2}, "a trainer of one process")],
)
def test_where_there_is_nothing_to_share(
    tmp_path: Path, base_model: Path, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_server.server.server.flavour", lambda: "cpu")
    config = ServerConfig(Home(tmp_path), model=str(base_model), share_gpu=True, **settings)
    with pytest.raises(ConfigError, match=words):
        create_app(config, "token")


def test_without_it_engines_never_sleep(tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_server.engines.vllm.command.engine_python", lambda _: "python")
    with trainer_server_on(tmp_path / "home", base_model) as server, server.http() as http:
        assert http.post("/api/policies", json={"name": "p"}).status_code == 201
        assert final(http, send_step(http))["result"]["version"] == 1
        assert server.engine["naps"] == 0
    base = ServedModel("base", str(tmp_path))
    alone = EngineSettings(base=base, home=Home(tmp_path), cpu=False)
    shares = replace(alone, share_gpu=True)
    assert set(command(shares, 1)) - set(command(alone, 1)) == {"--enable-sleep-mode"}
    assert "VLLM_SERVER_DEV_MODE" not in environment(alone, "key")
    assert environment(shares, "key")["VLLM_SERVER_DEV_MODE"] == "1"
    settings = TrainerSettings(home=Home(tmp_path), base=base, tokenizer="tok", share_gpu=True)
    assert "--take-turns" in trainer_command(settings)
