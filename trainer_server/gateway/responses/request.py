"""Requests of OpenAI's Responses API as chat requests.

A model's turn is several items there: its reasoning, its text, and each tool call. It becomes the one assistant message
that a chat client would send, so that the prompt goes on exactly where the model's turn ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.body import check_values
from trainer_server.gateway.client_api import (
    ClientAPI,
    content_of,
    list_at,
    object_at,
    objects_at,
    refuse,
    refuse_deferred,
    text_at,
)
from trainer_server.gateway.parameters import VLLM, check_names, handling_of
from trainer_server.gateway.responses.answer import ResponseBody, ResponseStream
from trainer_server.wire import Completion
from trainer_server.wire.completions import CHAT, ledger_id
from trainer_server.wire.rollouts import unhinted_messages

_REMEDIES = {
    "background": "answers are not kept for later here; send the request without it, and wait for the answer",
    "background_options": "answers are not kept for later here; send the request without it",
    "context_management": "nothing is cut from the conversation here; shorten it in the agent",
    "conversation": "no conversations are kept here; send the messages, or `previous_response_id`",
    "moderation": "no moderation model is served here; moderate inputs and answers in the agent",
    "prompt": "no prompt templates are kept here; send `instructions` and `input`",
}

PARAMETERS = handling_of(
    use=(
        "include input instructions max_output_tokens model parallel_tool_calls previous_response_id "
        "reasoning stream temperature text tool_choice tools top_logprobs top_p truncation"
    ),
    drop=(
        "access_programs image max_tool_calls metadata prompt_cache_key prompt_cache_options "
        "prompt_cache_retention safety_identifier service_tier store stream_options user"
    ),
    refuse=_REMEDIES,
)
"""All parameters of `responses.create` in OpenAI's Python SDK. A test fails when the SDK has others."""

_EXTRA = VLLM | handling_of(
    forward="frequency_penalty logit_bias presence_penalty seed stop",
)
"""Parameters of chat completions that this API lacks. Clients send them by `extra_body`."""


