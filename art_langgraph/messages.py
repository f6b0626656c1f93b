"""A graph's state as JSON and back: messages stay messages, all else becomes plain data."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    InvalidToolCall,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolCall,
    ToolMessage,
    ToolMessageChunk,
    convert_to_messages,
    convert_to_openai_messages,
)
from pydantic import BaseModel

from trainer_server.wire.tool_arguments import arguments_object, arguments_text

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
_NO_OBJECT = "the arguments are no JSON object"
_NAMESPACE = ["langchain", "schema", "messages"]


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
"""In the text of an object that has no better one, such as a function: it differs between processes."""


def plain(value: Any) -> Any:
    """JSON-safe form of a graph's state.

    Args:
        value: Any part of a state.

    Returns:
        Messages in the form that `langchain_core.load` reads, other pydantic models as dicts, tuples and sets as lists,
        infinite numbers and unknown objects as text, which is the same in every process.
    """
    if isinstance(value, BaseMessage):
        return _dump_message(value)
    if isinstance(value, BaseModel):
        return {key: plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _ADDRESS.sub("", str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)  # the order of a set of texts differs between processes
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _ADDRESS.sub("", repr(value))


def map_texts(value: Any, change: Callable[[str], str], *, keys: bool = False) -> Any:
    """A JSON value with each of its texts changed; with `keys`, those of objects too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key) if keys else str(key): map_texts(inner, change, keys=keys) for key, inner in value.items()}
    return [map_texts(inner, change, keys=keys) for inner in value] if isinstance(value, list | tuple) else value


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
    state = {key: revive(item) for key, item in value.items()}
    match state:
        case {"lc": 1, "type": "constructor", "id": [*_, str(name)], "kwargs": dict(fields)} if name in _CLASSES:
            try:
                return _CLASSES[name](**fields)
            except (TypeError, ValueError):  # made by something else: kept as it is
                return state
    return state


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


def normalised_input(value: Any) -> Any:
    """A graph's input in a form in which equal tasks are equal.

    Args:
        value: Input of a scenario.

    Returns:
        The text, where the input is a single message of a user, however it is written; any other input as it is.
    """
    text = user_text(value)
    return value if text is None else text


def user_text(value: Any) -> str | None:
    """The text of a graph's input that is a single message of a user; None for any other input.

    Args:
        value: A text, a message, a pair such as `("user", "hello")`, or one of these, or a dict, under the key
            `messages` alone, also in a list.
    """
    if isinstance(value, Mapping):
        if value.keys() != {"messages"}:
            return None
        value = value["messages"]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    try:
        (message,) = convert_to_messages([value])
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
        The messages. Tool calls whose arguments are no JSON object are in `invalid_tool_calls`, with the text of them.
    """
    return [_from_openai(message) for message in messages]


def to_openai(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as OpenAI's dicts, in JSON, whichever provider's blocks they have.

    An answer has its text as `content`, its thoughts as `reasoning_content`, and all calls that the model made as
    `tool_calls`: also those in `invalid_tool_calls`, with the arguments that it wrote. What a provider did by itself, a
    search for example, is in `server_tool_calls`, as the provider's blocks have it.

    Args:
        messages: Of LangChain. A message with results of tools among its blocks becomes several.
    """
    return [plain(openai_message) for message in messages for openai_message in _to_openai(message)]


def as_written(answer: BaseMessage) -> BaseMessage:
    """An answer with the calls that the model wrote.

    Args:
        answer: Of a model. In one that was streamed, LangChain completes the arguments of a call that was cut off.

    Returns:
        The answer. Calls whose arguments are no JSON object are in `invalid_tool_calls`, where those of whole answers
        are too.
    """
    if not isinstance(answer, AIMessageChunk):
        return answer
    chunks = answer.tool_call_chunks
    if all(arguments_object(chunk["args"]) is not None for chunk in chunks):
        return answer
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for chunk in chunks:
        _add_call(calls, invalid, chunk["name"], chunk["args"], chunk["id"])
    return answer.model_copy(update={"tool_calls": calls, "invalid_tool_calls": invalid})


