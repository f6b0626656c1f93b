"""Anthropic's Messages API, translated to chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.dialects.base import Dialect, refuse
from trainer_server.gateway.dialects.messages import output, parameters
from trainer_server.gateway.dialects.messages.blocks import Blocks
from trainer_server.gateway.dialects.messages.stream import MessageStream
from trainer_server.gateway.parameters import check_names

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
    """A request for a message, as a chat request.

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
        fields = {name: value for name, value in body.items() if value is not None}
        chat = {name: fields[name] for name in parameters.EXTRA if name in fields}
        chat |= {theirs: fields[ours] for ours, theirs in _SAME.items() if ours in fields}
        blocks = Blocks()
        if "system" in fields:
            blocks.add_system(fields["system"], "system")
        blocks.add(fields.get("messages", []))
        chat["messages"] = blocks.messages
        dropped |= blocks.dropped_names
        if fields.get("tools"):
            chat["tools"], also = parameters.tools(fields["tools"])
            dropped |= also
            if "tool_choice" in fields:
                chat |= parameters.tool_choice(fields["tool_choice"])
        if "thinking" in fields:
            thinks, also = parameters.thinking(fields["thinking"])
            dropped |= also
            if thinks is not None:
                chat["chat_template_kwargs"] = {"enable_thinking": thinks, **chat.get("chat_template_kwargs", {})}
        if "output_config" in fields:
            more, also = parameters.output_config(fields["output_config"])
            chat, dropped = chat | more, dropped | also
        _continue_last(chat)
        self.chat, self.dropped_names = chat, sorted(dropped)
        self.note: dict[str, Any] = {"api": "messages"}
        self.stream = MessageStream()

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """A chat completion as a message."""
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


MESSAGES = Dialect(lambda body, earlier: MessagesExchange(body))
"""`/v1/messages`."""
