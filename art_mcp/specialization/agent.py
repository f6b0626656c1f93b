"""The agent of `specialize`: the tools that it gets, and by default a model node and a tool node in a loop."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from art_langgraph.chat_model import ChatART
from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.rollout import Graph
from art_mcp.client.connect import Server
from art_mcp.scenarios.catalog import REMEDY, CatalogTool, describe_withheld
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.demonstrations import demonstration
from art_mcp.specialization.settings import SYSTEM, RunSettings
from art_mcp.specialization.verify import EXTRA_CALLS
from trainer_server.wire import ConfigError

EXAMPLES = 3
"""Demonstrations in the prompt of the prompted baseline."""
_LONGEST = 2_000
"""Characters of a demonstration in a prompt, if there are shorter ones of the tool."""

_CHARACTERS = 2.5
"""Characters of a token, at least: JSON with names and numbers has few."""
_CODE = re.compile(r"\w*\d\w*")
"""Numbers and hashes, of which each character is a token in many models."""
_RESERVE, _LEAST_TOKENS, _MOST_TOKENS = 16, 64, 256
MAX_TURNS = 8
"""Maximum number of model calls in a run."""


def build_agent(
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    system: str = SYSTEM,
    max_turns: int = MAX_TURNS,
    examples: Sequence[Mapping[str, Any]] = (),
) -> Runnable[Any, Any]:
    """Builds a compiled graph over MessagesState with the nodes `agent` and `tools`.

    Args:
        model: The chat model, such as ChatART.
        tools: The tools that the model may call.
        system: System prompt.
        max_turns: Maximum number of model calls after the last message of the user.
        examples: Messages in OpenAI's format that stand between the system prompt and the task, such as
            demonstrations.
    """
    bound = model.bind_tools(tools)
    prefix = [SystemMessage(system), *convert_to_messages([dict(message) for message in examples])]

    async def agent(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await bound.ainvoke([*prefix, *state["messages"]])]}

    def after_agent(state: MessagesState) -> str:
        messages = state["messages"]
        task_at = max((at for at, message in enumerate(messages) if message.type == "human"), default=-1)
        turns = sum(isinstance(message, AIMessage) for message in messages[task_at + 1 :])
        last = messages[-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls and turns < max_turns else END

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", after_agent, ["tools", END])
    graph.add_edge("tools", "agent")
    return graph.compile(name="mcp_agent")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of the agent.

    Args:
        tools: The tools.
        left_out: Which tools of the server the agent does not get, and why. Empty: it gets all.
        turns: Maximum number of model calls in a run of `build_agent`.
        tokens: Maximum number of tokens of an answer, where the settings say nothing.
    """

    tools: list[BaseTool]
    left_out: str
    turns: int
    tokens: int

    @classmethod
    async def of(cls, server: Server, scenarios: ScenarioSet, allow_destructive: bool) -> Toolbox:
        """Lists the server's tools. A policy that is trained tries everything out, so that it does not get all.

        A run that makes more calls than its reference and EXTRA_CALLS others has failed. So `turns` is what the longest
        reference needs.

        Args:
            server: The server.
            scenarios: What the agent is run on.
            allow_destructive: Whether it gets tools that may change something although the change stays.

        Raises:
            ConfigError: A scenario needs a tool that the agent does not get.
            MCPError: The server did not answer.
        """
        tools = await server.tools()
        longest = max((len(scenario.tools) for scenario in scenarios.scenarios), default=MAX_TURNS)
        limits = min(MAX_TURNS, longest + EXTRA_CALLS + 1), _tokens(scenarios.scenarios)
        if allow_destructive or server.disposable:
            return cls(tools, "", *limits)
        tools_for_agent = [
            CatalogTool(
                name=tool.name, description=tool.description, annotations=(tool.metadata or {}).get("annotations", {})
            )
            for tool in tools
        ]
        left_out = {tool.name: tool for tool in tools_for_agent if not tool.reads}
        reference_tools = {name for scenario in scenarios.scenarios for name in scenario.tools}
        if missing := [tool for name, tool in left_out.items() if name in reference_tools]:
            raise ConfigError(f"the scenarios need tools that are {describe_withheld(missing)}. {REMEDY}")
        note = f"{describe_withheld(tools_for_agent)}. {REMEDY}" if left_out else ""
        return cls([tool for tool in tools if tool.name not in left_out], note, *limits)

    def agent(
        self, client: TrainerClient, policy: str, runs: RunSettings, examples: Sequence[dict[str, Any]] = ()
    ) -> Graph:
        """The agent of `build_agent` with these tools.

        Args:
            client: The trainer server.
            policy: The policy that it asks.
            runs: How it is run.
            examples: Messages that stand before the task.
        """
        server = client.connection
        limit = runs.max_tokens or self.tokens
        options: dict[str, Any] = {"base_url": server.url, "api_key": server.api_key, "max_tokens": limit}
        model = ChatART(policy=policy, **options)
        return build_agent(model, self.tools, runs.system, self.turns, examples)


def _tokens(scenarios: Iterable[MCPScenario]) -> int:
    """Tokens for the longest call or answer of the references, as far as characters tell."""
    longest = 0.0
    for scenario in scenarios:
        if not scenario.plan.executed:
            continue
        for message in demonstration(scenario):
            if message["role"] == "assistant":
                text = f"{message.get('content') or ''}{json.dumps(message.get('tool_calls', ''))}"
                code_length = sum(map(len, _CODE.findall(text)))
                longest = max(longest, code_length + (len(text) - code_length) / _CHARACTERS)
    return min(_MOST_TOKENS, max(_LEAST_TOKENS, _RESERVE + round(longest)))


def example_messages(training: Sequence[MCPScenario], seed: int) -> list[dict[str, Any]]:
    """The messages of some demonstrations, of different tools if there are, for the prompt of the prompted baseline.

    Args:
        training: The training scenarios.
        seed: Seed of the choice.
    """
    order = random.Random(f"shown-{seed}").sample(list(training), len(training))
    usable = [
        scenario for scenario in order if scenario.tools and len(scenario.messages) == 1 and scenario.plan.executed
    ]
    usable.sort(key=lambda scenario: sum(len(result.text) for result in scenario.plan.observations) > _LONGEST)
    examples: list[MCPScenario] = []
    for fresh in (True, False):
        for scenario in usable:
            tools = {tool for other in examples for tool in other.tools}
            if len(examples) < EXAMPLES and scenario not in examples and (not fresh or not tools & set(scenario.tools)):
                examples.append(scenario)
    return [
        _prefix_ids(message, f"shown_{number}_")
        for number, scenario in enumerate(examples)
        for message in demonstration(scenario)
    ]


def _prefix_ids(message: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The message with ids of calls that no other demonstration has."""
    message = dict(message)
    if "tool_call_id" in message:
        message["tool_call_id"] = prefix + message["tool_call_id"]
    if "tool_calls" in message:
        message["tool_calls"] = [{**call, "id": prefix + call["id"]} for call in message["tool_calls"]]
    return message
