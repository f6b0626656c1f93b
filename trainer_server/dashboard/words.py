"""The words of a task, and its messages, whatever form the input of its scenario has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_server.common.run_tree import call_line
from trainer_server.wire import Completion

_PEOPLE = ("user", "human")
_NAMES = ("question", "task", "query", "instruction", "prompt", "input", "request")
_LONGEST = 2_000


def task_messages(task: Any) -> list[tuple[str, str]]:
    """Role and text of each message of a task; empty: it has another form.

    Args:
        task: Input of a scenario: a text, or the state of a graph with `messages`, which LangChain takes as a text, as
            a list of texts, of (role, text), and of mappings.
    """
    messages = task.get("messages") if isinstance(task, Mapping) else task
    if isinstance(messages, str):
        return [("user", messages)]
    if not isinstance(messages, list):
        return []
    pairs = [_message(message) for message in messages]
    return [pair for pair in pairs if pair] if all(pairs) else []


def task_words(task: Any) -> str:
    """The words of a task on one line: of its last message by a user, else of the field that names a question, else
    its only text, else all fields, else JSON; of them the first 2,000 characters. Empty: the task is not known."""
    messages = task_messages(task)
    if messages:
        by_people = [text for role, text in messages if role in _PEOPLE]
        words = by_people[-1] if by_people else messages[-1][1]
    elif isinstance(task, Mapping):
        texts = {name: text if isinstance(text, str) else _json(text) for name, text in task.items()}
        named = [texts[name] for name in _NAMES if isinstance(task.get(name), str)]
        if not named and len(task) == 1:
            named = [text for text in task.values() if isinstance(text, str)] or [_json(task)]
        words = named[0] if named else ", ".join(f"{name}: {text}" for name, text in texts.items())
    else:
        words = "" if task is None else _json(task)
    return " ".join(words[: 2 * _LONGEST].split())[:_LONGEST]


def first_request(completions: Sequence[Completion]) -> Any:
    """The messages, or the prompt, of the first request of a run; None: there is none."""
    request = completions[0].request if completions else {}
    return request.get("messages") or request.get("prompt")


def _message(message: Any) -> tuple[str, str] | None:
    if isinstance(message, str):
        return "user", message
    if isinstance(message, list) and len(message) == 2:
        role, content = message
    elif isinstance(message, Mapping):
        values = message["kwargs"] if isinstance(message.get("kwargs"), Mapping) else message
        role, content = values.get("role") or values.get("type"), values.get("content")
        calls = values.get("tool_calls")
        if not content and isinstance(calls, list) and calls:
            content = "\n".join(f"→ {call_line(call)}" for call in calls)
    else:
        return None
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        content = "\n".join(part for part in parts if isinstance(part, str)) or _json(content)
    return (role, content) if isinstance(role, str) and isinstance(content, str) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
