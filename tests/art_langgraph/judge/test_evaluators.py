"""openevals and agentevals as reward functions: the code of docs/rewards/judges.md with the real packages."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from testbed.environments import environment
from tests.support.client_environments import ROOT
from tests.support.pages.blocks import DOCS, blocks_of
from tests.support.servers.judge_app import Fault, endpoint

RUNS = """
import asyncio
import json

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from art_langgraph import Scenario, Trajectory
from art_langgraph.rewards import score

ask = {"id": "1", "name": "weather", "args": {"city": "Oslo"}}
wanted = [
    {"role": "user", "content": "How warm is Oslo?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "7", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": "Oslo"})}}
    ]},
    {"role": "tool", "tool_call_id": "7", "content": "21"},
    {"role": "assistant", "content": "21 degrees."},
]
scenario = Scenario(input="How warm is Oslo?", metadata={"answer": "21 degrees", "messages": wanted})


def run(*messages):
    return Trajectory(scenario=scenario, output={"messages": [HumanMessage("How warm is Oslo?"), *messages]})


async def main():
    looked_up = [AIMessage("", tool_calls=[ask]), ToolMessage("21", tool_call_id="1"), AIMessage("21 degrees")]
    for function in (correct, called):
        for messages in (looked_up, [AIMessage("cold")], [AIMessage("no verdict")]):
            one = run(*messages)
            await score(one, function)
            print(json.dumps([one.reward, one.reward_error]))


asyncio.run(main())
"""


def verdict(body: dict[str, Any]) -> str | Fault:
    """What a judge says, to a request that OpenAI would take: a strict schema with a score."""
    assert body["model"] == "gpt-4.1-mini"
    form = body["response_format"]
    assert form["type"] == "json_schema", form
    schema = form["json_schema"]["schema"]
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"]) == {"reasoning", "score"}
    (message,) = body["messages"]
    assert "How warm is Oslo?" in message["content"]
    if "no verdict" in message["content"]:
        return Fault(refusal="I do not judge this.")
    warm = "<output>\n21 degrees\n</output>" in message["content"]
    return json.dumps({"reasoning": "As the reference says.", "score": 0.9 if warm else 0.1})


@pytest.mark.servers
def test_evaluators_are_reward_functions() -> None:
    python = environment("openevals", "openevals==0.2.2", "agentevals==0.0.9", overlay=True) / "python"
    (code,) = (block.text for block in blocks_of(DOCS / "rewards" / "judges.md") if block.needs == "openevals")
    with endpoint(verdict) as judge:
        variables = {"OPENAI_BASE_URL": judge.url, "OPENAI_API_KEY": "a-key", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [str(python), "-c", code + RUNS], env={**os.environ, **variables, "LANGSMITH_TRACING": "false"},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert [reward for reward, _ in runs] == [0.9, 0.1, None, 1.0, 0.0, 0.0]
    assert [error is None for _, error in runs] == [True, True, False, True, True, True]
    assert set(judge.keys) == {"a-key"}
