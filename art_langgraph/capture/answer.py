"""What answers say of themselves: of a chat model, who gave it and under which id; of a tool, its message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage, convert_to_openai_messages
from langgraph.types import Command

from trainer_server.wire import answer_ids


def completion_id(message: BaseMessage) -> str | None:
    """The id under which our gateway recorded an answer; None for answers of other servers.

    Our gateway repeats the id as `system_fingerprint`, which every LangChain version keeps, streaming or not. The
    Responses API and Anthropic's have no such field: there the answer's own id tells.
    """
    if known := gateway_id(message.response_metadata.get("system_fingerprint")):
        return known
    given = (str(message.response_metadata.get("id")), str(message.id))
    others = (answer_ids.completion_id(one) for one in given if not one.startswith(answer_ids.CHAT))
    return next(filter(None, others), None)


def gateway_id(fingerprint: object) -> str | None:
    """A fingerprint, if it is an id of our gateway."""
    return fingerprint if isinstance(fingerprint, str) and fingerprint.startswith(answer_ids.CHAT) else None


def served_version(model: object) -> int | None:
    """The version in the name that our gateway answers under: `policy@version`, or the base model's name."""
    _, at, number = str(model).rpartition("@")
    return int(number) if at and number.isdigit() else None


def from_cache(message: BaseMessage) -> bool:
    """Whether LangChain's cache answered: it marks its answers by a cost of nothing."""
    usage: Any = getattr(message, "usage_metadata", None) or {}
    return bool(usage.get("total_cost") == 0)


def to_openai(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as OpenAI's dicts; content of a kind that OpenAI has no name for is kept as text."""
    try:
        converted = convert_to_openai_messages(messages)
    except (ValueError, KeyError, TypeError):
        converted = [{"role": message.type, "content": message.text} for message in messages]
    return converted if isinstance(converted, list) else [converted]


def tool_messages(output: Any) -> Iterator[ToolMessage]:
    """The tool messages in what a tool returned or a node wrote, also those in commands."""
    if isinstance(output, ToolMessage):
        yield output
    elif isinstance(output, Command):
        yield from tool_messages(output.update)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from tool_messages(item)
    elif messages := output.get("messages") if isinstance(output, Mapping) else getattr(output, "messages", None):
        yield from tool_messages(messages)


def tool_answer(output: Any, call_id: str | None) -> tuple[str, ToolMessage | None]:
    """What a tool answered.

    Args:
        output: What it returned. A command may also have the history that it hands over.
        call_id: Id of the model's tool call; None: unknown.

    Returns:
        The text, and the tool message that has it, if any.
    """
    messages = list(tool_messages(output))
    if answers := [message for message in messages if call_id in (None, message.tool_call_id)]:
        return answers[-1].text, answers[-1]
    if isinstance(output, Command):
        return f"Command(goto={output.goto!r})" if output.goto else "Command", None
    return (output.text if isinstance(output, BaseMessage) else str(output)), None
