"""Two vLLM servers run by hand: trained over both, one killed and brought back; more policies than slots.

One has two ranks of data parallelism. The other one fetches its adapters over HTTP, as on a machine of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from art_examples.quickstart.server_process import trainer_server

from art_langgraph import TrainerClient
from tests.support.patience import PATIENCE
from tests.support.servers.real_server import Real, gap
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.package_models import EMBEDDED
from trainer_server.engines.served_model import resolve
from trainer_server.engines.vllm.command import command, environment, fetching, free_port
from trainer_server.wire import Completion

pytestmark = pytest.mark.vllm

KEY = "engines-key"
SLOTS = 4
SMALL = ("--max-model-len", "1024", "--max-num-seqs", "16")
POLICIES = [f"p{number}" for number in range(8)]


@dataclass(slots=True)
class Vllm:
    """vLLM as a user starts it by hand.

    Args:
        log: Gets its output.
        model: That it serves.
        port: That it listens on.
        ranks: Of data parallelism.
        adapters_from: The trainer server from which it fetches adapters, and the folder for what it keeps. None: it
            reads them from the server's directory.
    """

    log: Path
    model: Path
    port: int
    ranks: int = 1
    adapters_from: tuple[str, Path] | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        home = Home.find()
        base = resolve(str(self.model), home.cache)
        ranks = ("--data-parallel-size", str(self.ranks)) if self.ranks > 1 else ()
        extra, fetches = (*SMALL, *ranks), self.adapters_from is not None
        settings = EngineSettings(
            base=base, home=home, cpu=True, adapter_slots=SLOTS, max_rank=8, args=extra, kv_cache_gib=1
        )
        line = command(settings, self.port, fetches=fetches)
        env = {**os.environ, **environment(settings, KEY)}
        if self.adapters_from is not None:
            env |= fetching(*self.adapters_from)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(line, stdout=out, stderr=out, env=env, start_new_session=True)

    def wait(self) -> None:
        """Until it answers."""
        assert self.process is not None
        deadline = time.monotonic() + 900
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.5)

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
            self.process = None

    def says(self, model: str, rank: int = 0) -> tuple[str, list[float]]:
        """What this engine itself answers, with the log-probabilities. rank: the rank that answers."""
        body = {
            "model": model, "max_tokens": 8, "temperature": 0, "logprobs": True,
            "messages": [{"role": "user", "content": "Name a sea."}],
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {KEY}"} | ({"X-data-parallel-rank": str(rank)} if self.ranks > 1 else {})
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=600)
        (choice,) = answer.raise_for_status().json()["choices"]
        return choice["message"]["content"], [one["logprob"] for one in choice["logprobs"]["content"]]


@dataclass(frozen=True, slots=True)
class Two:
    real: Real
    left: Vllm
    right: Vllm

    async def engines(self) -> list[dict[str, Any]]:
        async with self.real.http() as http:
            return list((await http.get("/api/engines")).json()["engines"])

    async def both_ready(self) -> None:
        """The server is ready with the first engine."""
        deadline = time.monotonic() + PATIENCE
        while not all(engine["ready"] for engine in await self.engines()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)

    async def ask(self, model: str, number: int, rollout: str) -> Completion:
        body = {
            "model": model, "max_tokens": 12, "temperature": 1.0,
            "messages": [{"role": "user", "content": f"Write a line about the year {1900 + number}."}],
        }  # fmt: skip
        async with self.real.http() as http:
            answer = await http.post("/v1/chat/completions", json=body, headers={"X-ART-Rollout": rollout})
            assert answer.status_code == 200, answer.text
            found = await http.get(f"/api/completions/{answer.json()['id']}")
            await http.delete(f"/api/rollouts/{rollout}")
        return Completion.model_validate(found.json())

    async def step(self, policy: str, seed: int) -> int:
        """One step on random rewards; the version that it made."""
        rng = random.Random(seed)
        asked = [self.ask(policy, number, f"step-{policy}-{seed}-{number}") for number in range(3)]
        refs = [
            {"id": str(at), "reward": rng.random(), "completions": [one.id]}
            for at, one in enumerate(await asyncio.gather(*asked))
        ]
        body = {"groups": [{"scenario_id": "s", "trajectories": refs}], "config": {"lr": 1e-2}}
        async with self.real.http() as http:
            job = (await http.post(f"/api/policies/{policy}/steps", json=body)).raise_for_status().json()
            while job["status"] in ("queued", "running"):
                job = (await http.get(f"/api/jobs/{job['id']}", params={"wait": 50})).json()
        assert job["status"] == "succeeded", job
        return int(job["result"]["version"])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Two]:
    home = tmp_path_factory.mktemp("two")
    port = free_port()
    left = Vllm(home / "left.log", short, free_port(), ranks=2)
    right = Vllm(home / "right.log", short, free_port(), adapters_from=(f"http://127.0.0.1:{port}", home / "right"))
    arguments = (
        *("--port", str(port), "--engine-url", left.url, "--engine-url", right.url),
        *("--model", str(short), "--adapter-slots", str(SLOTS), "--max-rank", "8"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ART_ENGINE_API_KEY", KEY)
        try:
            left.start()
            right.start()
            left.wait()
            right.wait()
            with trainer_server(home, home / "server.log", print, *arguments) as connection:
                two = Two(Real(connection, Home(home), Home.find().cache, [], short), left, right)
                asyncio.run(two.both_ready())
                yield two
        finally:
            left.kill()
            right.kill()


async def test_engines_that_were_started_without_a_parser_are_told_what_they_lack(two: Two) -> None:
    """By the real vLLM's refusal of a request with tools."""
    assert [one["tool_parser"] for one in await two.engines()] == [None, None]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": EMBEDDED, "messages": [{"role": "user", "content": "Look."}], "tools": [tool], "max_tokens": 4}
    async with two.real.http() as http:
        refused = await http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "tools_not_parsed")
        assert "start it with --enable-auto-tool-choice --tool-call-parser NAME" in refused.json()["error"]["message"]
        answered = await http.post("/v1/chat/completions", json={**body, "tool_choice": "none"})
        assert answered.status_code == 200, answered.text


