"""Answers of chat completions as those of OpenAI's Responses API, whole and as events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_server.gateway.client_api import sse
from trainer_server.gateway.errors import APIError
from trainer_server.wire.completions import CHAT, RESPONSE, answer_id

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseBody:
    """Makes the objects of one answer.

    Args:
        request: The request, as the client sent it.
        summary: Whether the client wants a summary of the reasoning. It then gets the reasoning itself: nothing here
            could write a shorter one.
        logprobs: Whether the client wants log-probabilities.
    """

    def __init__(self, request: Mapping[str, Any], *, summary: bool, logprobs: bool) -> None:
        self._request, self.summary, self.logprobs = request, summary, logprobs
        self._created = int(time.time())

    def response(
        self,
        answer: Mapping[str, Any],
        output: list[dict[str, Any]],
        *,
        finish_reason: str | None = None,
        usage: Mapping[str, Any] | None = None,
        in_progress: bool = False,
    ) -> dict[str, Any]:
        """The `Response` object.

        Args:
            answer: The chat completion, or a chunk of it.
            output: The items.
            finish_reason: Why the answer ended.
            usage: Of the chat completion.
            in_progress: Whether more of the answer will come.
        """
        fields, incomplete = self._request, _INCOMPLETE.get(finish_reason or "")
        status = "in_progress" if in_progress else "incomplete" if incomplete else "completed"
        return {
            "id": answer_id(answer["id"], RESPONSE),
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": incomplete} if incomplete else None,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "max_tool_calls": fields.get("max_tool_calls"),
            "metadata": fields.get("metadata") or {},
            "model": answer["model"],
            "output": output,
            "parallel_tool_calls": fields.get("parallel_tool_calls", True) is not False,
            "previous_response_id": fields.get("previous_response_id"),
            "reasoning": fields.get("reasoning") or {"effort": None, "summary": None},
            "store": fields.get("store", True) is not False,
            "temperature": 1.0 if fields.get("temperature") is None else fields["temperature"],
            "text": fields.get("text") or {"format": {"type": "text"}},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [],
            "top_logprobs": fields.get("top_logprobs") or 0,
            "top_p": 1.0 if fields.get("top_p") is None else fields["top_p"],
            "truncation": fields.get("truncation") or "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": fields.get("user"),
        }

    def items(self, answer: Mapping[str, Any], choice: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The items of a whole answer."""
        message, source = choice["message"], str(answer["id"]).removeprefix(CHAT)
        items: list[dict[str, Any]] = []
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            items.append(self.reasoning(source, reasoning))
        calls = message.get("tool_calls") or []
        if message.get("content") or not calls:
            entries = (choice.get("logprobs") or {}).get("content") or []
            items.append(self.message(source, message.get("content") or "", self.text_logprobs(entries)))
        items += [
            self.call(source, at, call["id"], call["function"]["name"], call["function"]["arguments"] or "")
            for at, call in enumerate(calls)
        ]
        return items

    def reasoning(self, source: str, text: str, status: str = "completed") -> dict[str, Any]:
        """A reasoning item. source: what follows the prefix in the ids of the answer."""
        return {
            "id": f"rs_{source}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}] if self.summary and text else [],
            "content": [{"type": "reasoning_text", "text": text}] if text else [],
            "status": status,
        }

    def message(
        self, source: str, text: str | None, logprobs: list[dict[str, Any]], status: str = "completed", at: int = 0
    ) -> dict[str, Any]:
        """A message item. text: None: nothing yet. at: how many messages the answer has already."""
        return {
            "id": f"msg_{source}" + (f"_{at}" if at else ""),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [self.text(text, logprobs)],
        }

    def text(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """A part of a message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def call(
        self, source: str, at: int, call_id: str, name: str, arguments: str, status: str = "completed"
    ) -> dict[str, Any]:
        """A function call."""
        return {
            "id": f"fc_{source}_{at}",
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": status,
        }

    def text_logprobs(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Log-probabilities in the form of the Responses API; empty if the client does not want them."""
        if not self.logprobs:
            return []

        def plain(entry: Mapping[str, Any]) -> dict[str, Any]:
            return {"token": entry["token"], "logprob": entry["logprob"], "bytes": entry.get("bytes") or []}

        return [{**plain(entry), "top_logprobs": [plain(top) for top in entry["top_logprobs"]]} for entry in entries]


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cache = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cache, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + completion,
    }


class _Item:
    """An item of the answer while it is streamed."""

    def __init__(self, index: int, item: dict[str, Any]) -> None:
        self.item = item
        self.place = {"item_id": item["id"], "output_index": index}
        self.text = ""
        self.logprobs: list[dict[str, Any]] = []


