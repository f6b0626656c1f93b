"""Messages of other systems in OpenAI's form: LangChain's, Anthropic's blocks, GenAI parts, response items."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages

from art_langgraph.messages import revive, to_openai
from art_langgraph.traces.problems import Unreadable
from trainer_server.wire.tool_arguments import arguments_text, complete_calls

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
"""Roles that have another name in OpenAI's form."""
_FIELDS_OF_MESSAGES = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "weight")
_PARTS = ("text", "image_url", "input_audio", "file")
"""Types of the parts that OpenAI's messages have."""
_LANGCHAIN = {"human", "ai", "system", "tool", "function", "developer", "AIMessageChunk", "HumanMessageChunk"}
_SERVER_CALLS = Unreadable("whose provider called tools by itself", "no policy can repeat what the provider did")
_NO_MESSAGES = Unreadable("with messages of an unknown form", "tell the project which system wrote them")
_NO_ROLE = Unreadable("with messages that have no role", "record the role of each message: none is guessed")
_NO_CONTENT = Unreadable(
    "with messages that have neither content nor calls of tools",
    "record them in `content` or `tool_calls`, and switch on the capture of content where it is off",
)
_REPR = Unreadable(
    "with messages that are Python's text of objects, or were cut off",
    "record them as JSON, and raise the limit of their length (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)",
)
_UNKNOWN_ANSWER = Unreadable(
    "with answers of an unknown form", "record the message of the answer: its role, its content, its calls of tools"
)
_BLOCKS = {"text", "toolUse", "toolResult", "reasoningContent", "cachePoint", "image", "document", "video"}
"""Fields of content blocks of Amazon Bedrock, of which each block has one and no `type`."""
_RESPONSE = {"usage", "usageMetadata", "stopReason", "stop_reason", "ResponseMetadata", "results", "generation"} | {
    *("llm_output", "completion", "generated_text", "promptFeedback")
}
"""Fields of a whole response of a model, which is no answer by itself."""
_LITERAL = 1_000_000
"""Maximum number of characters of a Python literal that is read."""
_LEVELS = 50
"""Maximum number of its brackets within brackets."""
_OBJECTS = re.compile(
    r"[\[({]*(?:.{0,200}?[\[(,:]\s*)?(?:<[\w.]+ object at 0x"
    r"|\w*(?:Message(?:Chunk)?|ChatCompletion|Choice|ModelResponse|LLMResult|ChatGeneration|Content|AgentResult)"
    r"\((?:\w+=|\[))|content=(?P<quote>['\"]).*(?P=quote) (?:\w+=|$)",
    re.DOTALL,
)
"""Python's text of messages that are objects of some class."""
_REPRS = re.compile(
    r"\w+(?:\[[\w.]+\]\(\w+=|\(\w+=\w+\(|\(\w+=\[\w+\(|Result\(output=)"  # Response(message=Message(…
    r"|\w+=(?:'[^']*'|\"[^\"]*\"|\[.*\]) \w+=[\[{'\"\w]"  # id='msg_1' content=[TextBlock(…
    r"|<[\w.]+ object |b'[\[{]|b\"[\[{]",
    re.DOTALL,
)
"""Python's text of other objects, and of bytes."""
_FIELDS = re.compile(
    r"[\[({]+\s*(?P<quote>['\"])(?:role|messages|parts|lc|kwargs|generations|choices|tool_calls|toolUse|content|type)"
    r"(?P=quote)\s*:"
)
"""The beginning of a text of messages, as JSON or as Python's dictionaries."""


_FIELD_REPR = re.compile(r"\w+=(?:'[^']*'|\"[^\"]*\"|\[.*\]) \w+=['\"\[{\w]", re.DOTALL)
"""The beginning of Python's text of an object's fields alone."""
_OPENING = re.compile(r"[\[({<]|(?:\w+\.)*[A-Z]\w*(?:\[[^\]]*\])?\(")
"""The beginning of a text that is a list or one object as a whole."""
_TEXTS = re.compile(r"(?<!\w)(['\"])(?:\\.|(?!\1)[^\\])*\1", re.DOTALL)
"""Texts in Python's text of an object."""
_OBJECT = re.compile(r"(?:^|[\[({,:=]\s*)(?:\w+\.)*[A-Z]\w*(?:\[[^\]]*\])?\(\w+=|<[^<>]+ at 0x|<class ")
"""Python's text of an object whose class has a capital, without the texts in it."""
_CUT = re.compile(r"[\[{]+\s*(?P<quote>['\"])(?:id|index|additional_kwargs|candidates|output|error)(?P=quote)\s*:")
"""The beginning of a text of a response, which was cut off where it can no longer be read."""


