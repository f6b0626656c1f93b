"""A graph's state as JSON and back: messages stay messages, all else becomes plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
    convert_to_messages,
)
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from pydantic import BaseModel

_CLASSES: dict[str, type[BaseMessage]] = {
    kind.__name__: kind
    for kind in (
        AIMessage,
        AIMessageChunk,
        ChatMessage,
        ChatMessageChunk,
        FunctionMessage,
        FunctionMessageChunk,
        HumanMessage,
        HumanMessageChunk,
        RemoveMessage,
        SystemMessage,
        SystemMessageChunk,
        ToolMessage,
        ToolMessageChunk,
    )
}
"""All that `revive` ever constructs: none of them does anything but hold data."""
_NAMESPACE = ["langchain", "schema", "messages"]


def plain(value: Any) -> Any:
    """JSON-safe form of a graph's state.

    Args:
        value: Any part of a state.

    Returns:
        Messages in the form that `langchain_core.load` reads, other pydantic models as dicts, tuples and sets as lists,
        infinite numbers and unknown objects as text.
    """
    if isinstance(value, BaseMessage):
        return _dumped(value)
    if isinstance(value, BaseModel):
        return {key: plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)  # the order of a set of texts differs between processes
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return repr(value)


def revive(value: Any) -> Any:
    """Makes messages of what `plain` made of them.

    Only LangChain's message classes are constructed, whatever a file says. What is no message is returned unchanged.

    Args:
        value: Any part of a state, read from JSON.

    Returns:
        The state with its messages.
    """
    if isinstance(value, list):
        return [revive(item) for item in value]
    if not isinstance(value, dict):
        return value
    revived = {key: revive(item) for key, item in value.items()}
    match revived:
        case {"lc": 1, "type": "constructor", "id": [*_, str(name)], "kwargs": dict(fields)} if name in _CLASSES:
            try:
                return _CLASSES[name](**fields)
            except (TypeError, ValueError):  # made by something else: kept as it is
                return revived
    return revived


def messages_of(state: Any) -> list[BaseMessage]:
    """The conversation in a graph's final state.

    Args:
        state: A dict or an object with `messages`, a list of messages, or a single message.

    Returns:
        The messages; an empty list where the state has none.
    """
    if isinstance(state, Mapping):
        state = state.get("messages")
    elif not isinstance(state, BaseMessage | list | tuple):
        state = getattr(state, "messages", None)
    items = state if isinstance(state, list | tuple) else [state] if isinstance(state, BaseMessage) else []
    messages = []
    for item in items:
        try:
            messages += convert_to_messages([item])
        except (TypeError, ValueError, NotImplementedError):  # something else under the name `messages`
            continue
    return messages


def normalised_input(given: Any) -> Any:
    """A graph's input in a form in which equal tasks are equal.

    Args:
        given: Input of a scenario.

    Returns:
        The text, where the input is a single message of a user, however it is written; any other input as it is.
    """
    text = user_text(given)
    return given if text is None else text


def user_text(given: Any) -> str | None:
    """The text of a graph's input that is a single message of a user; None for any other input.

    Args:
        given: A text, a message, a pair such as `("user", "hello")`, or one of these, or a dict, under the key
            `messages` alone, also in a list.
    """
    if isinstance(given, Mapping):
        if given.keys() != {"messages"}:
            return None
        given = given["messages"]
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    try:
        (message,) = convert_to_messages([given])
    except (TypeError, ValueError, NotImplementedError):
        return None
    if not isinstance(message, HumanMessage) or any(_kind(block) != "text" for block in message.content):
        return None
    return str(message.text)


def from_openai(messages: Iterable[Mapping[str, Any]]) -> list[BaseMessage]:
    """Messages from OpenAI's dicts.

    Args:
        messages: Dicts with `role`, `content` and `tool_calls`. Arguments of a tool call need not be JSON.

    Returns:
        The messages. Tool calls whose arguments are no JSON are in `invalid_tool_calls`.
    """
    return [_from_openai(message) for message in messages]


def final_text(messages: Iterable[BaseMessage]) -> str:
    """Text of the last message of the model; "" when there is none, or when it only calls tools."""
    texts = [str(message.text) for message in messages if isinstance(message, AIMessage)]
    return texts[-1] if texts else ""


def _kind(block: Any) -> str:
    """The type of a part of a message's content, which may be a text itself."""
    return str(block.get("type")) if isinstance(block, dict) else "text"


def _dumped(message: BaseMessage) -> dict[str, Any]:
    """As `langchain_core.load.dumpd`, which is not used because it marks some user data in a way of its own."""
    name = next(kind.__name__ for kind in type(message).__mro__ if kind.__name__ in _CLASSES or kind is BaseMessage)
    fields = {key: getattr(message, key) for key in type(message).model_fields} | (message.model_extra or {})
    kwargs = {key: plain(value) for key, value in fields.items() if value is not None}
    return {"lc": 1, "type": "constructor", "id": [*_NAMESPACE, name], "kwargs": kwargs}


def _from_openai(message: Mapping[str, Any]) -> BaseMessage:
    calls = message.get("tool_calls") or ()
    try:
        (converted,) = convert_to_messages([{key: value for key, value in message.items() if key != "tool_calls"}])
    except (TypeError, ValueError, NotImplementedError):  # a role that OpenAI does not have
        converted = ChatMessage(role=str(message.get("role")), content=str(message.get("content") or ""))
    if isinstance(converted, AIMessage):
        for call in calls:
            try:
                if parsed := parse_tool_call(call, return_id=True):
                    converted.tool_calls.append({**parsed, "type": "tool_call"})  # type: ignore[typeddict-item]
            except ValueError as error:  # LangChain's OutputParserException is one
                converted.invalid_tool_calls.append(make_invalid_tool_call(call, str(error)))
    return converted
