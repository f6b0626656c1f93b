"""What a chat model's answer says of itself: who gave it, and under which id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_openai_messages


def completion_id(message: BaseMessage) -> str | None:
    """The id under which our gateway recorded an answer; None for answers of other servers.

    Our gateway repeats the id as `system_fingerprint`, which every LangChain version keeps, streaming or not.
    """
    return gateway_id(message.response_metadata.get("system_fingerprint"))


def gateway_id(fingerprint: object) -> str | None:
    """A fingerprint, if it is an id of our gateway."""
    return fingerprint if isinstance(fingerprint, str) and fingerprint.startswith("chatcmpl-") else None


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
