"""Tasks of examples and benchmarks: run by a script, and learned in two steps on the test server."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from art_examples.learning.learn import Learned, learn
from art_examples.learning.task import Task, TaskMaker
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from art_langgraph import Conversation, Scenario, TrainerClient, Trajectory
from art_langgraph.rewards import score
from tests.support.servers.trainer_server import TOKEN, TrainerServer


class Scripted(BaseChatModel):
    """Gives the answers of a script, one a call (the last one for ever), and keeps what it was asked.

    An answer `call NAME {json}` is a tool call, as that of the small engine.
    """

    answers: list[str]
    asked: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.asked.append(convert_to_openai_messages(messages))
        said = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if said.startswith("call "):
            _, name, arguments = said.split(" ", 2)
            call = {"name": name, "args": json.loads(arguments), "id": f"call-{len(self.asked)}"}
            return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(said))])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)  # in no thread: calls of parallel nodes come in their order

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Scripted:
        return self


async def run(task: Task, scenario: Scenario, model: Scripted) -> Trajectory:
    given = scenario.input if isinstance(scenario.input, dict) else {"messages": [("user", scenario.input)]}
    made = Trajectory(scenario=scenario, output=await task.graph(model).ainvoke(given))
    await score(made, task.reward)
    return made


def scripted(conversation: Conversation) -> Scripted:
    """A model that says what the assistant says in a demonstration."""
    said = [message for message in conversation.messages if message["role"] == "assistant"]
    calls = [(message.get("tool_calls") or [{}])[0].get("function") for message in said]
    return Scripted(
        answers=[
            f"call {call['name']} {call['arguments']}" if call else message["content"]
            for message, call in zip(said, calls, strict=True)
        ]
    )


@contextmanager
def answers(server: TrainerServer, texts: Sequence[str], seed: int = 0) -> Iterator[None]:
    """The engine of the test server answers with one of the texts, drawn anew each time."""
    server.engine["answers"] = random.Random(seed).choices(texts, k=20_000)
    try:
        yield
    finally:
        server.engine["answers"] = []


async def learned_in_two_steps(maker: TaskMaker, policy: str, server: TrainerServer, texts: Sequence[str]) -> Learned:
    """Learns a task in two steps of few runs, with few demonstrations. texts: as those of `answers`."""
    with answers(server, texts):
        async with TrainerClient(server.url, TOKEN) as client, maker(0) as task:
            few = replace(task.short(steps=2, held_out=4), demonstrations=task.demonstrations[:4])
            few = replace(few, recipe=replace(few.recipe, groups_per_step=2, n=4, steps_per_opponent=1))
            return await learn(few, 0, client, policy, prompted=True)


def about(maker: TaskMaker, tool: str) -> TaskMaker:
    """The task without training scenarios that want another tool, so that an answer which calls it is right in all."""

    @asynccontextmanager
    async def made(seed: int) -> AsyncIterator[Task]:
        async with maker(seed) as task:
            yield replace(task, training=[one for one in task.training if one.metadata["tool"] == tool])

    return made
