"""A trainer server at a GPU's rate, as its clients see it: chat completions are ready-made answers, with new ids.

An agent that asks it makes CALLS - 1 calls of the first tool that it has, and then says a text of WORDS words. Each
answer takes SECONDS, however many others there are. Runs that are reported, and leases that are released, are read and
forgotten.

`python -m testbed.gateway_replay PORT --calls 4 --words 200 --seconds 1` runs it as a process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from trainer_server.wire import TracesTaken
from trainer_server.wire.completions import CHAT
from trainer_server.wire.headers import COMPLETION, REQUEST

VERSION = 1
"""Of the policy that answers."""


class ReplayGateway:
    """The application.

    Args:
        calls: Completions of an agent's run.
        words: Of its last one.
        seconds: Of an answer.
    """

    def __init__(self, calls: int, words: int, seconds: float) -> None:
        self._calls, self._seconds = calls, seconds
        self._text = " ".join(["sea"] * words)
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        headers = [(b"content-type", b"application/json"), (REQUEST.encode(), b"rq-replay")]
        if scope["path"] == "/v1/chat/completions":
            await asyncio.sleep(self._seconds)
            answer = self._answer(json.loads(raw))
            headers.append((COMPLETION.encode(), answer["id"].encode()))
        elif scope["path"] == "/api/rollouts/traces":
            answer = TracesTaken().model_dump(mode="json")
        else:
            answer = {"ready": True}
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        completion = f"{CHAT}{next(self._numbers):032x}"
        turn = sum(message["role"] == "tool" for message in body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": self._text, "tool_calls": []}
        if turn < self._calls - 1:
            function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"name": "the sea"}'}
            call = {"id": f"call-{completion}", "type": "function", "function": function}
            message |= {"content": None, "tool_calls": [call]}
        reason = "tool_calls" if message["tool_calls"] else "stop"
        return {
            "id": completion, "object": "chat.completion", "created": 1, "model": f"{body['model']}@{VERSION}",
            "system_fingerprint": completion,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": {"prompt_tokens": 512, "completion_tokens": 256, "total_tokens": 768},
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    app = ReplayGateway(options.calls, options.words, options.seconds)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="error", backlog=4096, timeout_keep_alive=600)


if __name__ == "__main__":
    main()
