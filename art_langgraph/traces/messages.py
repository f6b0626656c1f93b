"""Messages of other systems in OpenAI's form: LangChain's, Anthropic's blocks, GenAI parts, response items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages

from art_langgraph.messages import revive, to_openai
from art_langgraph.traces.problems import Unreadable
from trainer_server.wire.tool_arguments import arguments_text, complete_calls

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
"""Roles that have another name in OpenAI's form."""
_KEPT = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "weight")
_PARTS = ("text", "image_url", "input_audio", "file")
"""Types of the parts that OpenAI's messages have."""
_LANGCHAIN = {"human", "ai", "system", "tool", "function", "developer", "AIMessageChunk", "HumanMessageChunk"}
_SERVER_CALLS = Unreadable("whose provider called tools by itself", "no policy can repeat what the provider did")
_NO_MESSAGES = Unreadable("with messages of an unknown form", "tell the project which system wrote them")


def parsed(value: Any) -> Any:
    """What a text holds, where it is a JSON object or array; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def as_text(value: Any) -> str:
    """A value as the text of a message: texts as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def openai_messages(value: Any) -> list[dict[str, Any]]:
    """A conversation in OpenAI's form.

    Args:
        value: A text (of a user), a message, or a list of messages, in any form that this module knows.

    Raises:
        Unreadable: It is something else.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    items = value if isinstance(value, list) and not _is_pair(value) else [value]
    return complete_calls([message for item in items for message in _openai(item)])


def openai_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Definitions of tools in OpenAI's form; those that have no function are left out. None: there are none."""
    definitions = []
    for tool in parsed(tools) or ():
        tool = parsed(tool)
        if not isinstance(tool, dict):
            continue
        function = parsed(tool.get("function")) or {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": parsed(tool.get("parameters") or tool.get("input_schema")),
        }
        if isinstance(function, dict) and function.get("name"):
            function = {key: item for key, item in function.items() if item is not None}
            definitions.append({"type": "function", "function": function})
    return definitions or None


def without_dumps(value: Any) -> Any:
    """A graph's state in which LangChain's messages have OpenAI's form, so that the same question is the same input."""
    if isinstance(value, list):
        if value and _is_pair(value) and value[0] in {*ROLES, "user", "system", "assistant"}:
            return _openai(value)[0]
        return (
            [message for item in value for message in (_openai(item) if _is_langchain(item) else [item])]
            if any(map(_is_langchain, value))
            else [without_dumps(item) for item in value]
        )
    if _is_langchain(value):
        messages = _openai(value)
        return messages[0] if len(messages) == 1 else messages
    if isinstance(value, dict):
        return {key: without_dumps(item) for key, item in value.items()}
    return value


def _is_pair(value: list[Any]) -> bool:
    return len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str)


def _is_langchain(value: Any) -> bool:
    """Whether a value is a message as LangChain dumps it."""
    if not isinstance(value, dict):
        return False
    if value.get("lc") == 1 and isinstance(value.get("id"), list):
        return "messages" in value["id"] or str(value["id"][-1]).endswith(("Message", "MessageChunk"))
    return value.get("type") in _LANGCHAIN and ("content" in value or "data" in value)


def _openai(value: Any) -> list[dict[str, Any]]:
    value = parsed(value)
    if isinstance(value, dict):
        if value.get("lc") == 1:
            message = revive(value)
            if isinstance(message, BaseMessage):
                return _converted(message)
            if isinstance(value.get("kwargs"), dict):  # a class of another package: its fields say enough
                return _openai(value["kwargs"])
            raise _NO_MESSAGES
        if value.get("type") in _LANGCHAIN and isinstance(value.get("data"), dict):
            return _openai({**value["data"], "type": value["type"]})
        if isinstance(value.get("parts"), list):
            return _of_parts(value)
        if value.get("type") in ("function_call", "function_call_output", "reasoning"):
            return _of_item(value)
        if isinstance(role := value.get("role"), str) and _plain(value):
            message = {
                key: value[key] for key in _KEPT if value.get(key) is not None or (key == "content" and key in value)
            }
            return [{**message, "role": ROLES.get(role, role), "content": _joined(message.get("content"))}]
        value = {key: item for key, item in value.items() if item is not None or key == "content"}
        value.pop("response_metadata", None)
    elif not isinstance(value, list):
        raise _NO_MESSAGES
    return _converted(tuple(value) if isinstance(value, list) else value)


def _plain(message: Mapping[str, Any]) -> bool:
    """Whether a message is in OpenAI's form already."""
    content, calls = message.get("content"), message.get("tool_calls") or ()
    texts = not isinstance(content, list) or all(
        isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text") for part in content
    )
    return texts and all(isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls)


def _joined(content: Any) -> Any:
    """The text of a list of text parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content)
    return content if content is None or isinstance(content, str) else as_text(content)


def _converted(message: Any) -> list[dict[str, Any]]:
    """By LangChain, which knows its own messages and the blocks of the large providers."""
    try:
        if isinstance(message, dict) and not message.get("content"):
            message = {**message, "content": ""}
        converted = to_openai(convert_to_messages([message]))
    except (TypeError, ValueError, KeyError, NotImplementedError):
        raise _NO_MESSAGES from None
    for each in converted:
        parts = each["content"] if isinstance(each["content"], list) else []
        if each["role"] == "remove" or any(part.get("type") not in _PARTS for part in parts):
            raise _NO_MESSAGES
        if each.get("server_tool_calls"):
            raise _SERVER_CALLS
    return converted


def _of_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message of OpenTelemetry's GenAI conventions."""
    role = str(message.get("role") or "user")
    texts, thoughts, calls, answers, others = [], [], [], [], []
    for part in message["parts"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(as_text(part.get("content") or ""))
        elif kind == "reasoning":
            thoughts.append(as_text(part.get("content") or ""))
        elif kind == "tool_call":
            calls.append(tool_call(part.get("id"), part.get("name"), part.get("arguments")))
        elif kind == "tool_call_response":
            response = part["response"] if "response" in part else part.get("result")
            answers.append({"role": "tool", "tool_call_id": part.get("id") or "", "content": as_text(response)})
        else:
            others.append({"type": str(kind)})
    whole: dict[str, Any] = {"role": ROLES.get(role, role), "content": "".join(texts)}
    if others:
        whole["content"] = [*({"type": "text", "text": text} for text in texts), *others]
    if thoughts:
        whole["reasoning_content"] = "".join(thoughts)
    if calls:
        whole["tool_calls"] = calls
    return answers if answers and not (texts or calls or others) else [*answers, whole]


def _of_item(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An item of OpenAI's Responses API that is no message."""
    if item["type"] == "function_call":
        call = tool_call(item.get("call_id"), item.get("name"), item.get("arguments"))
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if item["type"] == "function_call_output":
        return [{"role": "tool", "tool_call_id": item.get("call_id") or "", "content": as_text(item.get("output"))}]
    return []


def tool_call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A model's call of a tool, in OpenAI's form.

    Args:
        id: Of the call.
        name: Of the tool.
        arguments: As `read_arguments` takes them.
    """
    function = {"name": str(name or ""), "arguments": arguments_text(arguments)}
    return {"id": str(id or ""), "type": "function", "function": function}


def merged(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of which no two of the assistant follow one another, where the second only calls tools."""
    kept: list[dict[str, Any]] = []
    for message in messages:
        last = kept[-1] if kept else None
        if last and last["role"] == message["role"] == "assistant" and not message.get("content"):
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            kept[-1] = {**last, "tool_calls": calls} if calls else last
        else:
            kept.append(message)
    return kept
