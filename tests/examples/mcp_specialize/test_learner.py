"""mcp_specialize: a policy is specialized to the weather server in two steps."""

from __future__ import annotations

import pytest
from art_examples.learning.runs import Options, Run
from art_examples.mcp_specialize.learner import specialized
from art_examples.mcp_specialize.servers import SERVERS

from art_langgraph import TrainerClient
from tests.support.runs.tasks import answers
from tests.support.servers.judge_app import endpoint
from tests.support.servers.trainer_server import TOKEN, TrainerServer

STEPS = Options(steps=2, held_out=12, models=["openai/some-model"])
CALLS = ['call get_alerts {"region": "north"}', 'call list_stations {"region": "coast"}', "No.", "It is clear."]


@pytest.mark.slow
async def test_two_steps_specialize_a_policy(connected: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with endpoint("It is clear.") as fake, answers(connected, CALLS):
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        async with TrainerClient(connected.url, TOKEN) as client:
            run = Run(seed=0, client=client, policy="weather-two-steps", options=STEPS, tell=told.append)
            learned = await specialized("weather", SERVERS["weather"])(run)
    row = learned.as_json()
    assert row["task"] == "weather"
    assert row["steps"] == 2
    for stage in ("before", "prompted", "warm", "after"):
        assert 0 <= row[stage]["success"] <= 1
        assert row[stage]["n"] >= 6
    assert row["seconds"] > 0
    assert any(line.startswith("scenarios") for line in told)
    assert row["models"]["openai/some-model"]["n"] == row["after"]["n"]
    assert {tool["function"]["name"] for tool in fake.requests[0]["tools"]} >= {"get_alerts", "list_stations"}
