"""OpenAI's Responses API, translated to chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.body import check_values
from trainer_server.gateway.dialects.base import Dialect, refuse, text_at
from trainer_server.gateway.dialects.responses import parameters
from trainer_server.gateway.dialects.responses.items import Items
from trainer_server.gateway.dialects.responses.output import ResponseBody
from trainer_server.gateway.dialects.responses.stream import ResponseStream
from trainer_server.gateway.parameters import check_names
from trainer_server.wire import Completion
from trainer_server.wire.completions import CHAT, ledger_id

_SAME = {
    "model": "model",
    "stream": "stream",
    "temperature": "temperature",
    "top_p": "top_p",
    "parallel_tool_calls": "parallel_tool_calls",
    "max_output_tokens": "max_tokens",
}
"""Parameters that have the same values in a chat request: their names here and there."""


class ResponsesExchange:
    """A request for a response, as a chat request.

    Args:
        body: The request.
        earlier: The answer that `previous_response_id` names.
    """

    prompt: str | list[int] | None = None
    elastic = False
    names: Mapping[str, str] = MappingProxyType(
        {
            "max_tokens": "max_output_tokens",
            "messages": "input",
            "reasoning_effort": "reasoning.effort",
            "response_format": "text.format",
        }
    )

    def __init__(self, body: Mapping[str, Any], earlier: Completion | None) -> None:
        dropped = check_names(body, {**parameters.RESPONSES, **parameters.EXTRA}, parameters.REMEDIES)
        fields = {name: value for name, value in body.items() if value is not None}
        if fields.get("truncation", "disabled") != "disabled":
            refuse("truncation", "nothing is cut from the conversation here; shorten it in the agent", unsupported=True)
        chat = {name: fields[name] for name in parameters.EXTRA if name in fields}
        chat |= {theirs: fields[ours] for ours, theirs in _SAME.items() if ours in fields}
        items = Items()
        if "instructions" in fields:
            items.add_system(fields["instructions"], "instructions")
        instructions = len(items.messages)
        if earlier is not None:
            _add_earlier(items, earlier)
        if "input" in fields:
            items.add_input(fields["input"])
        if len(items.messages) == instructions:
            refuse("input", "is missing: send a text, or at least one item")
        chat["messages"] = items.messages
        if fields.get("tools"):
            chat["tools"] = parameters.tools(fields["tools"])
            if "tool_choice" in fields:
                chat["tool_choice"] = parameters.tool_choice(fields["tool_choice"])
        else:
            chat.pop("parallel_tool_calls", None)
        summary = logprobs = False
        if "text" in fields:
            chat["response_format"], also = parameters.response_format(fields["text"])
            dropped += also
        if "reasoning" in fields:
            chat["reasoning_effort"], summary, also = parameters.reasoning(fields["reasoning"])
            dropped += also
        if "include" in fields:
            logprobs, also = parameters.include(fields["include"])
            dropped += also
        if logprobs or fields.get("top_logprobs"):
            logprobs = True
            chat |= {"logprobs": True, "top_logprobs": fields.get("top_logprobs", 0)}
        self.chat, self.dropped_names = chat, sorted(set(dropped))
        self.note: dict[str, Any] = {"api": "responses", "instructions": instructions}
        self._body = ResponseBody(fields, summary=summary, logprobs=logprobs)
        self.stream = ResponseStream(self._body)

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """A chat completion as a response."""
        (choice,) = answer["choices"]
        return self._body.response(
            answer,
            self._body.items(answer, choice),
            finish_reason=choice.get("finish_reason"),
            usage=answer.get("usage") or {},
        )


def _continues(body: Mapping[str, Any]) -> str | None:
    """The ledger's id of the answer that `previous_response_id` names."""
    response_id = body.get("previous_response_id")
    if response_id is None:
        return None
    if (completion_id := ledger_id(text_at(response_id, "previous_response_id"))) is None:
        problem = f"{response_id!r:.80} is no answer of this server: send the whole conversation"
        refuse("previous_response_id", problem)
    return completion_id


def _add_earlier(items: Items, earlier: Completion) -> None:
    """Adds the conversation that led to an answer, and the answer. Its instructions hold for it alone.

    Raises:
        APIError: 400, the answer is no turn of a conversation, or a model said half of a character in it.
    """
    messages = earlier.request.get("messages")
    if not messages or earlier.message is None:
        refuse("previous_response_id", "that answer is no turn of a conversation: send the whole conversation")
    for message in messages[int(earlier.request.get("instructions") or 0) :]:
        items.messages.append(dict(message))
    items.add_turn(earlier.message, earlier.id.removeprefix(CHAT))
    check_values({"input": items.messages})


RESPONSES = Dialect(ResponsesExchange, _continues)
"""`/v1/responses`."""
