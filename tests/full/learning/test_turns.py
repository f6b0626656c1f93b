"""Prompts of tokens at the real vLLM: what it sampled is what it reads again, and is parsed and trained as ever."""

from __future__ import annotations

import itertools
import json
import statistics
from typing import Any

import pytest

from art_langgraph import TrainerClient
from tests.support.servers.real_server import Real, gap
from trainer_server.wire import Completion, prefix_drift

pytestmark = [pytest.mark.vllm, pytest.mark.short_model]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]
CALL = r'<tool_call>\n\{"name":"lookup","arguments":\{"word":"[a-z]{3,12}"\}\}\n</tool_call>'
"""A tool call as the template would not write it: without spaces."""


async def converse(real: Real, policy: str, rollout: str, turns: int, **last: Any) -> list[Completion]:
    """An agent that looks words up, and says something at the end. Its client writes the calls anew."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look some words up."}]
    rows: list[Completion] = []
    async with real.http() as http:
        for turn in range(turns):
            calls = turn < turns - 1
            body = {"model": policy, "messages": messages, "tools": TOOLS, "max_tokens": 64}
            body |= {"structured_outputs": {"regex": CALL}} if calls else last
            answer = await http.post("/v1/chat/completions", json=body, headers={"X-ART-Rollout": rollout})
            assert answer.status_code == 200, answer.text
            events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
            row = (await http.get(f"/api/completions/{json.loads(events[0])['id']}")).json()
            rows.append(Completion.model_validate(row))
            message = {"role": "assistant", **row["message"]}
            if calls:
                (call,) = message["tool_calls"]
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
                result = {"role": "tool", "tool_call_id": call["id"], "content": f"It is in line {turn}."}
                messages += [message, result]
    return rows


@pytest.mark.parametrize("last", [{}, {"stream": True}, {"n": 3}], ids=["whole", "streamed", "choices"])
async def test_turns_extend_one_another(real: Real, last: dict[str, Any]) -> None:
    policy = f"turns-{len(last)}-{'n' in last}"
    async with TrainerClient(real.connection.url, real.connection.api_key) as trainer:
        await trainer.create_policy(policy)
    rows = await converse(real, policy, f"rollout-{policy}", 4, **last)
    assert [row.continuation for row in rows] == [None, "spliced", "spliced", "spliced"]
    assert prefix_drift(rows).missing == 0
    for earlier, later in itertools.pairwise(rows):
        turn = earlier.prompt_token_ids + earlier.token_ids
        assert later.prompt_token_ids[: len(turn)] == turn
        assert later.continues == earlier.id
    assert all(row.untrainable is None and row.message["tool_calls"] for row in rows[:-1] if row.message)
    gaps = [gap(real, f"{policy}@0", row) for row in rows[-1:] if not row.constrained]
    assert statistics.mean(gaps) < 0.2, "the log-probs are those of the spliced prompt"
