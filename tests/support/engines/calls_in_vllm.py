"""Run by vLLM's Python, with the plugins on its path: prints how vLLM reads answers with the parser `json_calls`.

Its arguments are answers. For each a line of JSON: text and calls of the whole answer, and of its stream, of which each
event has a character.
"""

from __future__ import annotations

import json
import sys
from typing import Any


class Tokenizer:
    def get_vocab(self) -> dict[str, int]:
        return {}


def main() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "Oslo?"}], tools=[tool])
    parser: Any = ParserManager.get_parser(tool_parser_name="json_calls", enable_auto_tools=True)
    for answer in sys.argv[1:]:
        _, text, calls = parser(Tokenizer(), request.tools).parse(answer, request, enable_auto_tools=True)
        whole = [text or "", [[call.name, call.arguments] for call in calls or ()]]
        reader = parser(Tokenizer(), request.tools)
        events = [(piece, False) for piece in answer] + [("", True)]
        deltas = [
            reader.parse_delta(piece, [1], request, prompt_token_ids=[1], finished=last) for piece, last in events
        ]
        deltas = [delta for delta in deltas if delta]
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert [call.index for call in calls] == list(range(len(calls)))
        assert all(call.id for call in calls)
        functions = [[call.function.name, call.function.arguments] for call in calls]
        print(json.dumps([whole, ["".join(delta.content or "" for delta in deltas), functions]]))


if __name__ == "__main__":
    main()
