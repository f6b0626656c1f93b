"""An engine that is no vLLM and no server: it lives in this process and answers with random letters.

What docs/contributing/engine.md says of a new engine, in its smallest form:
`serve --engine tests.support.engines.letters:make`.
A token is a character code, as in the tiny base model of the tests.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_server.engines.base import AdapterLost, AdapterRefused, EngineSettings, Reply, readable
from trainer_server.wire import EngineError

LOGPROB = -math.log(300)
END = "\x03"


def make(settings: EngineSettings) -> list[LettersEngine]:
    return [LettersEngine(settings.base.name)]


@dataclass(frozen=True, slots=True)
class LettersReply:
    completion: dict[str, Any]

    async def whole(self) -> dict[str, Any]:
        return self.completion

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        (choice,) = self.completion["choices"]
        delta = {key: value for key, value in choice.items() if key != "message"}
        yield {**self.completion, "choices": [{**delta, "delta": choice["message"]}]}


class LettersEngine:
    """Always ready between `start` and `stop`: it has nothing that could go away."""

    def __init__(self, base: str) -> None:
        self.url = "letters"
        self.ready = self.resting = False
        self.busy = self.restarts = 0
        self.failure: str | None = None
        self.max_model_len: int | None = 2_000
        self.no_tools: str | None = "letters make no tool calls"
        self.constrains_calls = False
        self.wanted: dict[str, Path] = {}
        self.loaded: dict[str, Path] = {}
        self.asked: list[dict[str, Any]] = []
        self._base = base
        self._random = random.Random(0)

    async def check(self) -> None:
        pass

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        self.ready = True
        progress("letters are ready")

    async def stop(self) -> None:
        self.ready = False

    async def wait_ready(self, timeout: float) -> None:
        if not self.ready:
            raise EngineError("letters are not started")

    @contextmanager
    def occupied(self) -> Iterator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def suspect(self, failure: str | None = None) -> None:
        self.failure = failure

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[None]:
        yield

    async def load(self, name: str, path: Path) -> None:
        if not readable(path):
            raise AdapterRefused(f"letters refused adapter {name}: there is none in {path}")
        self.loaded[name] = path

    async def unload(self, name: str) -> None:
        self.loaded.pop(name, None)

    def chat(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        return self._answer(request, self._render(request["messages"]))

    def complete(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        prompt = request["prompt"]
        return self._answer(request, list(map(ord, prompt)) if isinstance(prompt, str) else prompt)

    @asynccontextmanager
    async def _answer(self, request: Mapping[str, Any], prompt: list[int]) -> AsyncIterator[Reply]:
        if request["model"] != self._base and request["model"] not in self.loaded:
            raise AdapterLost(f"letters do not hold {request['model']}")
        self.asked.append(dict(request))
        text = "".join(self._random.choices("abcdefgh", k=4))
        tokens = [ord(letter) for letter in text]
        entry: dict[str, Any] = {"logprob": LOGPROB, "bytes": None, "top_logprobs": []}
        content = [{"token": letter, **entry} for letter in text]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "logprobs": {"content": content},
            "token_ids": tokens,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens), "total_tokens": 0}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": request["model"], "usage": usage}
        yield LettersReply({**head, "prompt_token_ids": prompt, "choices": [choice]})

    async def render(self, chat: Mapping[str, Any], *, generation: bool) -> list[int]:
        return self._render(chat["messages"])

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        ends = {"assistant": END}
        return [ord(char) for message in messages for char in f"{message['content']}{ends.get(message['role'], '')}"]

    async def tokenize(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def describe(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "ready": self.ready,
            "resting": self.resting,
            "error": self.failure,
            "requests": self.busy,
            "restarts": self.restarts,
            "adapters": sorted(self.loaded),
            "max_model_len": self.max_model_len,
            "tool_parser": None,
            "reasoning_parser": None,
        }