def _add_call(
    calls: list[ToolCall], invalid: list[InvalidToolCall], name: str | None, arguments: object, call_id: str | None
) -> None:
    """Adds a call to those with arguments, or, where these are no JSON object, to those with a text of them."""
    if (read := arguments_object(arguments)) is not None:
        calls.append(ToolCall(name=name or "", args=read, id=call_id, type="tool_call"))
        return
    text = arguments_text(arguments)
    invalid.append(InvalidToolCall(name=name, args=text, id=call_id, error=_NO_OBJECT, type="invalid_tool_call"))


def final_text(messages: Iterable[BaseMessage]) -> str:
    """Text of the last message of the model; "" when there is none, or when it only calls tools."""
    texts = [str(message.text) for message in messages if isinstance(message, AIMessage)]
    return texts[-1] if texts else ""


_ROLES: dict[type[BaseMessage], str] = {HumanMessage: "user", SystemMessage: "system", ToolMessage: "tool"}
"""Those of messages whose text is all that they have."""
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
_CALLS = ("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call", "custom_tool_call")
_SERVER_CALLS = ("executable_code", "code_execution_result", "mcp_list_tools", "mcp_approval_request")
_SERVER_ENDS = ("_call", "_call_chunk", "_call_output", "_tool_use", "_tool_result")
"""Types of blocks that are none of `content`. Those of what a provider did by itself end alike, as in `web_search_call`
and `server_tool_use`."""


def _to_openai(message: BaseMessage) -> list[dict[str, Any]]:
    if isinstance(message, AIMessage) or (isinstance(message, ChatMessage) and message.role == "assistant"):
        return [_answer_to_openai(message)]
    if (role := _ROLES.get(type(message))) and isinstance(message.content, str) and not message.additional_kwargs:
        # As LangChain writes them, whose function takes a tenth of a millisecond for each: a call has all of a history.
        name = {"name": message.name} if message.name else {}
        answered = {"tool_call_id": message.tool_call_id} if isinstance(message, ToolMessage) else {}
        return [{"role": role, **name, **answered, "content": message.content}]
    try:
        return convert_to_openai_messages([message])
    except (ValueError, KeyError, TypeError, AttributeError):  # a block that LangChain does not know, or a role
        content: Any = message.content
    try:
        (head,) = convert_to_openai_messages([message.model_copy(update={"content": ""})])
    except (ValueError, KeyError, TypeError, AttributeError):
        head = {"role": message.type}
    parts = [] if isinstance(content, str) else [part for block in content for part in _parts(block)]
    return [{**head, "content": parts or content}]