def _tool(where: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a tool.

    Raises:
        APIError: 400 for a tool that is no function: only the client can run its tools.
    """
    kind = tool.get("type")
    if kind != "function":
        refuse(
            where,
            f"this server runs no tool of type {kind!r:.50}: give the agent a tool of type `function` that does it",
            unsupported=True,
        )
    refuse_deferred(tool, where)
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _tool_choice(value: object) -> object:
    """Translates `tool_choice`.

    Raises:
        APIError: 400 for the choice of a tool that is no function.
    """
    if not isinstance(value, dict):
        return value  # checked with the chat request
    if value.get("type") != "function":
        refuse(
            "tool_choice",
            f'{value.get("type")!r:.50} is not offered: send "auto", "none", "required" or '
            '{"type": "function", "name": …}, and only the tools that may be called',
            unsupported=True,
        )
    return {"type": "function", "function": {"name": value.get("name")}}


def _response_format(text: object, dropped_names: set[str]) -> dict[str, Any] | None:
    """Translates `text` to `response_format`, and adds names to `dropped_names`."""
    settings = object_at(text, "text")
    if unknown := set(settings) - {"format", "verbosity"}:
        refuse(f"text.{min(unknown)}", "is unknown: send `format` or `verbosity`")
    if settings.get("verbosity") is not None:
        dropped_names.add("text.verbosity")
    if settings.get("format") is None:
        return None
    fields = object_at(settings["format"], "text.format")
    if fields.get("type") != "json_schema":
        return {"type": fields.get("type")}
    schema = {name: value for name, value in fields.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTION = "reasoning.encrypted_content"


def _logprobs_included(value: object, dropped_names: set[str]) -> bool:
    """Whether `include` names log-probabilities. Adds names to `dropped_names`: reasoning is always in the answer as
    text, so that its encrypted form adds nothing.

    Raises:
        APIError: 400 for what only tools that the server runs would have.
    """
    names = list_at(value, "include")
    for name in names:
        if name not in (_LOGPROBS, _ENCRYPTION):
            problem = f"{name!r:.80} is not offered: no such items are made here; leave it out"
            refuse("include", problem, unsupported=True)
    if _ENCRYPTION in names:
        dropped_names.add(f"include.{_ENCRYPTION}")
    return _LOGPROBS in names


_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
"""Chat templates of open models know no role `developer`; most leave its messages out without a word."""
_ITEM_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})(?:_\d+)?")
_OTHER_ITEMS = (
    "only messages, reasoning, function calls and their outputs can be rendered here; leave the item out, or send what "
    "it says as a message"
)


class _Turn:
    """One turn of the model: items that follow one another."""

    def __init__(self, source: str | None) -> None:
        self.source = source
        self.message: dict[str, Any] = {"role": "assistant", "content": None}
        self._parts: dict[str, list[str]] = {}

    def add(self, name: str, text: str) -> None:
        """Adds text to a field of the message. The field has all of it when the turn is over: to make it longer with
        each item would take the square of their number."""
        parts = self._parts.setdefault(name, [self.message.get(name) or ""])
        parts.append(text)
        self.message[name] = self.message.get(name) or ""

    def end(self) -> None:
        """Writes the texts into the message."""
        self.message |= {name: "".join(parts) for name, parts in self._parts.items()}
        self._parts.clear()

    def takes(self, kind: str, source: str | None) -> bool:
        """Whether an item belongs to this turn: it has the same origin, or it may follow what is there."""
        if source is not None and self.source is not None:
            return source == self.source
        has_text = self.message["content"] is not None or "tool_calls" in self.message
        return kind == "function_call" or not (has_text or (kind == "reasoning" and "reasoning" in self.message))


class _Items:
    """Translates items one by one."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._turn: _Turn | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages so far."""
        if self._turn is not None:
            self._turn.end()
        return self._messages

    def add_input(self, value: object) -> None:
        """Adds `input`: a text, or a list of items.

        Raises:
            APIError: 400 for items that cannot be translated.
        """
        if isinstance(value, str):
            self._add({"role": "user", "content": value})
            return
        for path, item in objects_at(value, "input"):
            self._add_item(item, path)

    def add_system(self, value: object, where: str) -> None:
        """Adds `instructions`: a text, or a list of items."""
        if isinstance(value, str):
            self._add({"role": "system", "content": value})
            return
        for path, item in objects_at(value, where):
            self._add_item(item, path)

    def add_turn(self, message: Mapping[str, Any], source: str) -> None:
        """Adds an answer of the ledger, of the response `resp_<source>`."""
        turn = self._assistant("message", source).message
        turn.update({name: value for name, value in message.items() if name in ("content", "tool_calls") and value})
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            turn["reasoning"] = reasoning

    def _add(self, message: dict[str, Any]) -> None:
        if self._turn is not None:
            self._turn.end()
        self._turn = None
        self._messages.append(message)

    def _assistant(self, kind: str, source: str | None) -> _Turn:
        """The turn that an item belongs to."""
        if self._turn is None or not self._turn.takes(kind, source):
            turn = _Turn(source)
            self._add(turn.message)
            self._turn = turn
        self._turn.source = self._turn.source or source
        return self._turn

    def _add_item(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        source = match[1] if (match := _ITEM_ID.fullmatch(str(item.get("id")))) else None
        if kind == "message":
            self._add_message(item, source, where)
        elif kind == "reasoning":
            self._add_reasoning(item, source, where)
        elif kind == "function_call":
            call = {"name": text_at(item.get("name"), f"{where}.name")}
            call["arguments"] = text_at(item.get("arguments"), f"{where}.arguments")
            entry = {"id": text_at(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": call}
            self._assistant(kind, source).message.setdefault("tool_calls", []).append(entry)
        elif kind == "function_call_output":
            content = self._content(item.get("output"), f"{where}.output")
            call_id = text_at(item.get("call_id"), f"{where}.call_id")
            self._add({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind == "item_reference":
            refuse(where, "items are not kept here: send the item itself, or `previous_response_id`", unsupported=True)
        else:
            refuse(f"{where}.type", f"{kind!r:.50}: {_OTHER_ITEMS}", unsupported=True)

    def _add_message(self, item: Mapping[str, Any], source: str | None, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            refuse(f"{where}.role", f"must be one of {', '.join(_ROLES)}, not {role!r:.50}")
        if role != "assistant":
            self._add({"role": _ROLES[role], "content": self._content(item.get("content"), f"{where}.content")})
            return
        content = self._content(item.get("content"), f"{where}.content")
        if not isinstance(content, str):
            if any(part["type"] != "text" for part in content):
                refuse(f"{where}.content", "what the model said can only be text")
            content = "".join(part["text"] for part in content)
        self._assistant("message", source).add("content", content)

    def _add_reasoning(self, item: Mapping[str, Any], source: str | None, where: str) -> None:
        parts = item.get("content") or item.get("summary") or []
        texts = [text_at(part.get("text"), f"{path}.text") for path, part in objects_at(parts, f"{where}.content")]
        if not texts and item.get("encrypted_content"):
            refuse(
                f"{where}.encrypted_content",
                "no model here can read it: send the reasoning as text, or leave the item out",
                unsupported=True,
            )
        if texts:
            self._assistant("reasoning", source).add("reasoning", "".join(texts))

    def _content(self, value: object, where: str) -> str | list[dict[str, Any]]:
        if isinstance(value, str):
            return value
        return content_of([self._part(part, path) for path, part in objects_at(value, where)])

    def _part(self, part: Mapping[str, Any], where: str) -> dict[str, Any]:
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text", "summary_text"):
            return {"type": "text", "text": text_at(part.get("text"), f"{where}.text")}
        if kind == "refusal":
            return {"type": "text", "text": text_at(part.get("refusal"), f"{where}.refusal")}
        if kind == "input_image" and part.get("image_url") is not None:
            url: dict[str, Any] = {"url": text_at(part["image_url"], f"{where}.image_url")}
            if part.get("detail") is not None:
                url["detail"] = part["detail"]
            return {"type": "image_url", "image_url": url}
        if kind == "input_audio":
            return {"type": "input_audio", "input_audio": object_at(part.get("input_audio"), f"{where}.input_audio")}
        if kind in ("input_image", "input_file"):
            refuse(
                where,
                "no files are kept or read here: send an image as a `data:` URL in `image_url`, and a file's text as "
                "`input_text`",
                unsupported=True,
            )
        refuse(f"{where}.type", f"{kind!r:.50} is not offered: send `input_text` or `input_image`", unsupported=True)


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
        dropped_names = set(check_names(body, {**PARAMETERS, **_EXTRA}, _REMEDIES))
        fields = {name: value for name, value in body.items() if value is not None}
        if fields.get("truncation", "disabled") != "disabled":
            refuse("truncation", "nothing is cut from the conversation here; shorten it in the agent", unsupported=True)
        chat = {name: fields[name] for name in _EXTRA if name in fields}
        chat |= {theirs: fields[ours] for ours, theirs in _SAME.items() if ours in fields}
        items = _Items()
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
            chat["tools"] = [_tool(path, tool) for path, tool in objects_at(fields["tools"], "tools")]
            if "tool_choice" in fields:
                chat["tool_choice"] = _tool_choice(fields["tool_choice"])
        else:
            chat.pop("parallel_tool_calls", None)
        summary = logprobs = False
        if "text" in fields:
            chat["response_format"] = _response_format(fields["text"], dropped_names)
        if "reasoning" in fields:
            settings = object_at(fields["reasoning"], "reasoning")
            chat["reasoning_effort"] = settings.get("effort")
            summary = (settings.get("summary") or settings.get("generate_summary")) is not None
            names = {name for name, value in settings.items() if value is not None}
            dropped_names |= {f"reasoning.{name}" for name in names - {"effort", "summary", "generate_summary"}}
        if "include" in fields:
            logprobs = _logprobs_included(fields["include"], dropped_names)
        if logprobs or fields.get("top_logprobs"):
            logprobs = True
            chat |= {"logprobs": True, "top_logprobs": fields.get("top_logprobs", 0)}
        self.chat, self.dropped_names = chat, sorted(dropped_names)
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


def _add_earlier(items: _Items, earlier: Completion) -> None:
    """Adds the conversation that led to an answer, and the answer. Its instructions and its hint hold for it alone.

    Raises:
        APIError: 400, the answer is no turn of a conversation, or a model said half of a character in it.
    """
    messages = earlier.request.get("messages")
    if not messages or earlier.message is None:
        refuse("previous_response_id", "that answer is no turn of a conversation: send the whole conversation")
    if instructions := int(earlier.request.get("instructions") or 0):
        messages = messages[instructions:]  # with the hint, if there was one
    elif earlier.hint is not None:
        messages = unhinted_messages(messages, earlier.hint)
    for message in messages:
        items.messages.append(dict(message))
    items.add_turn(earlier.message, earlier.id.removeprefix(CHAT))
    check_values({"input": items.messages})


RESPONSES = ClientAPI(ResponsesExchange, _continues)
"""`/v1/responses`."""
