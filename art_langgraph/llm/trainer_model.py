"""TrainerModel: the base model that a trainer server has loaded, asked for typed answers and for tool calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field

from art_langgraph.capture.scope import suspend_recording
from art_langgraph.llm.faults import REMEDY, Fault, fault_of
from art_langgraph.llm.llm import LLM, Model
from art_langgraph.llm.modes import Message
from art_langgraph.llm.spending import add_price
from art_langgraph.llm.target import Reply, base_model_name
from trainer_server.common import Connection
from trainer_server.wire import ConfigError, LLMError

POLICY = "policy"
"""What the base model of the trainer server is called where a language model is named."""

TIMEOUT = 60.0
"""Seconds for a request."""

MAX_TOKENS = 512
"""Tokens of an answer with tool calls, at most."""

MAX_TEXT_TOKENS = 256
"""Tokens of a typed answer, at most."""

MAX_CALLS = 8
"""Tool calls of an answer that are read, at most."""

_TEMPERATURE = 0.8
"""Of typed answers, so that one question has several. Tool calls are sampled at 0."""

_RETRY_FOR = 10.0
"""Seconds for which a request is sent again while the server is gone."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call that a model wants.

    Args:
        id: Its id in the answer.
        tool: Name of the tool.
        arguments: The arguments. None: they are no JSON object.
    """

    id: str
    tool: str
    arguments: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer of a model that has tools.

    Args:
        text: What it says.
        calls: The calls that it wants. Empty: it is done.
    """

    text: str
    calls: tuple[ToolUse, ...]

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message in OpenAI's format, for the next request."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(call.arguments or {})},
            }
            for call in self.calls
        ]
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}


class _Call(BaseModel):
    """A call of a tool."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class _Answer(BaseModel):
    """The calls to make next, or what to say where no call is needed any more."""

    calls: list[_Call] = Field(default_factory=list, max_length=MAX_CALLS)
    text: str = ""


class TrainerModel(LLM):
    """The base model of a trainer server as an LLM: without an adapter, whatever the policies have learnt.

    It is asked through ChatART, so that it needs no litellm. Its completions belong to no rollout: no step trains them.
    They cost nothing and are not cached. Models that can think are asked not to.

    Args:
        server: The trainer server.
        name: Name of its base model.
        max_concurrency: Requests at once.
    """

    def __init__(self, server: Connection, name: str, *, max_concurrency: int = 32) -> None:
        from art_langgraph.chat_model import ChatART

        options: dict[str, Any] = {
            "policy": name,
            "base_url": server.url,
            "api_key": server.api_key,
            "timeout": TIMEOUT,
            "max_retries": 0,
            "retry_for": _RETRY_FOR,
            "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
        }
        limits: dict[str, Any] = {
            "timeout": TIMEOUT,
            "retries": 1,
            "max_concurrency": max_concurrency,
            "cache": None,
        }
        texts = {**options, "max_tokens": MAX_TEXT_TOKENS, "temperature": _TEMPERATURE}
        super().__init__(ChatART(**texts), **limits)
        self._chat = ChatART(**{**options, "max_tokens": MAX_TOKENS, "temperature": 0.0})
        self._steady = LLM(self._chat, **limits)
        self._steady.usage = self.usage
        self._has_parser = True

    async def act(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Turn:
        """The model's next answer in a conversation with tools: as a policy is asked, or where the engine has no parser
        of tool calls, as JSON.

        Args:
            messages: The conversation, in OpenAI's format.
            tools: The tools, in OpenAI's format.

        Raises:
            LLMError: There was no usable answer.
        """
        if self._has_parser:
            try:
                return await self._act(messages, tools)
            except Fault as fault:
                if fault.kind != "bad_request":
                    raise self._error(fault) from None
                self._has_parser = False
        answer = await self._steady.ask(_as_texts(messages, tools), _Answer)
        calls = enumerate(answer.calls, start=len(messages))
        return Turn(answer.text, tuple(ToolUse(f"call_{at}", call.tool, call.arguments) for at, call in calls))

    async def _act(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Turn:
        """Asks with tools. Raises Fault."""
        model = self._chat.bind_tools([dict(tool) for tool in tools])
        async with self._limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrency)):
            self.usage.calls += 1
            try:
                async with asyncio.timeout(TIMEOUT):
                    with suspend_recording():
                        answer = await model.ainvoke([dict(message) for message in messages])
            except TimeoutError:
                raise Fault("timeout", f"no answer within {TIMEOUT:g} s") from None
            except Exception as error:  # clients raise errors of many classes
                raise fault_of(error) from error
        facts: Mapping[str, Any] = answer.usage_metadata or {}
        self.usage.add(Reply("", int(facts.get("input_tokens", 0)), int(facts.get("output_tokens", 0)), price=0.0))
        add_price(0.0)
        return Turn(str(answer.text), _tool_uses(answer))

    def _error(self, fault: Fault) -> LLMError:
        return LLMError(f"{self.model}: {fault.kind}: {fault}. Remedy: {REMEDY[fault.kind]}", kind=fault.kind)


async def find_model(model: Model) -> LLM:
    """As `LLM.of`, but POLICY is the base model of the trainer server that TrainerClient finds.

    Raises:
        ConfigError: No trainer server is found, or it does not answer.
    """
    if model != POLICY:
        return LLM.of(model)
    try:
        server = Connection.find()
        return TrainerModel(server, await base_model_name(server))
    except (ConfigError, LLMError) as error:
        raise ConfigError(
            f"the model {POLICY!r} is the base model of the trainer server, which cannot be asked: {error} Start one "
            "with `art-langgraph serve`, or name another model: provider/name"
        ) from None


def _tool_uses(answer: AIMessage) -> tuple[ToolUse, ...]:
    """The calls of an answer, those with unreadable arguments included."""
    numbers = enumerate(answer.tool_calls)
    calls = [ToolUse(call["id"] or f"call_{at}", call["name"], call["args"]) for at, call in numbers]
    calls += [ToolUse(call["id"] or "", call["name"] or "", None) for call in answer.invalid_tool_calls]
    return tuple(calls[:MAX_CALLS])


def _as_texts(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A conversation with tools as one of texts alone. The system prompt lists the tools."""
    listing = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    system = "\n\n".join(str(message["content"]) for message in messages if message["role"] == "system")
    note = (
        f"The tools:\n{listing}\n\nAnswer with the calls to make next. They are made, and you get what they gave. "
        "Where no call is needed any more, answer with the text alone."
    )
    texts: list[Message] = [{"role": "system", "content": f"{system}\n\n{note}".strip()}]
    for message in messages:
        if calls := message.get("tool_calls"):
            wanted = [
                {"tool": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
                for call in calls
            ]
            texts.append({"role": "assistant", "content": json.dumps({"calls": wanted}, ensure_ascii=False)})
        elif message["role"] == "tool":
            texts.append({"role": "user", "content": f"The call gave: {message['content']}"})
        elif message["role"] != "system":
            texts.append(message)
    return texts
