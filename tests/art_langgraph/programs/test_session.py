"""`session`: code in a `with` block as a rollout, its reward at the server, and a step from rewarded rollouts."""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from art_langgraph import Scenario, TrainerClient, TrajectoryStore, current_run, session
from tests.support.cli import art
from tests.support.proxies.refusing_proxy import without_proxies
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.usefixtures("connected")


async def ask(text: str, model: str = "agent", **options: Any) -> str:
    async with openai.AsyncOpenAI() as client:
        messages: Any = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=50, **options)
        return str(answer.choices[0].message.content)


async def test_what_a_block_does_is_a_trajectory(tmp_path: Path, connected: TrainerServer) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    async with session("2 + 2?", store=store, temperature=0.5, metadata={"k": 1}) as run:
        assert current_run() is run
        assert run.base_url == f"{connected.url}/rollouts/{run.rollout_id}/v1"
        assert await ask("say four") == "four"
        run.reward = {"right": 1.0, "brief": 0.5}
    found = run.trajectory
    assert found is not None
    assert (found.final_text, found.reward, found.metrics) == ("four", 1.5, {"right": 1.0, "brief": 0.5})
    assert (found.scenario.input, found.temperature, found.metadata, found.error) == ("2 + 2?", 0.5, {"k": 1}, None)
    (stored,) = store.list()
    assert (stored.id, stored.rollout_id, stored.completion_ids) == (found.id, run.rollout_id, found.completion_ids)
    async with TrainerClient() as client:
        kept = await client.rollout(run.rollout_id)
        assert (kept.reward, kept.reward_source, kept.scenario.id) == (1.5, "session", found.scenario.id)
        assert (await client.completion(found.completion_ids[0])).sampling.temperature == 0.5


def test_child_processes_ask_loopback_without_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proxies(monkeypatch)
    monkeypatch.setenv("http_proxy", "http://proxy.corp:3128")
    monkeypatch.setenv("NO_PROXY", "corp")
    with session(Scenario(id="env", input="x")) as run:
        assert run.environment.keys() & {"NO_PROXY", "no_proxy"} == set(), "the process has them meanwhile"
        assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "corp,localhost,127.0.0.1,::1,127.0.0.0/8"
    assert (os.environ["NO_PROXY"], os.environ.get("no_proxy")) == ("corp", None)
    assert run.environment["no_proxy"] == run.environment["NO_PROXY"] == "corp,localhost,127.0.0.1,::1,127.0.0.0/8"


def test_without_an_event_loop(connected: TrainerServer) -> None:
    with session(Scenario(id="sync", input="x")) as run:
        with openai.OpenAI() as client:
            client.chat.completions.create(
                model="agent", messages=[{"role": "user", "content": "say sync"}], max_tokens=9
            )
        run.reward = -1
    assert run.trajectory is not None
    assert (run.trajectory.final_text, run.trajectory.reward) == ("sync", -1.0)
    with connected.http() as http:
        assert http.get(f"/api/rollouts/{run.rollout_id}").json()["reward"] == -1.0


async def test_what_a_block_raises_is_recorded_and_raised(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")

    async def broken() -> None:
        async with session("x", store=store):
            await ask("say before")
            print(1 / 0)

    with pytest.raises(ZeroDivisionError):
        await broken()
    (stored,) = store.list()
    assert (stored.error, len(stored.completions)) == ("ZeroDivisionError: division by zero", 1)
    with pytest.raises(ZeroDivisionError), session("x", store=store):
        print(1 / 0)
    assert len(store.list()) == 2


async def test_sessions_at_once_keep_their_own_completions() -> None:
    async def one(number: int) -> Any:
        async with session("x") as run:
            await ask(f"say {number}")
        return run.trajectory

    for number, found in enumerate(await asyncio.gather(*map(one, range(8)))):
        assert [(call.message or {})["content"] for call in found.completions] == [str(number)]


@pytest.mark.parametrize("reward", [math.nan, "good", {"a": math.inf}])
async def test_a_reward_that_is_no_number_is_refused(reward: Any) -> None:
    async with session("x") as run:
        with pytest.raises(ConfigError, match="is no finite number"):
            run.reward = reward
        with pytest.raises(ConfigError, match=r"b: the reward is 1e\+30, beyond ±1e\+06"):
            run.reward = {"a": 1.0, "b": 1e30}
    with pytest.raises(ConfigError, match=r"has ended, .* TrainerClient\.reward_rollout"):
        run.reward = 1.0


async def test_variables_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch, connected: TrainerServer) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-user")
    async with session("x") as outer:
        async with session("y"):
            assert os.environ["ANTHROPIC_BASE_URL"] == connected.url
        assert os.environ["ANTHROPIC_BASE_URL"] == connected.url
        assert "OPENAI_BASE_URL" not in os.environ
        assert os.environ["OPENAI_API_KEY"] == "of-the-user"
        assert outer.environment["OPENAI_BASE_URL"] == outer.base_url
    assert "ANTHROPIC_BASE_URL" not in os.environ


async def test_a_step_from_rewarded_rollouts(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two by `session`, two by HTTP alone: trained once."""
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    async with TrainerClient() as client:
        await client.create_policy("ledger")
    began = time.time()
    assert "no rollout in which 'ledger' answered has a reward" in _train().output
    for reward in (1.0, 0.0):
        async with session(Scenario(id="same", input="x")) as run:
            await ask(f"say {reward}", "ledger", temperature=1.0)
            run.reward = reward
    async with session(Scenario(id="same", input="x"), evaluation=True) as run:
        await ask("say held out", "ledger", temperature=1.0)
        run.reward = 1.0
    body = {"model": "ledger", "messages": [{"role": "user", "content": "say x"}], "max_tokens": 9}
    with connected.http() as http:
        for number in (1, 2):
            assert http.post(f"/rollouts/curled-{number}/v1/chat/completions", json=body).status_code == 200
            given = http.post(f"/api/rollouts/curled-{number}/reward", json={"reward": number, "scenario": "other"})
            assert given.status_code == 200
    done = _train("--lr", "1e-3", "--since", time.strftime("%Y-%m-%d", time.gmtime(began - 86400)))
    assert "1 of 5 runs are left out: they evaluate a version" in done.output
    assert "4 runs are compared with others of their scenario" in done.output
    assert "ledger@1 is served: 4 completions" in done.output
    again = _train()
    assert "4 of 4 runs are left out: ledger was trained on them" in again.output
    assert "nothing to train on" in again.output


def test_one_source_of_runs_is_named() -> None:
    for options in ((), ("--from-store", "--from-ledger")):
        assert "say where the runs come from" in str(art("train", "--policy", "agent", *options).exception)
    refused = art("train", "--policy", "agent", "--from-ledger", "--replay", "2", "--thread", "t").exception
    assert "--replay, --thread cannot be combined with --from-ledger" in str(refused)


def _train(*options: str) -> Any:
    return art("train", "--from-ledger", "--policy", "ledger", *options)
