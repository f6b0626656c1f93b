"""Chunks of chat completions as events of the Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_server.gateway.dialects.base import sse
from trainer_server.gateway.dialects.responses.output import ResponseBody
from trainer_server.gateway.errors import APIError
from trainer_server.wire.completions import CHAT


class _Item:
    """An item of the answer while it is streamed."""

    def __init__(self, at: int, item: dict[str, Any]) -> None:
        self.at, self.item = at, item
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

    def chunk(self, chunk: Mapping[str, Any]) -> bytes:
        """The events of a chunk."""
        return b"".join(self._chunk(chunk))

    def end(self) -> bytes:
        """The events after the last chunk."""
        return b"".join(self._end())

    def failure(self, error: APIError) -> bytes:
        """The event of an error. It has OpenAI's fields of an error event, and `error`, for which clients raise."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return self._event("error", **fields, error=error.body()["error"])

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse(event, name=kind)

    def _chunk(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        if not self._head:
            self._head = {"id": chunk["id"], "model": chunk["model"]}
            response = self._body.response(self._head, [], begun=True)
            yield self._event("response.created", response=response)
            yield self._event("response.in_progress", response=response)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or []:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta") or {}
            if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
                yield from self._reasoning(reasoning)
            if content := delta.get("content"):
                yield from self._text(content, (choice.get("logprobs") or {}).get("content") or [])
            for part in delta.get("tool_calls") or []:
                yield from self._call(part)

    @property
    def _source(self) -> str:
        return str(self._head["id"]).removeprefix(CHAT)

    def _begin(self, item: dict[str, Any]) -> tuple[_Item, bytes]:
        begun = _Item(len(self._items), item)
        self._items.append(begun)
        return begun, self._event("response.output_item.added", output_index=begun.at, item=item)

    def _switch(self, kind: str | None, item: dict[str, Any] | None = None) -> Iterator[bytes]:
        """Ends the open item unless it is of this kind, and begins another one."""
        if self._open is not None and self._open.item["type"] == kind:
            return
        if self._open is not None:
            yield from self._close(self._open)
            self._open = None
        if item is not None:
            self._open, event = self._begin(item)
            yield event

    def _reasoning(self, text: str) -> Iterator[bytes]:
        fresh = self._open is None or self._open.item["type"] != "reasoning"
        yield from self._switch("reasoning", self._body.reasoning(self._source, "", "in_progress"))
        assert self._open is not None
        item, summary = self._open, self._body.summary
        place = {"item_id": item.item["id"], "output_index": item.at}
        if fresh:
            if summary:
                part = {"type": "summary_text", "text": ""}
                yield self._event("response.reasoning_summary_part.added", **place, summary_index=0, part=part)
            part = {"type": "reasoning_text", "text": ""}
            yield self._event("response.content_part.added", **place, content_index=0, part=part)
        item.text += text
        if summary:
            yield self._event("response.reasoning_summary_text.delta", **place, summary_index=0, delta=text)
        yield self._event("response.reasoning_text.delta", **place, content_index=0, delta=text)

    def _text(self, text: str, entries: list[dict[str, Any]]) -> Iterator[bytes]:
        fresh = self._open is None or self._open.item["type"] != "message"
        earlier = sum(item.item["type"] == "message" for item in self._items)
        yield from self._switch("message", self._body.message(self._source, None, [], "in_progress", earlier))
        assert self._open is not None
        item, logprobs = self._open, self._body.text_logprobs(entries)
        place = {"item_id": item.item["id"], "output_index": item.at, "content_index": 0}
        if fresh:
            yield self._event("response.content_part.added", **place, part=self._body.text("", []))
        item.text += text
        item.logprobs += logprobs
        yield self._event("response.output_text.delta", **place, delta=text, logprobs=logprobs)

    def _call(self, part: Mapping[str, Any]) -> Iterator[bytes]:
        function, index = part.get("function") or {}, part["index"]
        if index not in self._calls:
            yield from self._switch(None)
            call = self._body.call(
                self._source, len(self._calls), part.get("id") or "", function.get("name") or "", "", "in_progress"
            )
            self._calls[index], event = self._begin(call)
            yield event
        if arguments := function.get("arguments"):
            item = self._calls[index]
            item.text += arguments
            place = {"item_id": item.item["id"], "output_index": item.at}
            yield self._event("response.function_call_arguments.delta", **place, delta=arguments)

    def _close(self, item: _Item) -> Iterator[bytes]:
        place = {"item_id": item.item["id"], "output_index": item.at}
        kind = item.item["type"]
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
        yield self._event("response.output_item.done", output_index=item.at, item=item.item)

    def _end(self) -> Iterator[bytes]:
        if not self._calls and not any(item.item["type"] == "message" for item in self._items):
            yield from self._empty_message()
        yield from self._switch(None)
        for item in self._calls.values():
            yield from self._close(item)
        output = [item.item for item in self._items]
        response = self._body.response(self._head, output, finish_reason=self._finish_reason, usage=self._usage or {})
        kind = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        yield self._event(kind, response=response)

    def _empty_message(self) -> Iterator[bytes]:
        """An answer without any text has an empty one, as it has without streaming."""
        yield from self._switch("message", self._body.message(self._source, None, [], "in_progress"))
        assert self._open is not None
        place = {"item_id": self._open.item["id"], "output_index": self._open.at, "content_index": 0}
        yield self._event("response.content_part.added", **place, part=self._body.text("", []))
