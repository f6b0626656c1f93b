"""`--tool-call-parser json_calls`: `art_json_calls` as vLLM takes a parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art_json_calls import Call, CallReader
from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.tool_parsers.abstract_tool_parser import ToolParser


class JSONCalls(ToolParser):  # type: ignore[misc]  # vLLM is not in .venv
    """One instance reads one answer where it is streamed, and any number of whole ones."""

    engine_based_streaming = True  # vLLM then calls `finish_streaming`, which gives what was held back

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._reader: CallReader | None = None
        self._calls = 0

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        text, calls = _reader(request).feed(model_output, last=True)
        return ExtractedToolCallInformation(
            tools_called=bool(calls), tool_calls=[_tool_call(call) for call in calls], content=text or None
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        self._reader = self._reader or _reader(request)
        return self._delta(*self._reader.feed(delta_text))

    def finish_streaming(self) -> DeltaMessage | None:
        """What was held back, when the answer has ended."""
        return self._delta(*self._reader.feed("", last=True)) if self._reader else None

    def _delta(self, text: str, calls: list[Call]) -> DeltaMessage | None:
        if not text and not calls:
            return None
        deltas = []
        for call in map(_tool_call, calls):
            function = DeltaFunctionCall(name=call.function.name, arguments=call.function.arguments)
            deltas.append(DeltaToolCall(id=call.id, type="function", index=self._calls, function=function))
            self._calls += 1
        return DeltaMessage(content=text or None, tool_calls=deltas)


def _reader(request: Any) -> CallReader:
    tools = [] if request.tool_choice == "none" else request.tools or []
    return CallReader({getattr(tool, "function", tool).name for tool in tools})


def _tool_call(call: Call) -> ToolCall:
    name, arguments = call
    return ToolCall(function=FunctionCall(name=name, arguments=arguments))
