"""LLM: typed answers of a model from litellm, an OpenAI-compatible endpoint, our own gateway, or LangChain."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseChatModel
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
)

from art_langgraph.capture.scope import suspend_recording
from art_langgraph.llm.cache import AnswerCache, question
from art_langgraph.llm.chat_models import ChatModel
from art_langgraph.llm.faults import REMEDY, Fault, fault_of
from art_langgraph.llm.modes import MODES, Message, Mode, T, parse
from art_langgraph.llm.spending import add_price
from art_langgraph.llm.target import Reply, Target, check_litellm, find_target
from trainer_server.wire import ConfigError, LLMError
from trainer_server.wire.text import beginning, writable

log = logging.getLogger("art_langgraph")

_works: dict[str, Mode] = {}
"""The mode that last gave an answer, by endpoint."""
_TIMES_PER_MODE = 2
"""How many malformed answers a mode may give before the next mode is tried."""


@dataclass(slots=True)
class Usage:
    """Calls, tokens and cost of a model."""

    calls: int = 0
    """Requests sent."""
    retries: int = 0
    """Requests that followed a failure."""
    cached: int = 0
    """Answers from the cache."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    """USD; None as soon as the price of an answer is unknown."""

    def __str__(self) -> str:
        cost = "cost unknown" if self.cost is None else f"{self.cost:.4f} USD"
        tokens = f"{self.prompt_tokens} + {self.completion_tokens} tokens"
        return f"{self.calls} calls ({self.retries} retries, {self.cached} from the cache), {tokens}, {cost}"

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.retries + other.retries,
            self.cached + other.cached,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            total_cost([self, other]),
        )

    def add(self, reply: Reply) -> None:
        """Adds the tokens and the price of an answer."""
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cost = None if reply.price is None or self.cost is None else self.cost + reply.price


def total_cost(usages: Iterable[Usage]) -> float | None:
    """Sum of costs in USD; None where the price of an answer is unknown."""
    prices = [usage.cost for usage in usages]
    return None if None in prices else sum(price for price in prices if price is not None)


class LLM:
    """A chat model that answers with values of pydantic models.

    Its calls belong to no rollout, and no trajectory records them.

    Args:
        model: "provider/name" as litellm has it; any name with `base_url`, an OpenAI-compatible endpoint;
            "art/agent@3", "art/agent", "art/base" for a policy version, a policy or the base model of our own server,
            whose address and key are those of TrainerClient; or a LangChain chat model, whose own retries come before
            those here.
        base_url: Address of an OpenAI-compatible endpoint.
        api_key: Key; None: the provider's environment variable. An address that you name gets no key from the
            environment.
        temperature: Sampling temperature; None: the provider's default.
        max_tokens: Most tokens of an answer; None: the provider's default.
        timeout: Seconds for a request.
        retries: How often a request is repeated after malformed answers, 429, 5xx, timeouts and lost connections.
        backoff: Seconds before the first retry, doubled for each further retry. The actual wait is a random time
            between half of it and all of it.
        max_wait: Longest wait in seconds, also when a server's Retry-After asks for more.
        max_concurrency: Requests at once.
        cache: A file; True: the file under ART_CACHE; None: no cache. Answers of a policy's newest version are never
            cached, nor those of a chat model that LangChain cannot serialise.

    Raises:
        ConfigError: A number is out of range, an option is given that must be set on the chat model itself, or litellm
            is not installed, which models with a name need.
    """

    def __init__(
        self,
        model: str | BaseChatModel,
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
        self._options = {"temperature": temperature, "max_tokens": max_tokens}
        self._target: Target | None = None
        if isinstance(model, BaseChatModel):
            options = {"base_url": base_url, "api_key": api_key, **self._options}
            if wrong := [name for name, value in options.items() if value is not None]:
                raise ConfigError(f"{', '.join(wrong)}: set it on the chat model itself, {type(model).__name__}(…)")
            self._target = ChatModel(model)
            self.model = self._target.name
        else:
            check_litellm(model)  # now, rather than after the runs that it shall judge
            self.model = model
        self.usage = Usage()
        self._base_url, self._api_key = base_url, api_key
        self._timeout, self._retries, self._backoff, self._max_wait = timeout, retries, backoff, max_wait
        self._max_concurrency = max_concurrency
        self._cache = AnswerCache(None if cache is True else cache) if cache else None
        self._limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    @classmethod
    def of(cls, model: Model) -> LLM:
        """An LLM for a litellm name or a LangChain chat model, with default options; an LLM is returned as it is."""
        return model if isinstance(model, LLM) else cls(model)

    async def ask(
        self, messages: Sequence[Message], answer: type[T], *, check: Callable[[T], None] | None = None, sample: int = 0
    ) -> T:
        """Asks the model, and parses its answer.

        Args:
            messages: The conversation, in OpenAI's format.
            answer: Class of the answer.
            check: Raises ValueError for a value that cannot be used; the model gets the reason, and is asked again.
            sample: Number of the answer. The cache keeps an answer for each number, so that a question can have
                several.

        Returns:
            The answer, as a value of `answer`.

        Raises:
            LLMError: There was no usable answer; its `kind` says why.
            ConfigError: No provider is known for the model's name.
        """
        if (target := self._target) is None:
            target = self._target = await find_target(self.model, self._base_url, self._api_key, self._options)
        conversation: list[Message] = [_writable(message) for message in messages]
        cache, digest = self._cache, ""
        if cache and (identity := target.identity) is not None:
            digest = question(
                {**identity, "messages": conversation, "sample": sample, "schema": answer.model_json_schema()}
            )
            if (text := await asyncio.to_thread(cache.get, digest)) is not None:
                try:
                    value = _parse_answer(text, answer, check)
                except ValueError:
                    log.debug("a kept answer no longer passes its check: %s", digest)
                else:
                    self.usage.cached += 1
                    return value
        async with self._limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrency)):
            value = await self._ask_with_retries(
                _Dialogue(target, conversation, answer, check, self._timeout, self.usage)
            )
        if cache and digest:
            await asyncio.to_thread(cache.put, digest, value.model_dump_json())
        return value

    async def _ask_with_retries(self, dialogue: _Dialogue[T]) -> T:
        """Asks until the answer is good. Raises LLMError."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(self._may_pass),
            stop=stop_after_attempt(self._retries + 1),
            wait=self._wait,
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            return await retrying(dialogue.ask_once)
        except Fault as fault:
            times = int(retrying.statistics["attempt_number"])
            text = f"{fault.kind}{f' after {times} requests' if times > 1 else ''}: {fault.message}"
            if self._asks_too_much(fault) and times <= self._retries:
                reason = f"the server asks to wait {fault.wait:.0f} s, longer than max_wait={self._max_wait:g}"
                text = f"{fault.kind}: {reason}: {fault.message}"
            raise LLMError(f"{self.model}: {text.rstrip('.')}. Remedy: {REMEDY[fault.kind]}", kind=fault.kind) from None

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, Fault) and error.again and not self._asks_too_much(error)

    def _asks_too_much(self, fault: Fault) -> bool:
        return fault.wait is not None and fault.wait > self._max_wait

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before a retry: what the server asked for, else a random backoff; 0 after a malformed answer."""
        fault = _fault(state)
        if fault.wait is not None:
            return fault.wait
        if fault.kind == "malformed":
            return 0.0
        longest = wait_exponential(multiplier=self._backoff, max=self._max_wait)(state)
        return float(longest) * random.uniform(0.5, 1.0)

    def _count_retry(self, _state: RetryCallState) -> None:
        self.usage.retries += 1


Model = str | LLM | BaseChatModel
"""A language model: a litellm name ("provider/name"), an LLM, or a LangChain chat model."""


@dataclass(slots=True)
class _Dialogue(Generic[T]):
    """A question, with the state of its retries."""

    target: Target
    messages: list[Message]
    answer: type[T]
    check: Callable[[T], None] | None
    timeout: float
    usage: Usage
    malformed_count: int = 0
    correction: list[Message] = field(default_factory=list)
    """Messages with the last malformed answer, and what was wrong with it."""
    mode: Mode = MODES[0]

    def __post_init__(self) -> None:
        self.mode = _works.get(self.target.endpoint, self.mode)

    async def ask_once(self) -> T:
        """Asks until the endpoint accepts a mode, and returns a valid answer. Raises Fault."""
        while True:
            try:
                text = await self._request()
                break
            except Fault as fault:
                if fault.kind == "malformed":
                    self._after_malformed([])
                if not fault.other_mode or not self._take_next_mode():
                    raise
        try:
            value = _parse_answer(text, self.answer, self.check)
        except ValueError as error:
            self._after_malformed(_correction(text, str(error)))
            raise Fault("malformed", f"{error}; it said: {beginning(text, 200)!r}", again=True) from None
        _works[self.target.endpoint] = self.mode
        return value

    async def _request(self) -> str:
        """Sends a request and returns the text of the answer. Raises Fault."""
        await self.target.load()  # takes seconds at first, which must not count against the timeout
        self.usage.calls += 1
        conversation = [*self.messages, *self.correction]
        try:
            async with asyncio.timeout(self.timeout):
                with (
                    suspend_recording()
                ):  # what is asked inside of a rollout is no part of it, whichever client sends it
                    reply = await self.target.complete(self.mode, conversation, self.answer, self.timeout)
        except Fault:
            raise
        except TimeoutError:
            raise Fault("timeout", f"no answer within {self.timeout:g} s", again=True) from None
        except Exception as error:  # clients of foreign hosts raise errors of many classes
            raise fault_of(error) from error
        self.usage.add(reply)
        add_price(reply.price)
        return reply.check()

    def _after_malformed(self, correction: list[Message]) -> None:
        self.correction = correction or self.correction
        self.malformed_count += 1
        if self.malformed_count % _TIMES_PER_MODE == 0:
            self._take_next_mode()

    def _take_next_mode(self) -> bool:
        """Switches to the next mode and drops the correction. Returns False after the last mode."""
        if self.mode == MODES[-1]:
            return False
        self.mode, self.correction = MODES[MODES.index(self.mode) + 1], []
        return True


def _fault(state: RetryCallState) -> Fault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Fault)
    return error


def _parse_answer(text: str, answer: type[T], check: Callable[[T], None] | None) -> T:
    value = parse(text, answer)
    if check:
        check(value)
    return value


def _correction(text: str, why: str) -> list[Message]:
    return [
        {"role": "assistant", "content": writable(beginning(text, 4000)) or "(nothing)"},
        {"role": "user", "content": writable(f"That answer cannot be used: {why}. Answer again, as asked at first.")},
    ]


def _writable(value: Any) -> Any:
    """A part of a message as a request can have it: in UTF-8."""
    if isinstance(value, Mapping):
        return {key: _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    return writable(value) if isinstance(value, str) else value