async def test_one_of_two_engines_is_killed_and_comes_back(two: Two) -> None:
    async with TrainerClient(two.real.connection.url, two.real.connection.api_key) as trainer:
        await trainer.create_policy("agent")
    assert await two.step("agent", 1) == 1
    assert [set(one["adapters"]) >= {"agent@1"} for one in await two.engines()] == [True, True]
    assert two.right.adapters_from is not None
    fetched = list((two.right.adapters_from[1] / "adapters").glob("*/adapter_model.safetensors"))
    assert fetched, "the right engine has adapters in a folder of its own"
    said = [two.left.says("agent@1", rank=0), two.left.says("agent@1", rank=1), two.right.says("agent@1")]
    for other in said[1:]:
        assert other[0] == said[0][0]
        assert other[1] == pytest.approx(said[0][1], abs=0.05)
    assert [two.left.says("agent@0", rank=rank) != said[0] for rank in (0, 1)] == [True, True]

    two.left.kill()
    found = await asyncio.gather(*(two.ask("agent", number, f"orphan-{number}") for number in range(8)))
    assert {one.version for one in found} == {1}
    assert await two.step("agent", 2) == 2
    assert [one["ready"] for one in await two.engines()] == [False, True]

    two.left.start()
    two.left.wait()
    deadline = time.monotonic() + PATIENCE
    while not (state := (await two.engines())[0])["ready"]:
        assert time.monotonic() < deadline, state
        await asyncio.sleep(0.2)
    assert "agent@2" in state["adapters"]
    for rank in (0, 1):
        again = two.left.says("agent@2", rank=rank)
        assert again[1] == pytest.approx(two.right.says("agent@2")[1], abs=0.05)


async def test_eight_policies_on_four_slots_answer_with_their_own_weights(two: Two) -> None:
    async with TrainerClient(two.real.connection.url, two.real.connection.api_key) as trainer:
        for seed, policy in enumerate(POLICIES):
            await trainer.create_policy(policy, seed=seed)
    asking = [
        asyncio.create_task(two.ask(policy, number, f"{policy}-{number}")) for number in range(2) for policy in POLICIES
    ]
    assert await asyncio.gather(*(two.step(policy, seed) for seed, policy in enumerate(POLICIES))) == [1] * 8
    await asyncio.gather(*asking)
    found = await asyncio.gather(
        *(two.ask(policy, number, f"after-{policy}-{number}") for number in range(3) for policy in POLICIES)
    )
    assert {one.version for one in found} == {1}
    assert all(len(one["adapters"]) <= SLOTS for one in await two.engines())
    for own in POLICIES[:3]:
        asked = [one for one in found if one.policy == own]
        models = (own, *(policy for policy in POLICIES[:3] if policy != own))
        near, *far = (statistics.fmean(gap(two.real, f"{model}@1", one) for one in asked) for model in models)
        print(f"{own}: {near:.4f} nats from its own weights, {min(far):.3f} from others'")
        # A ratio: after one step at this learning rate a sampled token can be so unlikely that bf16 alone moves its
        # log-probability by 0.1 nats, and other weights move it by 5.
        assert 10 * near < min(far), (own, near, far)
