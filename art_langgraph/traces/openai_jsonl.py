"""OpenAI's JSON Lines: fine-tuning files, files of the Batch API, stored chat completions.

- A line of a fine-tuning file is a conversation (`messages`, `tools`), or a preference (`input`, `preferred_output`).
- A line of a batch's output has the answer only: its request is in the batch's input, under the same `custom_id`, so
  both files are needed. Requests may be those of chat completions or of responses.
- A stored completion is an answer; its messages are `GET /chat/completions/{id}/messages`, one line each or a page
  (`{"object": "list", "data": […]}`), or lie in the completion as `messages` or `input`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from art_langgraph.traces.grouping import Parts, RunPart
from art_langgraph.traces.messages import merge_messages, openai_messages, openai_tools
from art_langgraph.traces.problems import Unreadable
from art_langgraph.traces.run import ForeignRun, ModelCall

_NO_REQUEST = Unreadable(
    "answers whose request is not in the file",
    "give the batch's input file, or the completion's messages, as another FILE",
)

_AMBIGUOUS = Unreadable("custom_ids with more than one request or answer", "import each batch alone")


def parts(value: Any) -> Parts:
    """A conversation, a request, an answer, or a message of a stored completion."""
    record = dict(value)
    if record.get("object") == "list" and isinstance(record.get("data"), list):
        for item in record["data"]:
            yield partial(parts, item)
    elif "custom_id" in record:
        kind = "answer" if "response" in record else "request"
        yield RunPart({**record, "is": kind}, run=f"batch {record['custom_id']}")
    elif record.get("object") == "chat.completion":
        yield RunPart({"response": {"body": record}, "is": "answer"}, run=str(record["id"]))
    elif "role" in record and isinstance(record.get("id"), str) and "-" in record["id"]:
        completion, _, number = record["id"].rpartition("-")
        yield RunPart({**record, "is": "message", "number": number}, run=completion)
    elif "messages" in record or "preferred_output" in record:
        text = json.dumps(record, sort_keys=True)
        yield RunPart({**record, "is": "conversation"}, run=f"line {hashlib.sha256(text.encode()).hexdigest()}")
    elif "prompt" in record and "completion" in record:
        raise Unreadable("prompts with text completions", "make conversations of them: {'messages': […]}")
    else:
        raise Unreadable(
            "lines that are no conversation, request or answer", "expected 'messages', 'custom_id' or a chat completion"
        )


def run(key: str, parts: Sequence[RunPart]) -> ForeignRun:
    """A conversation, or a request with its answer, as a run."""
    kinds: dict[str, list[dict[str, Any]]] = {"conversation": [], "request": [], "answer": [], "message": []}
    for part in parts:
        kinds[part.record["is"]].append(part.record)
    if kinds["conversation"]:
        foreign = _conversation(kinds["conversation"][0])
        foreign.repeat_lines = [part.line for part in parts[1:]]
        return foreign
    if any("custom_id" in record and record != kind[0] for kind in kinds.values() for record in kind):
        raise _AMBIGUOUS
    request = kinds["request"][0].get("body") or {} if kinds["request"] else {}
    body, error = _body(kinds["answer"][0]) if kinds["answer"] else ({}, None)
    request_body = request or body
    messages_value = (
        request_body.get("messages")
        or request_body.get("input")
        or sorted(kinds["message"], key=lambda each: int(each["number"]))
    )
    if not messages_value:
        raise _NO_REQUEST
    messages = merge_messages(openai_messages(messages_value))
    if instructions := request_body.get("instructions"):
        messages = [{"role": "system", "content": instructions}, *messages]
    creation_time = float(body.get("created") or body.get("created_at") or 0.0)
    call = ModelCall(
        messages=messages,
        answer=_answer(body),
        tools=openai_tools(request_body.get("tools")),
        model=body.get("model") or request_body.get("model"),
        start_time=creation_time,
        error=error,
    )
    if call.answer is None and call.error is None:
        call.error = "there is no answer in the file"
    return ForeignRun(
        source="openai-jsonl",
        id=str(body["id"]) if body.get("id") else None,
        calls=[call],
        error=error,
        start_time=creation_time or None,
        metadata=dict(body.get("metadata") or request.get("metadata") or {}),
    )


def _conversation(record: Mapping[str, Any]) -> ForeignRun:
    """A line of a fine-tuning file. Each answer in it is one of this run, unless its weight is 0."""
    if "preferred_output" in record:
        request_body = record["input"]
        messages = [*openai_messages(request_body["messages"]), *openai_messages(record["preferred_output"])]
        tools = openai_tools(request_body.get("tools"))
    else:
        messages, tools = openai_messages(record["messages"]), openai_tools(record.get("tools"))
    answers = [
        at for at, message in enumerate(messages) if message["role"] == "assistant" and message.get("weight") != 0
    ]
    calls = [ModelCall(messages[:at], messages[at], tools) for at in answers]
    return ForeignRun(
        source="openai-jsonl",
        id=None,
        calls=calls or [ModelCall(messages, None, tools, error="there is no answer in the file")],
    )


def _body(answer: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The response in a line of a batch's output, and what went wrong."""
    response = answer.get("response") or {}
    body = response.get("body") or {}
    problem = answer.get("error") or body.get("error")
    if problem or response.get("status_code", 200) != 200:
        message = problem.get("message") if isinstance(problem, dict) else problem
        return body, str(message or f"HTTP {response.get('status_code')}")
    return body, None


def _answer(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first answer of a chat completion, or the last of a response."""
    if choices := body.get("choices"):
        return openai_messages(choices[0]["message"])[0]
    if items := body.get("output"):
        answers = [message for message in merge_messages(openai_messages(items)) if message["role"] == "assistant"]
        return answers[-1] if answers else None
    return None
