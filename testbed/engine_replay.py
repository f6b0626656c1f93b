"""An engine at a GPU's rate: the small engine, whose chat completions are ready-made answers in vLLM's form.

Everything else is answered by `testbed.engine_app`. The last word of the last message is a number; it chooses one of
VARIANTS answers, whose tokens, log-probabilities and prompt are functions of this number: `answer_of`. A request that
does not ask for exact tokens as the gateway must, or for a model that is not loaded, is refused.

As in vLLM, all requests advance together: every STEP seconds each of them gets a token, and a stream an event, or one
in `stream_interval` steps. So an answer of T tokens takes T steps, however many others there are.

`python -m testbed.engine_replay PORT --tokens 256 --prompt 512 --step 0.01` runs it as a process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from testbed.engine_app import event_parts, make_app

VARIANTS = 16
_WORDS = (" the", " sea", " is", " wide", " and", " day", " long", "\n", " réponse", " 你好", ".", " {", '"', " wind")
_EXACT = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
"""What a request must ask for."""


@dataclass(frozen=True, slots=True)
class ReadyAnswer:
    """One answer."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    texts: list[str]
    """Of each token."""

    @property
    def text(self) -> str:
        return "".join(self.texts)


@cache
def answer_of(number: int, tokens: int, prompt: int) -> ReadyAnswer:
    """The answer to a request with this number.

    Args:
        number: Below VARIANTS.
        tokens: Sampled tokens.
        prompt: Tokens of the prompt.
    """
    rng = random.Random(number)
    sampled = [rng.randrange(150_000) for _ in range(tokens)]
    logprobs = [struct.unpack("f", struct.pack("f", -rng.expovariate(2)))[0] for _ in sampled]  # vLLM's are fp32
    ids = [rng.randrange(150_000) for _ in range(prompt)]
    return ReadyAnswer(ids, sampled, logprobs, [_WORDS[token % len(_WORDS)] for token in sampled])


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _usage(answer: ReadyAnswer) -> dict[str, Any]:
    prompt, tokens = len(answer.prompt_token_ids), len(answer.token_ids)
    total = prompt + tokens
    return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": tokens, "prompt_tokens_details": None}


def whole(answer: ReadyAnswer, model: str) -> bytes:
    """The body of an answer that is not streamed, with the fields and nulls of vLLM's."""
    message = {
        "role": "assistant", "content": answer.text, "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "tool_calls": [], "reasoning": None,
    }  # fmt: skip
    choice = {
        "index": 0, "message": message, "logprobs": {"content": list(map(_entry, answer.texts, answer.logprobs))},
        "finish_reason": "length", "stop_reason": None, "token_ids": answer.token_ids,
    }  # fmt: skip
    return _json(
        {
            "id": "chatcmpl-engine", "object": "chat.completion", "created": 1, "model": model, "choices": [choice],
            "service_tier": None, "system_fingerprint": None, "usage": _usage(answer), "prompt_logprobs": None,
            "prompt_token_ids": answer.prompt_token_ids, "kv_transfer_params": None,
        }
    )  # fmt: skip


def events(answer: ReadyAnswer, model: str, interval: int = 1) -> Iterator[bytes]:
    """The events of a streamed answer: the first one before the first token, then those of tokens, and two at the end.

    Args:
        answer: What is streamed.
        model: Who answers.
        interval: As that of `event_parts`.

    Yields:
        For each token an event; an empty one where vLLM sends nothing in this step.
    """
    head = {"id": "chatcmpl-engine", "object": "chat.completion.chunk", "created": 1, "model": model}

    def event(body: dict[str, Any]) -> bytes:
        return b"data: " + _json({**head, **body}) + b"\n\n"

    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    yield event({"choices": [first], "prompt_token_ids": answer.prompt_token_ids})
    for part in event_parts(len(answer.token_ids), interval):
        if part is None:
            yield b""
            continue
        texts = answer.texts[part]
        choice: dict[str, Any] = {
            "index": 0, "delta": {"content": "".join(texts)},
            "logprobs": {"content": list(map(_entry, texts, answer.logprobs[part]))},
            "finish_reason": None, "token_ids": answer.token_ids[part],
        }  # fmt: skip
        if part.stop == len(answer.token_ids):
            choice |= {"finish_reason": "length", "stop_reason": None}
        yield event({"choices": [choice]})
    yield event({"choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


class ReplayEngine:
    """The application.

    Args:
        app: The small engine, whose state has the adapters.
        base: Name of the base model.
        tokens: Sampled tokens of an answer.
        prompt: Tokens of a prompt.
        step: Seconds of a step.
    """

    def __init__(self, app: ASGIApp, base: str, *, tokens: int, prompt: int, step: float) -> None:
        self._app, self._base, self._tokens, self._prompt, self._step = app, base, tokens, prompt, step
        self._tick: asyncio.Future[None] | None = None
        self.whole = cache(lambda number, model: whole(answer_of(number, tokens, prompt), model))
        self.events = cache(lambda number, model, every: list(events(answer_of(number, tokens, prompt), model, every)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/v1/chat/completions":
            await self._app(scope, receive, send)
            return
        message = await receive()
        raw = message["body"]
        while message.get("more_body"):
            message = await receive()
            raw += message["body"]
        body = json.loads(raw)
        number = str(body["messages"][-1]["content"]).rpartition(" ")[2]
        loaded = {self._base, *self._app.state.engine["loaded"]}  # type: ignore[attr-defined]
        if not number.isdecimal() or body["model"] not in loaded or not body.items() >= _EXACT.items():
            await self._app(scope, _once(raw), send)
            return
        if body.get("stream"):
            parts = self.events(int(number) % VARIANTS, body["model"], body.get("stream_interval") or 1)
            await self._stream(parts, send)
        else:
            await asyncio.sleep(self._tokens * self._step)
            await _begin(send, b"application/json")
            answer = self.whole(int(number) % VARIANTS, body["model"])
            await send({"type": "http.response.body", "body": answer})

    async def _stream(self, parts: list[bytes], send: Send) -> None:
        await _begin(send, b"text/event-stream")
        for part in parts[:-2]:
            if part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await self._next_step()
        await send({"type": "http.response.body", "body": b"".join(parts[-2:])})

    async def _next_step(self) -> None:
        """Waits for the next step, which all requests wait for together."""
        if self._tick is None:
            loop = asyncio.get_running_loop()
            self._tick = loop.create_future()
            loop.call_later(self._step, self._end_step, self._tick)
        await asyncio.shield(self._tick)

    def _end_step(self, tick: asyncio.Future[None]) -> None:
        self._tick = None
        tick.set_result(None)


def _once(raw: bytes) -> Receive:
    """A `receive` with a body that was read already."""

    async def receive() -> Message:
        return {"type": "http.request", "body": raw}

    return receive


async def _begin(send: Send, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--base", default="base")
    parser.add_argument("--key", default="")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--step", type=float, default=0.01)
    options = parser.parse_args()
    small = make_app("engine", options.base, options.key)
    app = ReplayEngine(small, options.base, tokens=options.tokens, prompt=options.prompt, step=options.step)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="error", backlog=4096, timeout_keep_alive=600)


if __name__ == "__main__":
    main()
