"""The real server as a user starts it: vLLM on a model's first layers, its trainer, ChatART in a graph."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import stat
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph
from safetensors.torch import load_file, save_file

from art_langgraph import ChatART, GRPOConfig, TrainerClient, gather
from tests.support.engines import calls_in_vllm
from tests.support.patience import PATIENCE
from tests.support.servers.real_server import Real, gap
from trainer_server.engines.package_models import EMBEDDED
from trainer_server.engines.vllm.install import PLUGINS, engine_python
from trainer_server.engines.vllm.parser_table import FAMILIES, THOUGHTS
from trainer_server.engines.vllm.registry import registry
from trainer_server.process.child import inherited_environment
from trainer_server.wire import Completion

pytestmark = [pytest.mark.vllm, pytest.mark.short_model, pytest.mark.usefixtures("found_by_clients")]


def chat(policy: str) -> Runnable[Any, Any]:
    model = ChatART(policy=policy, max_tokens=16)

    async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def trained(trainer: TrainerClient, policy: str, seed: int, lr: float = 1e-2) -> dict[str, Any]:
    """One step on random rewards; returns its metrics."""
    await trainer.create_policy(policy, seed=seed)
    rng = random.Random(seed)
    prompts = [f"Tell me about the number {number}." for number in range(2)]
    groups = await gather(chat(policy), prompts, n=4, reward=lambda _: rng.random(), progress=False)
    assert [one.error for group in groups for one in group.trajectories] == [None] * 8
    return (await trainer.train_step(policy, groups, GRPOConfig(lr=lr))).metrics


def test_the_token_is_private(real: Real) -> None:
    assert stat.S_IMODE(real.home.token.stat().st_mode) == 0o600
    assert httpx.get(f"{real.connection.url}/v1/models").status_code == 401


def test_the_engine_is_forked_off_the_front_end(real: Real) -> None:
    commands = [" ".join(process.cmdline()) for process in real.engine().children(recursive=True)]
    assert any("EngineCore" in command for command in commands), commands
    assert not any("multiprocessing" in command for command in commands), commands


async def test_vllm_refuses_an_adapter_that_it_would_not_apply_whole(real: Real, tmp_path: Path) -> None:
    """Stock vLLM takes it, and answers from the base model, or with half of the adapter."""
    async with TrainerClient() as trainer:
        await trainer.create_policy("misnamed")
    adapter = tmp_path / "adapter"
    shutil.copytree(real.home.policies / "misnamed" / "versions" / "0", adapter)
    weights = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace("model.layers.", "language_model.layers."): value for name, value in weights.items()}
    save_file(renamed, adapter / "adapter_model.safetensors")
    async with real.http() as http:
        (engine,) = (await http.get("/api/engines")).json()["engines"]
    socket = engine["url"].removeprefix("unix:")
    processes = real.engine().children(recursive=True)
    key = next(filter(None, (process.environ().get("VLLM_API_KEY") for process in processes)))
    asked = {"lora_name": "misnamed", "lora_path": str(adapter)}
    with httpx.Client(base_url="http://vllm", transport=httpx.HTTPTransport(uds=socket), timeout=PATIENCE) as vllm:
        vllm.headers["Authorization"] = f"Bearer {key}"
        refused = vllm.post("/v1/load_lora_adapter", json=asked)
        assert refused.status_code >= 400
        assert "would apply no weight of this adapter" in refused.text
        assert "language_model.layers.0" in refused.text
        late = {name.replace("layers.3.", "layers.4."): value for name, value in weights.items()}  # one too far
        save_file(late, adapter / "adapter_model.safetensors")
        refused = vllm.post("/v1/load_lora_adapter", json=asked)
        assert refused.status_code >= 400
        assert "would apply this adapter in part: " in refused.text
        assert "model.layers.4." in refused.text
        save_file(weights, adapter / "adapter_model.safetensors")
        assert vllm.post("/v1/load_lora_adapter", json=asked).status_code == 200
        assert vllm.post("/v1/unload_lora_adapter", json={"lora_name": "misnamed"}).status_code == 200


async def test_vllm_answers_nobody_without_its_key(real: Real) -> None:
    async with real.http() as http:
        (engine,) = (await http.get("/api/engines")).json()["engines"]
    socket = Path(engine["url"].removeprefix("unix:"))
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    others = [path for path in socket.parent.iterdir() if path != socket]
    assert others, "vLLM's processes talk to one another in there too"
    assert all(path.is_socket() for path in others)
    vllm = httpx.Client(base_url="http://vllm", transport=httpx.HTTPTransport(uds=str(socket)))
    for method, route in [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/docs"), ("POST", "/tokenize"),
                          ("POST", "/invocations"), ("POST", "/sleep")]:  # fmt: skip
        assert vllm.request(method, route).status_code == 401, route
    assert vllm.get("/health").status_code == 200
    vllm.close()


async def test_every_request_of_a_mixed_batch_gets_its_own_adapter(real: Real) -> None:
    async with TrainerClient() as trainer:
        for seed, policy in enumerate(("left", "right")):
            metrics = await trained(trainer, policy, seed)
            assert metrics["logp_gap"] < 0.1
        models = [EMBEDDED, "left@0", "left@1", "right@1"]
        async with real.http() as http:

            async def ask(model: str, number: int) -> Completion:
                body = {
                    "model": model, "max_tokens": 24, "temperature": 1.0,
                    "messages": [{"role": "user", "content": f"Write a line about the year {1900 + number}."}],
                }  # fmt: skip
                answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
                return await trainer.completion(answer["id"])

            found = await asyncio.gather(*(ask(models[number % 4], number) for number in range(24)))
    own_gaps, other_gaps = [], []
    for completion in found:
        own = f"{completion.policy}@{completion.version}" if completion.policy else EMBEDDED
        others = {"left@1", "right@1"} - {own} if completion.version != 1 else {EMBEDDED, "left@1", "right@1"} - {own}
        gaps = {model: gap(real, model, completion) for model in (own, *others)}
        assert gaps[own] == min(gaps.values()), gaps
        own_gaps.append(gaps[own])
        other_gaps += [gaps[other] for other in others]
    assert statistics.fmean(own_gaps) < 0.06
    assert statistics.fmean(other_gaps) > 4 * statistics.fmean(own_gaps), (own_gaps, other_gaps)


async def test_a_client_that_goes_away_aborts_its_generation(real: Real) -> None:
    body = {"model": EMBEDDED, "max_tokens": 2000, "messages": [{"role": "user", "content": "Count."}], "stream": True}
    body["min_tokens"] = 2000
    async with real.http() as http:
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            line = await anext(answer.aiter_lines())
            one = json.loads(line.removeprefix("data: "))["id"]
        for _ in range(1000):
            found = await http.get(f"/api/completions/{one}")
            if found.status_code == 200:
                break
            await asyncio.sleep(0.1)
    assert found.json()["status"] == "aborted"
    assert len(found.json()["token_ids"]) < 1000


async def test_a_killed_vllm_comes_back_with_its_adapters(real: Real) -> None:
    async with TrainerClient() as trainer:
        await trained(trainer, "survivor", 5)
        before = await greedy(real, "survivor@1")
        engine = real.engine()
        for process in [engine, *engine.children(recursive=True)]:
            os.kill(process.pid, signal.SIGKILL)
        assert await greedy(real, "survivor@1") == before  # waits for vLLM, no error for the client
        assert next(one for one in await trainer.versions("survivor") if one.version == 1).loaded
        assert real.engine().pid != engine.pid
        real.processes.extend(real.engine().children(recursive=True))


async def greedy(real: Real, model: str) -> str:
    body = {"model": model, "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "Name a sea."}]}
    async with real.http() as http:
        answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"])


def test_the_installed_vllm_has_every_parser_of_the_table(real: Real) -> None:
    known = registry(real.cache)
    assert {name for family in FAMILIES for name in family.tools} <= set(known.tool_parsers)
    reasoning = {name for entry in (*FAMILIES, *THOUGHTS) for name in entry.reasoning or ()}
    assert reasoning <= set(known.reasoning_parsers)
    assert {"glm47"} <= set(known.constraining) < set(known.tool_parsers)
    assert known.tool_parsers["json_calls"] == ()


def test_vllm_takes_calls_that_are_json_in_the_text(real: Real) -> None:
    call = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    answers = [f"I look.\n```json\n{call}\n```", f"<tool_call>{call}</tool_call>\n{call}", f"{call[:-2]} `", "{"]
    line = [str(engine_python(real.cache)), calls_in_vllm.__file__, *answers]
    environment = {**inherited_environment(), "PYTHONPATH": str(PLUGINS), "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr
    taken = ["get_weather", '{"city": "Oslo"}']
    read = [["I look.", [taken]], ["", [taken, taken]], [answers[2], []], ["{", []]]
    assert [json.loads(one) for one in done.stdout.splitlines()[-4:]] == [[one, one] for one in read]


def test_serve_says_at_once_what_is_missing(real: Real, tmp_path: Path) -> None:
    def error(cache: Path) -> str:
        line = [
            sys.executable,
            "-m",
            "trainer_server",
            "--home",
            str(tmp_path),
            "--model",
            str(tmp_path),
            "--port",
            "0",
        ]
        environment = {**os.environ, "ART_CACHE": str(cache)}
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, env=environment)
        assert done.returncode != 0
        return done.stderr

    assert "Install it: art-langgraph engine install" in error(tmp_path / "nothing")
    assert "no config.json" in error(real.cache)
