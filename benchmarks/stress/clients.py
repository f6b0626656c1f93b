"""Programs that roll out at once. Some leave in the middle of an answer; all keep receipts of what they saw."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import ssl
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.stress.books import Receipt
from testbed.server_process import KEY
from trainer_server.wire.headers import COMPLETION, ROLLOUT

HEADERS = {"Authorization": f"Bearer {KEY}"}
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath")
_PLAIN = ssl.create_default_context()
"""httpx would read the system's certificates for each client, 50 ms each."""


def client(url: str, timeout: float = 120.0) -> httpx.AsyncClient:
    """A client with connections of its own, as another program would have."""
    return httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=timeout, verify=_PLAIN)


def chat(model: str, messages: list[dict[str, Any]], *, stream: bool, tokens: int = 100) -> dict[str, Any]:
    """A request for an answer with its tokens; tokens: at most so many."""
    return {
        "model": model, "messages": messages, "stream": stream, "max_tokens": tokens, "return_token_ids": True,
    }  # fmt: skip


def received(headers: Mapping[str, str], body: dict[str, Any], receipt: Receipt) -> str:
    """Notes a whole answer on its receipt; returns its text."""
    choice = body["choices"][0]
    receipt.id, receipt.tokens, receipt.whole = headers.get(COMPLETION, body["id"]), choice["token_ids"], True
    return str(choice["message"]["content"])


@dataclass(frozen=True, slots=True)
class Speech:
    """How clients ask the small engine. A real model takes the same words as a question.

    Args:
        before: Seconds before an answer that is not streamed.
        pace: Seconds before each token of a stream.
        tokens: Limit of an answer.
    """

    before: float = 0.05
    pace: float = 0.005
    tokens: int = 100

    def text(self, name: str, rng: random.Random, *, stream: bool) -> str:
        """What a request says; the answer repeats the name, so that answers cannot be mistaken for one another."""
        words = " ".join(rng.choices(_WORDS, k=rng.randint(1, 4)))
        how = f"paced {self.pace}" if stream else f"after {self.before}"
        return f"{how} turn say {name} {words}"


class Clients:
    """Rolls out until it is told to stop: rollouts of one to three turns, half of the answers streamed.

    Args:
        url: The server.
        model: The policy that is asked.
        name: Begins the ids of the rollouts.
        leaving: Share of the rollouts whose client leaves in the middle of an answer.
        patience: Seconds after which an answer that has not come counts as failed.
        speech: How they ask.

    Attributes:
        receipts: Of all requests.
        sent: Requests that were sent.
        rollouts: Rollouts that were begun.
        answered: Requests that were answered to their end.
        left: Requests whose client left.
        refused: Answers with status 429.
        errors: Failures that are not the clients' own, by what was said.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        name: str = "r",
        leaving: float = 1 / 3,
        patience: float = 120.0,
        speech: Speech | None = None,
    ) -> None:
        self._url, self._model, self._name = url, model, name
        self._leaving, self._patience, self._speech = leaving, patience, speech or Speech()
        self._stopped = asyncio.Event()
        self.receipts: list[Receipt] = []
        self.sent = self.answered = self.left = self.refused = self.rollouts = 0
        self.errors: Counter[str] = Counter()

    async def run(self, at_once: int) -> None:
        """Rolls out, `at_once` rollouts at a time, until `stop`. Rollouts that have begun are finished."""
        await asyncio.gather(*(self._work(number) for number in range(at_once)))

    def stop(self) -> None:
        """Ends `run` when the rollouts that have begun are finished."""
        self._stopped.set()

    async def _work(self, number: int) -> None:
        rng = random.Random(f"{self._name}-{number}")
        async with client(self._url, self._patience) as http:
            for at in itertools.count():
                if self._stopped.is_set():
                    return
                self.rollouts += 1
                if not await self._roll_out(http, f"{self._name}-{number}-{at}", rng):
                    await asyncio.sleep(rng.uniform(0.1, 0.5))

    async def _roll_out(self, http: httpx.AsyncClient, rollout: str, rng: random.Random) -> bool:
        """One rollout. Returns whether the server answered as it should."""
        turns = rng.randint(1, 3)
        last = rng.randrange(turns) if rng.random() < self._leaving else None
        messages: list[dict[str, Any]] = []
        for turn in range(turns):
            stream = rng.random() < 0.5
            text = self._speech.text(f"{rollout}.{turn}", rng, stream=stream)
            messages.append({"role": "user", "content": text})
            receipt = Receipt(text)
            self.receipts.append(receipt)
            self.sent += 1
            try:
                content = await self._ask(http, rollout, messages, receipt, rng if turn == last else None, stream)
            except httpx.HTTPError as error:
                return self._failed(repr(error))
            except _Refused as refused:
                if refused.status == 429:
                    self.refused += 1
                    return False
                return self._failed(str(refused))
            if content is None:
                self.left += 1
                return True
            self.answered += 1
            messages.append({"role": "assistant", "content": content})
        try:
            (await http.delete(f"/api/rollouts/{rollout}")).raise_for_status()
        except httpx.HTTPError as error:
            return self._failed(repr(error))
        return True

    async def _ask(
        self,
        http: httpx.AsyncClient,
        rollout: str,
        messages: list[dict[str, Any]],
        receipt: Receipt,
        leaves: random.Random | None,
        stream: bool,
    ) -> str | None:
        """The answer's text; None: the client left. leaves: when it does; None: it stays."""
        body = chat(self._model, messages, stream=stream, tokens=self._speech.tokens)
        headers = {ROLLOUT: rollout}
        if stream:
            return await _streamed(http, body, headers, receipt, leaves.randint(1, 25) if leaves else None)
        try:
            async with asyncio.timeout(leaves.expovariate(10) if leaves else None):
                answer = await http.post("/v1/chat/completions", json=body, headers=headers)
        except TimeoutError:
            return None
        if answer.status_code != 200:
            raise _Refused(answer.status_code, answer.text)
        return received(answer.headers, answer.json(), receipt)

    def _failed(self, why: str) -> bool:
        self.errors[why[:200]] += 1
        return False


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


async def _streamed(
    http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str], receipt: Receipt, events: int | None
) -> str | None:
    """The text of a streamed answer; None: the client left after so many events."""
    text, ended = "", False
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise _Refused(answer.status_code, (await answer.aread()).decode())
        receipt.id = answer.headers[COMPLETION]
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise _Refused(500, line)
            for choice in chunk["choices"]:
                receipt.tokens += choice.get("token_ids") or []
                text += choice["delta"].get("content") or ""
            if events is not None:
                events -= 1
                if events <= 0:
                    return None
    if not ended:
        raise _Refused(500, "the stream ended without [DONE]")
    receipt.whole = True
    return text
