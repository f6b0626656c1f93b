"""Scenarios of the user are trained on or held out, never both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from art_langgraph import LLM, Scenario, autorl
from trainer_server.wire import ConfigError


class Client:
    """A trainer server that has the policy, and is asked for nothing else."""

    async def policies(self) -> list[Any]:
        return [SimpleNamespace(name="p")]

    async def versions(self, policy: str) -> list[Any]:
        return [SimpleNamespace(version=0)]


async def test_repeated_scenarios_count_once_in_whatever_form() -> None:
    client: Any = Client()
    graph: Any = None  # nothing runs
    given: list[Any] = [
        "say x",
        "say x",
        {"messages": [("user", "say x")]},
        Scenario(id="mine", input={"messages": [HumanMessage("say x")]}),
        "say y",
        Scenario(input="say y", metadata={"seed": 1}),
    ]
    with pytest.raises(ConfigError, match=r"^3 scenarios leave 2 to train on, fewer than groups_per_step=4"):
        await autorl(
            "Say it.", graph=graph, policy="p", judge=LLM("judge", base_url="http://127.0.0.1:1", cache=None),
            client=client, scenarios=given, progress=False,
        )  # fmt: skip