def _answer_to_openai(message: BaseMessage) -> dict[str, Any]:
    extra, content = message.additional_kwargs, message.content or ""
    blocks: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in [] if isinstance(content, str) else content:
        block = _block(part)
        blocks[_sort(block)].append(block)
    blocks["thoughts"] += [{"reasoning": extra[name]} for name in ("reasoning_content", "reasoning") if extra.get(name)]
    calls = [
        _call(call.get("id"), call.get("name"), call.get("args"))
        for call in [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
    ]
    without_block = list(calls)
    for call in map(_call_of, blocks["calls"]):
        if not call["function"]["name"]:
            continue
        if (same := next((other for other in without_block if _same(call, other)), None)) is not None:
            without_block.remove(same)
        elif not call["id"] or call["id"] not in {other["id"] for other in calls}:
            calls.append(call)
    if isinstance(extra.get("function_call"), dict):  # OpenAI's older form, and a copy of one of Google's calls
        call = _call_of(extra["function_call"])
        if call["function"]["name"] and not any(_same(call, other) for other in calls):
            calls.append(call)
    parts = [part for block in blocks["content"] for part in _parts(block)]
    texts = [part["text"] for part in parts if part.get("type") == "text"]
    fields = {
        "name": message.name,
        "refusal": next((text for block in [*blocks["refusals"], extra] if (text := block.get("refusal"))), None),
        "reasoning_content": "\n".join(dict.fromkeys(_thoughts(blocks["thoughts"]))),
        "tool_calls": calls,
        "server_tool_calls": blocks["server"],
    }
    return {
        "role": "assistant",
        "content": content if isinstance(content, str) else "".join(texts) if len(texts) == len(parts) else parts,
        **{name: value for name, value in fields.items() if value},
    }


def _same(call: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a call in a block may be one of the message's calls. Some of Google's blocks have no id."""
    if call["id"]:
        return bool(call["id"] == other["id"])
    return bool(call["function"]["name"] == other["function"]["name"])


def _block(block: Any) -> dict[str, Any]:
    """A part of an answer's content as a block, out of what LangChain wraps around blocks that it does not know."""
    if not isinstance(block, dict):
        return {"type": "text", "text": str(block)}
    value = block.get("value")
    return value if block.get("type") == "non_standard" and isinstance(value, dict) else block


def _sort(block: Mapping[str, Any]) -> str:
    """What a block of an answer is."""
    kind = str(block.get("type"))
    if kind in _THOUGHTS:
        return "thoughts"
    if kind in _CALLS:
        return "calls"
    if kind in _SERVER_CALLS or kind.endswith(_SERVER_ENDS):
        return "server"
    return {"refusal": "refusals", "input_json_delta": "parts of calls"}.get(kind, "content")


def _thoughts(thought: Any) -> Iterator[str]:
    """The texts of a thought: of Anthropic's block, LangChain's, Bedrock's, or an item of OpenAI's Responses API."""
    if isinstance(thought, str):
        if thought:
            yield thought
    elif isinstance(thought, list):
        for part in thought:
            yield from _thoughts(part)
    elif isinstance(thought, Mapping):
        for name in ("thinking", "reasoning", "reasoning_content", "summary", "content", "text"):
            yield from _thoughts(thought.get(name))


def _call_of(block: Mapping[str, Any]) -> dict[str, Any]:
    """The tool call in a block of any provider."""
    arguments = next((block[name] for name in ("partial_json", "arguments", "args", "input") if block.get(name)), None)
    return _call(block.get("call_id") or block.get("id"), block.get("name"), arguments)


def _call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    function = {"name": str(name or ""), "arguments": arguments_text(plain(arguments))}
    return {"type": "function", "id": id, "function": function}


def _parts(block: Any) -> list[dict[str, Any]]:
    """A block of content as OpenAI's parts; the block itself where OpenAI has no name for it."""
    try:
        (openai_message,) = convert_to_openai_messages([HumanMessage([block])])
    except (ValueError, KeyError, TypeError, AttributeError):
        return [block if isinstance(block, dict) else {"type": "text", "text": str(block)}]
    content = openai_message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _kind(block: Any) -> str:
    """The type of a part of a message's content, which may be a text itself."""
    return str(block.get("type")) if isinstance(block, dict) else "text"


def _dump_message(message: BaseMessage) -> dict[str, Any]:
    """As `langchain_core.load.dumpd`, which is not used because it marks some user data in a way of its own."""
    name = next(kind.__name__ for kind in type(message).__mro__ if kind.__name__ in _CLASSES or kind is BaseMessage)
    fields = {key: getattr(message, key) for key in type(message).model_fields} | (message.model_extra or {})
    kwargs = {key: plain(value) for key, value in fields.items() if value is not None}
    return {"lc": 1, "type": "constructor", "id": [*_NAMESPACE, name], "kwargs": kwargs}


def _from_openai(message: Mapping[str, Any]) -> BaseMessage:
    calls = message.get("tool_calls") or ()
    try:
        (langchain_message,) = convert_to_messages(
            [{key: value for key, value in message.items() if key != "tool_calls"}]
        )
    except (TypeError, ValueError, NotImplementedError):  # a role that OpenAI does not have
        langchain_message = ChatMessage(role=str(message.get("role")), content=str(message.get("content") or ""))
    if isinstance(langchain_message, AIMessage):
        for call in calls:
            if not isinstance(function := call.get("function"), Mapping):
                continue
            name, arguments = function.get("name") or "", function.get("arguments")
            _add_call(
                langchain_message.tool_calls, langchain_message.invalid_tool_calls, name, arguments, call.get("id")
            )
    return langchain_message
