"""Teachers and hints on the real vLLM: its scores of sampled tokens, and its chat template with a hint in it."""

from __future__ import annotations

import statistics
from typing import Any

import httpx
import psutil
import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, Distillation, GRPOConfig, TrainerClient, Trajectory, train
from tests.support.servers.real_server import Real
from trainer_server.engines.package_models import EMBEDDED
from trainer_server.engines.vllm.dialect import VLLMClient
from trainer_server.engines.vllm.teacher import VLLMTeacher
from trainer_server.jobs.teaching import hinted_prompt

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.short_model,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("found_by_clients"),
]

HINT = "Answer with one word, and end there."


def graph(policy: str) -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await ChatART(policy=policy, max_tokens=24).ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


def engine_of(real: Real) -> tuple[str, str]:
    """Address and key of the vLLM that the server has started."""
    url = httpx.get(
        f"{real.connection.url}/api/engines", headers={"Authorization": f"Bearer {real.connection.api_key}"}
    ).json()["engines"][0]["url"]
    processes = psutil.Process(real.engine().pid).children(recursive=True)
    keys = {process.environ().get("VLLM_API_KEY") for process in processes}
    return url, next(key for key in keys if key)


async def test_a_hint_enters_the_prompt_where_the_template_puts_it_and_vllm_scores_what_was_sampled(
    real: Real, record_property: Any
) -> None:
    async with TrainerClient() as client:
        await client.create_policy("taught")
        steps = train(
            graph("taught"), ["Name a colour."], policy="taught", client=client, steps=1, groups_per_step=1, n=4,
            reward=lambda run: float(bool(run.hints)), hints=lambda scenario, failed: HINT, progress=False,
            config=GRPOConfig(distill=Distillation(weight=0.5)),
        )  # fmt: skip
        (record,) = [record async for record in steps]
        assert record.hints is not None
        assert (record.hints.rescued, record.hints.ignored) == (1, 0)
        assert record.result.version == 1
        assert record.result.metrics["completions_hinted"] == 4
        assert record.teacher_kl
        failed: list[Trajectory] = record.groups[0].trajectories
        rows = [await client.completion(str(run.completions[0].id)) for run in failed]
        hinted = await client.completion(str(record.hinted[0].completions[0].id))
    url, key = engine_of(real)
    engine = VLLMClient(url, key, base=EMBEDDED, cpu=True)
    teacher = VLLMTeacher(url, key)
    try:
        assert await hinted_prompt(engine, rows[0], HINT) == hinted.prompt_token_ids
        assert HINT in await engine.detokenize(hinted.prompt_token_ids)
        await teacher.check(engine, rows)  # type: ignore[arg-type]
        gaps = []
        for row in rows:  # the untrained policy is the base model
            scores = await teacher.scores(row)
            assert scores is not None
            gaps += [abs(float(score or 0.0) - logp) for score, logp in zip(scores, row.logprobs, strict=True)]
    finally:
        await engine.close()
        await teacher.close()
    record_property("prompt_logprobs_gap", statistics.fmean(gaps))
    assert statistics.fmean(gaps) < 0.03