class ResponseStream:
    """Makes the events of one answer. An item ends when the next one begins, but function calls end together.

    Args:
        body: Makes the objects of the answer.
    """

    def __init__(self, body: ResponseBody) -> None:
        self._body = body
        self._number = 0
        self._head: dict[str, Any] = {}
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._items: list[_Item] = []
        self._open: _Item | None = None
        """The reasoning or message item that text is added to."""
        self._calls: dict[int, _Item] = {}

    def failure(self, error: APIError) -> bytes:
        """The event of an error. It has OpenAI's fields of an error event, and `error`, for which clients raise."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return self._event("error", **fields, error=error.body()["error"])

    def chunk(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        """The events of a chunk."""
        if not self._head:
            self._head = {"id": chunk["id"], "model": chunk["model"]}
            response = self._body.response(self._head, [], in_progress=True)
            yield self._event("response.created", response=response)
            yield self._event("response.in_progress", response=response)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or []:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta") or {}
            if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
                yield from self._add_reasoning(reasoning)
            if content := delta.get("content"):
                yield from self._add_text(content, (choice.get("logprobs") or {}).get("content") or [])
            for part in delta.get("tool_calls") or []:
                yield from self._add_call(part)

    def end(self) -> Iterator[bytes]:
        """The events after the last chunk. An answer without any text has an empty one, as without streaming."""
        if not self._calls and not any(item.item["type"] == "message" for item in self._items):
            yield from self._open_message()
        yield from self._close_open()
        for item in self._calls.values():
            yield from self._close(item)
        output = [item.item for item in self._items]
        response = self._body.response(self._head, output, finish_reason=self._finish_reason, usage=self._usage or {})
        kind = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        yield self._event(kind, response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse(event, name=kind)

    @property
    def _source(self) -> str:
        return str(self._head["id"]).removeprefix(CHAT)

    def _begin(self, item: dict[str, Any]) -> tuple[_Item, bytes]:
        entry = _Item(len(self._items), item)
        self._items.append(entry)
        return entry, self._event("response.output_item.added", output_index=entry.place["output_index"], item=item)

    def _close_open(self) -> Iterator[bytes]:
        if self._open is not None:
            yield from self._close(self._open)
            self._open = None

    def _open_message(self) -> Iterator[bytes]:
        """Begins a message, unless one is open."""
        if self._open is not None and self._open.item["type"] == "message":
            return
        yield from self._close_open()
        count = sum(item.item["type"] == "message" for item in self._items)
        self._open, event = self._begin(self._body.message(self._source, None, [], "in_progress", count))
        yield event
        part = self._body.text("", [])
        yield self._event("response.content_part.added", **self._open.place, content_index=0, part=part)

    def _open_reasoning(self) -> Iterator[bytes]:
        """Begins reasoning, unless it is open."""
        if self._open is not None and self._open.item["type"] == "reasoning":
            return
        yield from self._close_open()
        self._open, event = self._begin(self._body.reasoning(self._source, "", "in_progress"))
        yield event
        if self._body.summary:
            part = {"type": "summary_text", "text": ""}
            yield self._event("response.reasoning_summary_part.added", **self._open.place, summary_index=0, part=part)
        part = {"type": "reasoning_text", "text": ""}
        yield self._event("response.content_part.added", **self._open.place, content_index=0, part=part)

    def _add_reasoning(self, text: str) -> Iterator[bytes]:
        yield from self._open_reasoning()
        assert self._open is not None
        self._open.text += text
        if self._body.summary:
            yield self._event("response.reasoning_summary_text.delta", **self._open.place, summary_index=0, delta=text)
        yield self._event("response.reasoning_text.delta", **self._open.place, content_index=0, delta=text)

    def _add_text(self, text: str, entries: list[dict[str, Any]]) -> Iterator[bytes]:
        yield from self._open_message()
        assert self._open is not None
        logprobs = self._body.text_logprobs(entries)
        self._open.text += text
        self._open.logprobs += logprobs
        fields = {"content_index": 0, "delta": text, "logprobs": logprobs}
        yield self._event("response.output_text.delta", **self._open.place, **fields)

    def _add_call(self, part: Mapping[str, Any]) -> Iterator[bytes]:
        function, index = part.get("function") or {}, part["index"]
        if index not in self._calls:
            yield from self._close_open()
            call = self._body.call(
                self._source, len(self._calls), part.get("id") or "", function.get("name") or "", "", "in_progress"
            )
            self._calls[index], event = self._begin(call)
            yield event
        if arguments := function.get("arguments"):
            item = self._calls[index]
            item.text += arguments
            yield self._event("response.function_call_arguments.delta", **item.place, delta=arguments)

    def _close(self, item: _Item) -> Iterator[bytes]:
        place, kind = item.place, item.item["type"]
        if kind == "reasoning":
            item.item = self._body.reasoning(self._source, item.text)
            if self._body.summary:
                yield self._event("response.reasoning_summary_text.done", **place, summary_index=0, text=item.text)
                part = item.item["summary"][0]
                yield self._event("response.reasoning_summary_part.done", **place, summary_index=0, part=part)
            yield self._event("response.reasoning_text.done", **place, content_index=0, text=item.text)
            part = item.item["content"][0]
            yield self._event("response.content_part.done", **place, content_index=0, part=part)
        elif kind == "message":
            part = self._body.text(item.text, item.logprobs)
            item.item = {**item.item, "status": "completed", "content": [part]}
            fields = {"text": item.text, "logprobs": item.logprobs}
            yield self._event("response.output_text.done", **place, content_index=0, **fields)
            yield self._event("response.content_part.done", **place, content_index=0, part=part)
        else:
            item.item = {**item.item, "status": "completed", "arguments": item.text}
            fields = {"name": item.item["name"], "arguments": item.text}
            yield self._event("response.function_call_arguments.done", **place, **fields)
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item.item)