def parse_json(value: Any) -> Any:
    """What a text holds, where it is a JSON object or array; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def parse_record(value: Any) -> Any:
    """A conversation or an answer as it was recorded: what a text of it holds, or the text itself.

    Raises:
        Unreadable: It is the text of messages, and cannot be read: it is the text of no message.
    """
    if not isinstance(value, str):
        return value
    content = parse_json(value)
    if not isinstance(content, str):
        return content
    text = value.strip()
    content = literal(text)
    if _is_conversation(content):
        return content
    if isinstance(content, dict) and set(content) & {"ResponseMetadata", "choices", "candidates", "generations"}:
        return content
    if _OBJECTS.match(text) or _FIELDS.match(text) or _REPRS.match(text) or (content is None and _CUT.match(text)):
        raise _REPR
    return value


def is_repr(text: str) -> bool:
    """Whether a text is as a whole Python's text of objects, whole or cut off, such as `Foo(a='x')`: no message has
    such a text.

    Code whose functions are in lower case is none, nor is prose around such a text.
    """
    text = text.strip()
    if not isinstance(parse_json(text), str):
        return False
    if _FIELDS.match(text) or _FIELD_REPR.match(text):
        return True
    if not _OPENING.match(text) or not _OBJECT.search(text := _TEXTS.sub('""', text)):
        return False
    opening, closing = ("<", ">") if text[0] == "<" else ("[({", "])}")
    level = 0
    for at, character in enumerate(text):
        level += (character in opening) - (character in closing)
        if level == 0 and character in closing:
            return at == len(text) - 1
    return True


def literal(text: str) -> Any:
    """The list, tuple or dictionary that a text of Python holds; None: it holds none, or is too large."""
    if text[:1] not in ("[", "{", "(") or len(text) > _LITERAL:
        return None
    level = 0
    for bracket in re.findall(r"[\[({})\]]", text):
        level += 1 if bracket in "[({" else -1
        if level > _LEVELS:
            return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _is_conversation(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("role"), str) or isinstance(value.get("messages"), list) or _is_langchain(value)
    if isinstance(value, tuple):
        return len(value) == 2 and value[0] in {*ROLES, "user", "system", "assistant"}
    return isinstance(value, list) and bool(value) and all(map(_is_conversation, value))


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
    value = parse_record(value)
    if isinstance(value, str):
        if is_repr(value):
            raise _REPR
        return [{"role": "user", "content": value}]
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list) and not _is_pair(value[0]):
        value = value[0]  # LangChain calls a model with a list of conversations
    items = value if isinstance(value, list) and not _is_pair(value) else [value]
    return complete_calls([message for item in items for message in _openai(item)])


def conversation_of(request: Any) -> tuple[list[dict[str, Any]], Any]:
    """The messages of a request: system messages that lie beside the others, and the others in their own form.

    Args:
        request: A conversation, or an object with `messages`, `input` or `prompt`, and `system` or `instructions`.
    """
    if not isinstance(request, dict) or "role" in request:
        return [], request
    system = system_messages(request.get("system") or request.get("instructions"))
    return system, request.get("messages") or request.get("input") or request.get("prompt") or request


def system_messages(instructions: Any) -> list[dict[str, Any]]:
    """What a system prompt beside the messages is among them: a text, or a list of texts or of parts with a text.

    Raises:
        Unreadable: It is something else.
    """
    instructions = parse_json(instructions)
    if not instructions:
        return []
    if isinstance(instructions, dict):
        instructions = instructions.get("parts", [instructions])
    parts = instructions if isinstance(instructions, list) else [instructions]
    texts = [part.get("content", part.get("text")) if isinstance(part, dict) else part for part in parts]
    readable = [text for text in texts if isinstance(text, str)]
    if len(readable) < len(texts):
        raise _NO_MESSAGES
    return [{"role": "system", "content": "\n".join(readable)}]


def answer_of(value: Any) -> dict[str, Any] | None:
    """The answer of a model in OpenAI's form; None: there is none.

    Args:
        value: A text, a message, messages of which the last one of the assistant is the answer, or the response of a
            model: of LangChain, OpenAI, Amazon Bedrock or Gemini.

    Raises:
        Unreadable: It is something else.
    """
    value = parse_record(value)
    if value in (None, "", [], {}):
        return None
    if isinstance(value, str):
        if is_repr(value):
            raise _REPR
        return {"role": "assistant", "content": value}
    if isinstance(value, dict):
        output = value.get("output")
        if any(name in value and not value[name] for name in ("generations", "choices", "candidates")):
            return None
        if generations := value.get("generations"):
            first = generations[0][0] if isinstance(generations[0], list) else generations[0]
            return answer_of(first.get("message") or first.get("text"))
        if choices := value.get("choices"):
            return answer_of(choices[0].get("message") or choices[0].get("text"))
        if candidates := value.get("candidates"):
            return answer_of(candidates[0].get("content"))
        if isinstance(output, dict) and "message" in output:
            return answer_of(output["message"])
        if not {"role", "type", "lc", "parts"} & set(value):
            if isinstance(messages := value.get("messages") or value.get("message"), (list, dict)):
                return answer_of(messages)
            if "content" in value or "tool_calls" in value:
                return answer_of({"role": "assistant", **value})
            ollama, response = {"response", "done"} <= set(value), value.get("object") == "response"
            alone = set(value) <= {"text", "blocks"} or (set(value) == {"error"} and isinstance(value["error"], dict))
            if set(value) & _RESPONSE or ollama or response or alone:
                raise _UNKNOWN_ANSWER
            return {"role": "assistant", "content": as_text(value)}
    answers = [message for message in merge_messages(openai_messages(value)) if message["role"] == "assistant"]
    return answers[-1] if answers else None


def openai_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Definitions of tools in OpenAI's form; those that have no function are left out. None: there are none."""
    definitions = []
    for tool in parse_json(tools) or ():
        tool = parse_json(tool)
        if not isinstance(tool, dict):
            continue
        tool = parse_json(tool.get("toolSpec")) or tool
        schemas = (tool.get(name) for name in ("parameters", "input_schema", "inputSchema", "parameters_json_schema"))
        schema = parse_json(next(filter(None, schemas), None))
        function = parse_json(tool.get("function")) or {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": schema["json"] if isinstance(schema, dict) and set(schema) == {"json"} else schema,
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
    value = parse_record(value)
    if isinstance(value, dict):
        if value.get("lc") == 1:
            message = revive(value)
            if isinstance(message, BaseMessage):
                return _convert_message(message)
            if isinstance(value.get("kwargs"), dict):  # a class of another package: its fields say enough
                return _openai(value["kwargs"])
            raise _NO_MESSAGES
        if value.get("type") in _LANGCHAIN and isinstance(value.get("data"), dict):
            return _openai({**value["data"], "type": value["type"]})
        if isinstance(value.get("parts"), list):
            return _of_parts(value)
        if value.get("type") in ("function_call", "function_call_output", "reasoning"):
            return _of_item(value)
        if value.get("role") is None and value.get("tool_call_id") and "type" not in value:
            value = {**value, "role": "tool"}
        if value.get("content") is None and ("role" in value or value.get("type") in _LANGCHAIN):
            value = _with_content(value)
        if isinstance(value.get("role"), str) and _has_blocks(value.get("content")):
            return _of_blocks(value)
        if isinstance(role := value.get("role"), str) and _plain(value):
            message = {
                key: value[key]
                for key in _FIELDS_OF_MESSAGES
                if value.get(key) is not None or (key == "content" and key in value)
            }
            return [{**message, "role": ROLES.get(role, role), "content": _join_texts(message.get("content"))}]
        if not {"role", "type"} & set(value):
            raise _NO_ROLE if {"content", "tool_calls"} & set(value) else _NO_MESSAGES
        value = {key: item for key, item in value.items() if item is not None or key == "content"}
        value.pop("response_metadata", None)
    elif not isinstance(value, list | tuple):
        raise _NO_MESSAGES
    return _convert_message(tuple(value) if isinstance(value, list) else value)


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    """A message that has no content, with its `text` as content.

    Raises:
        Unreadable: It has no text either, and no calls. A message whose content is null says so itself: it is as it is.
    """
    if isinstance(text := message.get("text"), str):
        return {**message, "content": text}
    kwargs = message.get("additional_kwargs")
    calls = {*message, *(kwargs if isinstance(kwargs, dict) else ())} & {"tool_calls", "function_call"}
    if "content" not in message and not calls:
        raise _NO_CONTENT
    return message


def _plain(message: Mapping[str, Any]) -> bool:
    """Whether a message is in OpenAI's form already."""
    content, calls = message.get("content"), message.get("tool_calls") or ()
    if message.get("function_call"):  # of OpenAI's older form
        return False
    texts = not isinstance(content, list) or all(
        isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text") for part in content
    )
    return texts and all(isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls)


def _join_texts(content: Any) -> Any:
    """The text of a list of text parts."""
    if isinstance(content, list):
        texts = [part.get("text", part.get("content")) for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise _NO_CONTENT
        return "".join(texts)
    return content if content is None or isinstance(content, str) else as_text(content)


def _convert_message(message: Any) -> list[dict[str, Any]]:
    """By LangChain, which knows its own messages and the blocks of the large providers."""
    try:
        if isinstance(message, dict) and not message.get("content"):
            message = {**message, "content": ""}
        messages = to_openai(convert_to_messages([message]))
    except (TypeError, ValueError, KeyError, NotImplementedError):
        raise _NO_MESSAGES from None
    for each in messages:
        parts = each["content"] if isinstance(each["content"], list) else []
        if each["role"] == "remove" or any(part.get("type") not in _PARTS for part in parts):
            raise _NO_MESSAGES
        if each.get("server_tool_calls"):
            raise _SERVER_CALLS
    return messages


def _of_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message of OpenTelemetry's GenAI conventions, or of Gemini."""
    texts, thoughts, calls, answers, others = [], [], [], [], []
    for part in message["parts"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind is None and isinstance(part, dict) and set(part) == {"text"}:
            texts.append(as_text(part["text"]))
        elif kind == "text":
            texts.append(as_text(part.get("content", part.get("text")) or ""))
        elif kind == "reasoning":
            thoughts.append(as_text(part.get("content") or ""))
        elif kind == "tool_call":
            calls.append(tool_call(part.get("id"), part.get("name"), part.get("arguments")))
        elif kind == "tool_call_response":
            response = part["response"] if "response" in part else part.get("result")
            answers.append({"role": "tool", "tool_call_id": part.get("id") or "", "content": as_text(response)})
        else:
            others.append({"type": str(kind)})
    if answers and not (texts or calls or others):
        return answers
    if not isinstance(role := message.get("role"), str):
        raise _NO_ROLE
    whole: dict[str, Any] = {"role": ROLES.get(role, role), "content": "".join(texts)}
    if others:
        whole["content"] = [*({"type": "text", "text": text} for text in texts), *others]
    if thoughts:
        whole["reasoning_content"] = "".join(thoughts)
    if calls:
        whole["tool_calls"] = calls
    return [*answers, whole]


def _has_blocks(content: Any) -> bool:
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(block, dict) and "type" not in block and set(block) & _BLOCKS for block in content)
    )


def _of_blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message of Amazon Bedrock's Converse API, and of agents that keep its form."""
    parts: list[dict[str, Any]] = []
    for block in message["content"]:
        if isinstance(use := block.get("toolUse"), dict):
            call = {"id": use.get("toolUseId"), "name": use.get("name"), "arguments": use.get("input")}
            parts.append({"type": "tool_call", **call})
        elif isinstance(result := block.get("toolResult"), dict):
            content = result.get("content")
            texts = [
                as_text(each.get("text", each.get("json", each)) if isinstance(each, dict) else each)
                for each in (content if isinstance(content, list) else [content])
            ]
            parts.append({"type": "tool_call_response", "id": result.get("toolUseId"), "response": "".join(texts)})
        elif isinstance(thought := block.get("reasoningContent"), dict):
            text = thought.get("reasoningText")
            parts.append({"type": "reasoning", "content": text.get("text") if isinstance(text, dict) else text})
        elif "text" in block:
            parts.append({"type": "text", "content": block["text"]})
        elif "cachePoint" not in block:
            parts.append({"type": next(iter(block))})
    return _of_parts({"role": message["role"], "parts": parts})


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
    if isinstance(arguments, str) and isinstance(parse_json(arguments), str):
        arguments = literal(arguments.strip()) or arguments  # Python's text of a dictionary
    function = {"name": str(name or ""), "arguments": arguments_text(arguments)}
    return {"id": str(id or ""), "type": "function", "function": function}


def merge_messages(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of which no two of the assistant follow one another, where the second only calls tools."""
    results: list[dict[str, Any]] = []
    for message in messages:
        last = results[-1] if results else None
        if last and last["role"] == message["role"] == "assistant" and not message.get("content"):
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            results[-1] = {**last, "tool_calls": calls} if calls else last
        else:
            results.append(message)
    return results
