"""Plain `openai` rollouts on the real engine: rewarded over HTTP, and trained by `train --from-ledger`."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from art_langgraph import TrainerClient, evaluate
from tests.support.cli import art
from tests.support.servers.real_server import Real, gap

pytestmark = [pytest.mark.vllm, pytest.mark.short_model, pytest.mark.usefixtures("found_by_clients")]


async def test_a_step_from_plain_openai_rollouts(real: Real) -> None:
    """No code of this project runs in the agent: each rollout is a base URL, and a reward that is posted."""
    url, key = real.connection.url, real.connection.api_key

    async def run(number: int) -> str:
        rollout = f"plain-{number}"
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/rollouts/{rollout}/v1", api_key=key) as client,
            real.http() as http,
        ):
            messages: list[Any] = [{"role": "user", "content": "Name an animal."}]
            for again in ("And another one.", None):
                answer = await client.chat.completions.create(model="anyone", messages=messages, max_tokens=12)
                message = answer.choices[0].message
                messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": again}]
            given = {"reward": float(len(str(message.content)) % 7), "scenario": "animals"}
            (await http.post(f"/api/rollouts/{rollout}/reward", json=given)).raise_for_status()
        return rollout

    async with TrainerClient() as trainer:
        await trainer.create_policy("anyone")
        rollouts = await asyncio.gather(*map(run, range(6)))
        found = [await trainer.rollout(rollout) for rollout in rollouts]
        assert [len(one.completion_ids) for one in found] == [2] * 6
        assert [len(one.messages) for one in found] == [4] * 6
        row = await trainer.completion(found[0].completion_ids[0])
        assert len(row.token_ids) == len(row.logprobs) > 0
        done = await asyncio.to_thread(art, "train", "--from-ledger", "--policy", "anyone", "--lr", "1e-3")
        assert "6 runs are compared with others of their scenario" in done.output, done.output
        assert "anyone@1 is served: 12 completions" in done.output
        assert (
            "6 of 6 runs are left out"
            in (await asyncio.to_thread(art, "train", "--from-ledger", "--policy", "anyone")).output
        )

        async def agent(question: str) -> str:
            async with openai.AsyncOpenAI() as client:
                answer = await client.chat.completions.create(
                    model="anyone", messages=[{"role": "user", "content": question}], max_tokens=12
                )
            return str(answer.choices[0].message.content)

        measured = await evaluate(
            agent, ["Name an animal."], lambda t: float(bool(t.output)), version=0, progress=False
        )
        assert measured.versions == {"anyone": [0]}
        newest = await evaluate(agent, ["Name a plant."], version=1, temperature=1.0, progress=False)
        (call,) = newest.trajectories[0].completions
        assert gap(real, "anyone@1", await trainer.completion(str(call.id))) < 0.1
