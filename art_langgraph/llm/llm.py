"""LLM: typed answers of a chat model behind litellm, an OpenAI-compatible endpoint, or our own gateway."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from art_langgraph.llm.cache import AnswerCache, question
from art_langgraph.llm.faults import REMEDY, Fault, fault_of
from art_langgraph.llm.modes import MODES, Message, Mode, T, parse, refusal, request, said
from art_langgraph.llm.target import Target, find_target, load_litellm
from trainer_server.wire import ConfigError, LLMError

log = logging.getLogger("art_langgraph")

_works: dict[tuple[str, str | None], Mode] = {}
"""The way of asking that last gave an answer, by model and address."""
_TIMES_PER_MODE = 2
"""Malformed answers before a model is asked in another way."""


@dataclass(slots=True)
class Usage:
    """calls: requests sent. retries: those that followed a failure. cached: answers from disk. cost: USD; None as soon
    as the price of one answer is unknown."""

    calls: int = 0
    retries: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0

    def __str__(self) -> str:
        cost = "cost unknown" if self.cost is None else f"{self.cost:.4f} USD"
        tokens = f"{self.prompt_tokens} + {self.completion_tokens} tokens"
        return f"{self.calls} calls ({self.retries} retries, {self.cached} from the cache), {tokens}, {cost}"


def total_cost(usages: Iterable[Usage]) -> float | None:
    """USD of all of them together; None where the price of an answer is unknown."""
    prices = [one.cost for one in usages]
    return None if None in prices else sum(price for price in prices if price is not None)


class LLM:
    """A chat model that answers with values of pydantic models.

    model: "provider/name" as litellm has it; any name with `base_url`, an OpenAI-compatible endpoint; or "art/agent@3",
    "art/agent", "art/base" for a policy version, a policy or the base model of our own server, whose address and key
    are found as TrainerClient's. api_key: without it, the provider's environment variable; an address that you name
    gets no key from the environment. temperature: None leaves it to the provider. timeout: seconds for one request.
    retries: after malformed answers, 429, 5xx, timeouts and lost connections. backoff: seconds before the first
    retry, doubled each time; max_wait: the longest wait, also when a server's Retry-After asks for more. cache: a file,
    True for the one under ART_HOME, or None; what a policy's newest version says is never kept.
    What is asked here belongs to no rollout: no trajectory records it.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        timeout: float = 120.0,
        retries: int = 4,
        backoff: float = 1.0,
        max_wait: float = 60.0,
        max_concurrency: int = 8,
        cache: Path | Literal[True] | None = True,
    ) -> None:
        if retries < 0 or max_concurrency < 1 or timeout <= 0:
            raise ConfigError(f"{retries=}, {max_concurrency=}, {timeout=}: expected at least 0, at least 1, above 0")
        self.model = model
        self.usage = Usage()
        self._base_url, self._api_key = base_url, api_key
        self._options = {"temperature": temperature, "max_tokens": max_tokens}
        self._timeout, self._retries, self._backoff, self._max_wait = timeout, retries, backoff, max_wait
        self._max_concurrency = max_concurrency
        self._cache = AnswerCache(None if cache is True else cache) if cache else None
        self._limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._found: Target | None = None

    async def ask(
        self, messages: Sequence[Message], answer: type[T], *, check: Callable[[T], None] | None = None, sample: int = 0
    ) -> T:
        """One answer, as a value of `answer`.

        check: raises ValueError for a value that cannot be used; the model is told why and asked again. sample: tells
        several answers to one question apart in the cache. Raises LLMError, and ConfigError for an unknown provider.
        """
        target = self._found = self._found or await find_target(self.model, self._base_url, self._api_key)
        asked: list[Message] = [dict(one) for one in messages]
        facts = {"model": target.model, "url": target.base_url, "messages": asked, **self._options, "sample": sample}
        digest = question({**facts, "schema": answer.model_json_schema()})
        cache = self._cache if target.fixed else None
        if cache and (kept := await asyncio.to_thread(cache.get, digest)) is not None:
            try:
                value = _checked(kept, answer, check)
            except ValueError:
                log.debug("a kept answer no longer passes its check: %s", digest)
            else:
                self.usage.cached += 1
                return value
        async with self._limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrency)):
            value = await self._until_good(target, asked, answer, check)
        if cache:
            await asyncio.to_thread(cache.put, digest, value.model_dump_json())
        return value

    async def _until_good(
        self, target: Target, messages: list[Message], answer: type[T], check: Callable[[T], None] | None
    ) -> T:
        where = (target.model, target.base_url)
        mode = _works.get(where, MODES[0])
        correction: list[Message] = []
        malformed = failures = 0
        while True:
            found = await self._once(target, request(mode, [*messages, *correction], answer))
            if isinstance(found, Fault):
                fault = found
            else:
                try:
                    value = _checked(found, answer, check)
                except ValueError as error:
                    correction = _correction(found, str(error))
                    fault = Fault("malformed", f"{error}; it said: {found[:200]!r}", again=True)
                else:
                    _works[where] = mode
                    return value
            if fault.other_mode and mode != MODES[-1]:
                mode, correction = _next(mode), []
                continue
            failures += 1
            if not fault.again or failures > self._retries:
                times = f" after {failures} requests" if failures > 1 else ""
                text = f"{self.model}: {fault.kind}{times}: {fault.message}. Remedy: {REMEDY[fault.kind]}"
                raise LLMError(text, kind=fault.kind)
            self.usage.retries += 1
            if fault.kind != "malformed":
                await self._pause(fault, failures)
                continue
            malformed += 1
            if malformed % _TIMES_PER_MODE == 0 and mode != MODES[-1]:
                mode, correction = _next(mode), []

    async def _once(self, target: Target, body: dict[str, Any]) -> str | Fault:
        """What the model says to one request, or what went wrong."""
        litellm = await load_litellm()
        self.usage.calls += 1
        try:
            async with asyncio.timeout(self._timeout):
                response = await litellm.acompletion(
                    model=target.model, base_url=target.base_url, api_key=target.api_key, timeout=self._timeout,
                    max_retries=0, num_retries=0, **body, **{k: v for k, v in self._options.items() if v is not None},
                )  # fmt: skip
            choice = response.choices[0]
        except TimeoutError:
            return Fault("timeout", f"no answer within {self._timeout:g} s", again=True)
        except Exception as error:  # the edge to a foreign host and to litellm, whose errors are of many classes
            return fault_of(error)
        self._count(target, response)
        if why := refusal(choice.message, choice.finish_reason):
            return Fault("refused", why)
        if choice.finish_reason == "length":
            return Fault("malformed", "the answer was cut off at the length limit: raise max_tokens=…", again=True)
        return said(choice.message)

    def _count(self, target: Target, response: Any) -> None:
        usage = getattr(response, "usage", None)
        self.usage.prompt_tokens += getattr(usage, "prompt_tokens", None) or 0
        self.usage.completion_tokens += getattr(usage, "completion_tokens", None) or 0
        price = 0.0 if target.own else response._hidden_params.get("response_cost")
        self.usage.cost = None if price is None or self.usage.cost is None else self.usage.cost + float(price)

    async def _pause(self, fault: Fault, failures: int) -> None:
        """Waits as long as the server asked for, or a random part of a time that doubles. Raises LLMError."""
        if fault.wait is not None and fault.wait > self._max_wait:
            raise LLMError(
                f"{self.model}: {fault.kind}: the server asks to wait {fault.wait:.0f} s, longer than "
                f"max_wait={self._max_wait:g}: {fault.message}",
                kind=fault.kind,
            )
        longest = min(self._backoff * 2 ** (failures - 1), self._max_wait)
        await asyncio.sleep(fault.wait if fault.wait is not None else longest * random.uniform(0.5, 1.0))


def _next(mode: Mode) -> Mode:
    return MODES[MODES.index(mode) + 1]


def _checked(text: str, answer: type[T], check: Callable[[T], None] | None) -> T:
    value = parse(text, answer)
    if check:
        check(value)
    return value


def _correction(found: str, why: str) -> list[Message]:
    return [
        {"role": "assistant", "content": found[:4000] or "(nothing)"},
        {"role": "user", "content": f"That answer cannot be used: {why}. Answer again, as asked at first."},
    ]
