"""Anthropic's Messages API, translated to chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.body import MOST_CHAT_VALUES
from trainer_server.gateway.dialects.base import refuse
from trainer_server.gateway.dialects.messages import output, parameters
from trainer_server.gateway.dialects.messages.blocks import Blocks
from trainer_server.gateway.dialects.messages.stream import MessageStream
from trainer_server.gateway.parameters import check_names
from trainer_server.wire import Completion

_SAME = {
    "model": "model",
    "stream": "stream",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
}
"""Parameters that have the same values in a chat request: their names here and there."""


class MessagesExchange:
    """See Exchange.

    `max_tokens` must be in every request of this API, and clients that do not care send much more than a small model's
    context. So it is elastic.

    Args:
        body: The request.
    """

    prompt: str | list[int] | None = None
    elastic = True
    names: Mapping[str, str] = MappingProxyType({"stop": "stop_sequences", "reasoning_effort": "output_config"})

    def __init__(self, body: Mapping[str, Any]) -> None:
        dropped = set(check_names(body, {**parameters.EXTRA, **parameters.MESSAGES}, parameters.REMEDIES))
        given = {name: value for name, value in body.items() if value is not None}
        chat = {name: given[name] for name in parameters.EXTRA if name in given}
        chat |= {theirs: given[ours] for ours, theirs in _SAME.items() if ours in given}
        blocks = Blocks()
        if "system" in given:
            blocks.add_system(given["system"], "system")
        blocks.add(given.get("messages", []))
        chat["messages"] = blocks.messages
        dropped |= blocks.dropped_names
        if given.get("tools"):
            chat["tools"], also = parameters.tools(given["tools"])
            dropped |= also
            if "tool_choice" in given:
                chat |= parameters.tool_choice(given["tool_choice"])
        if "thinking" in given:
            thinks, also = parameters.thinking(given["thinking"])
            dropped |= also
            if thinks is not None:
                chat["chat_template_kwargs"] = {"enable_thinking": thinks, **chat.get("chat_template_kwargs", {})}
        if "output_config" in given:
            more, also = parameters.output_config(given["output_config"])
            chat, dropped = chat | more, dropped | also
        _continue_last(chat)
        self.chat, self.dropped_names = chat, sorted(dropped)
        self.note: dict[str, Any] = {"api": "messages"}
        self.stream = MessageStream()

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """See Exchange.whole."""
        return output.whole(answer)


def _continue_last(chat: dict[str, Any]) -> None:
    """Has the model go on with the last message, where that is its own, as this API does."""
    last = chat["messages"][-1] if chat["messages"] else {}
    if last.get("role") != "assistant":
        return
    if last.get("tool_calls"):
        where = f"messages.{len(chat['messages']) - 1}"
        refuse(where, "the last message calls a tool: send the tool's result after it")
    chat.setdefault("continue_final_message", True)
    chat.setdefault("add_generation_prompt", False)


class MessagesDialect:
    """`/v1/messages`. See Dialect."""

    most_values = MOST_CHAT_VALUES

    def continues(self, body: Mapping[str, Any]) -> str | None:
        """See Dialect.continues."""
        return None

    def read(self, body: Mapping[str, Any], earlier: Completion | None) -> MessagesExchange:
        """See Dialect.read."""
        return MessagesExchange(body)


MESSAGES = MessagesDialect()
