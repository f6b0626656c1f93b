"""Stage 4, sample: an engine that holds the version takes the request and samples an answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from trainer_server.common import tracing
from trainer_server.engines.base import (
    AdapterLost,
    Engine,
    EngineClient,
    EngineLost,
    MalformedAnswer,
    Reply,
    RequestRefused,
    batches_of,
)
from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Key, NoFreeSlot, Slots
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import forwarded_parameters
from trainer_server.gateway.parser import ChatRequest
from trainer_server.gateway.resolver import Source
from trainer_server.gateway.schema_faults import schema_fault
from trainer_server.gateway.splice.splicer import Prompt
from trainer_server.policies.names import PolicyNames
from trainer_server.wire import Continuation, EngineError

_OF_GRAMMAR = re.compile(r"grammar|schema", re.IGNORECASE)
"""Words of an engine that cannot make a grammar."""
_LATER = (408, 425, 429)
"""Statuses of a proxy before an engine that mean: ask again later."""
_PROMPT_FIELDS = ("messages", "tools", "chat_template_kwargs", "continue_final_message")
"""Parts of a request that its prompt is rendered from."""
_LONG_PROMPT = 4000
"""Characters from which on rollouts with the same first prompt share an engine: about 1,000 tokens, below which
docs/benchmarks/serving.md finds no gain. System messages do not count, since all scenarios may share them."""


RETRY_AFTER = 5
"""Seconds after which a client that was refused may try again."""


@dataclass(slots=True)
class Attempt:
    """How a request is being answered. The ledger's rows say it, also of a request that fails on the way."""

    prompt: Prompt
    """What the engine is prompted with."""
    max_tokens: int | None
    """Limit of sampled tokens; None: what the context leaves."""
    engine: EngineClient | None = None
    """The last engine that the request was sent to; None: none yet."""
    failures: int = 0
    """How often an engine went away."""
    deaths: int = 0
    """How often it did so after the request had reached it."""
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    """Id of the answer."""
    created_at: float = field(default_factory=time.time)
    """Unix time, seconds."""


class Admission:
    """Places for chat requests.

    Without a bound, a burst of requests opens more files (connections) than the process may have, and then every part
    of the server fails.

    Args:
        running: Requests that engines answer at once. Each has a connection to its client and one to its engine.
        waiting: Requests that stand in line. Each has a connection to its client.

    Attributes:
        most: Requests at engines and in line, at most.
        refusal_count: Requests that were refused since the start of the server.
        running: Requests at engines.
        by_policy: Requests at engines and in line, by policy; None: the base model.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self._places = asyncio.Semaphore(running)
        self.most = running + waiting
        self.refusal_count = self.running = 0
        self.by_policy: Counter[str | None] = Counter()

    @property
    def under_way(self) -> int:
        """Requests at engines and in line."""
        return self.by_policy.total()

    @contextmanager
    def admit(self, policy: str | None = None) -> Iterator[None]:
        """Counts one request while the context is open, in line or at an engine.

        Args:
            policy: Name of the policy; None: the base model.

        Raises:
            APIError: 429, the line is full.
        """
        if self.under_way >= self.most:
            self.refusal_count += 1
            message = (
                f"{self.under_way} requests are under way, as many as this server takes: ask again in {RETRY_AFTER} s, "
                "or raise the server's limit of open files (ulimit -n)"
            )
            raise APIError(429, message, code="too_many_requests", retry_after=RETRY_AFTER)
        self.by_policy[policy] += 1
        try:
            yield
        finally:
            self.by_policy[policy] -= 1
            if not self.by_policy[policy]:
                del self.by_policy[policy]

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place at an engine while the context is open. Waits in line for it, first come, first served."""
        async with self._places:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1


class EngineSender(ABC):
    """Sends requests to engines that a process of the server has chosen: this one (`Sampler`), or its parent.

    Attributes:
        engine_count: How many engines there are.
    """

    engine_count: int

    @abstractmethod
    def admit(self, policy: str | None) -> AbstractAsyncContextManager[None]:
        """Counts one request while the context is open, in line or at an engine; see `Admission.admit`."""

    @abstractmethod
    def place(
        self, source: Source, conversation: Callable[[], str], prompt: Callable[[], str | None]
    ) -> AbstractAsyncContextManager[tuple[EngineClient, str]]:
        """An engine that has the version loaded, and what it calls the version, while the context is open.

        Args:
            source: The version and the rollout.
            conversation: Gives the affinity key of a request without a rollout.
            prompt: Gives the digest of a rollout's first prompt; see `Engines.route`.

        Raises:
            APIError: No engine is ready, or none can load the version.
        """

    @abstractmethod
    def mark_lost(self, key: Key) -> None:
        """An engine does not hold the adapter of a version that was loaded there."""

    @asynccontextmanager
    async def engine(
        self, chat: ChatRequest, source: Source, attempt: Attempt
    ) -> AsyncIterator[tuple[EngineClient, dict[str, Any]]]:
        """An engine that has the version loaded, and the request to it, while the context is open.

        Raises:
            APIError: No engine is ready, none can load the version, or the engine takes no tools.
        """
        keys = partial(_conversation_key, chat), partial(_prompt_key, chat, source.key)
        async with self.place(source, *keys) as (engine, name):
            attempt.engine = engine
            if chat.options.may_call and (unavailable_reason := engine.no_tools):
                raise APIError(400, f"`tools`: {unavailable_reason}", code="tools_not_parsed", param="tools")
            yield engine, engine_request(chat, name)

    @asynccontextmanager
    async def send(
        self, request: dict[str, Any], chat: ChatRequest, source: Source, attempt: Attempt, span: tracing.Span
    ) -> AsyncIterator[Reply]:
        """Sends the request to the engine of the attempt. Leaving the context early aborts the generation.

        If a limit of tokens that may shrink does not fit the context, the request is sent again without it. If the
        engine refuses tools that the gateway made strict, or a spliced prompt, the request is sent again without.

        Args:
            request: The request to the engine, without the tokens of its prompt.
            chat: The client's request.
            source: The version that answers.
            attempt: Has the engine and the prompt; gets what of them is changed.
            span: The engine's work.

        Raises:
            APIError: The engine refused the request.
            EngineLost: The engine went away.
        """
        engine, strict, is_answering = attempt.engine, _adds_strict(chat), False
        assert engine is not None
        attempt.max_tokens = chat.sampling.max_tokens
        if attempt.prompt.tokens:
            request = {**request, "prompt_token_ids": list(attempt.prompt.tokens)}
        while True:
            try:
                sending = engine.chat(request) if chat.prompt is None else engine.complete(request)
                async with AsyncExitStack() as stack:
                    with tracing.within(span):  # of this moment: other tasks read the parts of a stream
                        reply = await stack.enter_async_context(sending)
                    if chat.stream:
                        reply = await _BegunReply.of(reply)
                    is_answering = True
                    yield reply
                    return
            except AdapterLost:
                if source.key:
                    self.mark_lost(source.key)
                raise
            except RequestRefused as refusal:
                if is_answering:
                    raise _refusal_error(refusal, chat) from None
                if refusal.too_long and chat.shrinks and "max_tokens" in request:
                    del request["max_tokens"]  # the engine then takes what the context leaves, if anything
                    attempt.max_tokens = None
                elif strict and refusal.status in (400, 422) and not refusal.too_long:
                    strict, request["tools"] = False, forwarded_parameters(chat.body)["tools"]
                elif attempt.prompt.tokens is not None:  # the engine may accept the rendered prompt
                    attempt.prompt = replace(attempt.prompt, tokens=None, continuation=Continuation.refused)
                    attempt.max_tokens = chat.sampling.max_tokens
                    strict, request = _adds_strict(chat), engine_request(chat, request["model"])
                else:
                    raise _refusal_error(refusal, chat) from None

    def count_failure(self, attempt: Attempt, error: EngineLost, *, again: bool = True) -> None:
        """Counts an engine that went away, and raises the error if the request must not be sent again.

        It must not be sent again when a part of the answer has been sent to the client, or when two engines died after
        the request had reached them: it may be the cause. Engines that it did not reach are limited by the number of
        tries.

        Args:
            attempt: Counts them.
            error: How the engine went away.
            again: Whether no part of the answer has been sent.

        Raises:
            EngineLost: The request must not be sent again.
        """
        attempt.failures += 1
        attempt.deaths += error.reached
        if not again or attempt.deaths > 1 or attempt.failures > self.engine_count + 1:
            raise error


class Sampler(EngineSender):
    """Chooses engines, and sends requests to them.

    Args:
        engines: The engines that answer.
        slots: The cache of adapters on the engines.
        names: The versions in service.
        admission: Places at the engines.
        base: Name of the base model.
        engine_wait: Seconds that a request waits for an engine that is starting or restarting.
    """

    def __init__(
        self,
        engines: Engines,
        slots: Slots,
        names: PolicyNames,
        admission: Admission,
        *,
        base: str,
        engine_wait: float = 180.0,
    ) -> None:
        self._engines, self._slots, self._names, self._base = engines, slots, names, base
        self.admission, self._engine_wait, self.engine_count = admission, engine_wait, len(engines)

    @asynccontextmanager
    async def admit(self, policy: str | None) -> AsyncIterator[None]:
        with self.admission.admit(policy):
            yield

    @asynccontextmanager
    async def place(
        self, source: Source, conversation: Callable[[], str], prompt: Callable[[], str | None]
    ) -> AsyncIterator[tuple[Engine, str]]:
        base = nullcontext(self._base)
        try:
            async with self._turn(), self._slots.use(source.key) if source.key else base as name:
                await self._engines.wait_ready(self._engine_wait)
                with self._route(source, conversation, prompt) as engine:
                    yield engine, name
        except (EngineLost, MalformedAnswer, RequestRefused):
            raise  # errors of the request, not of the search for an engine
        except NoFreeSlot as error:
            raise APIError(503, str(error), code="no_free_slot", retry_after=5) from None
        except EngineError as error:
            if source.key and (problem := self._names.problem(source.key)):
                why = self._names.refuse(source.key, problem)
                raise APIError(404, why, code="version_unusable", param="model") from None
            raise APIError(503, str(error), code="engine_not_ready", retry_after=10) from None

    def mark_lost(self, key: Key) -> None:
        self._slots.mark_lost(key)

    def _route(
        self, source: Source, conversation: Callable[[], str], prompt: Callable[[], str | None]
    ) -> AbstractContextManager[Engine]:
        if source.rollout is None:
            return self._engines.route(conversation(), sticky=False)
        first_prompt = prompt() if self._engines.has_choice(source.rollout) else None
        return self._engines.route(source.rollout, sticky=True, prompt=first_prompt)

    async def count_tokens(self, chat: ChatRequest) -> int:
        """How many tokens an engine would be prompted with.

        Raises:
            APIError: The request cannot be rendered.
        """
        request = {name: chat.body[name] for name in _PROMPT_FIELDS if chat.body.get(name)}
        try:
            await self._engines.wait_ready(self._engine_wait)
            with self._engines.route(_conversation_key(chat), sticky=False) as engine:
                return len(await engine.render(request, generation=chat.options.add_generation_prompt))
        except RequestRefused as error:
            raise APIError(400, str(error), code="invalid_request", param="messages") from None
        except EngineError as error:
            raise APIError(503, str(error), code="engine_not_ready", retry_after=10) from None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """A turn at an engine that is ready. Whoever waits for an engine to be ready takes no turn from others."""
        while True:
            await self._engines.wait_ready(self._engine_wait)
            async with self.admission.turn():
                if self._engines.live:  # else they went away while this request stood in line
                    yield
                    return

    def forget(self, rollouts: Collection[str]) -> None:
        """Forgets which engine knows the prompts of rollouts that have ended."""
        self._engines.forget(rollouts)


class _BegunReply:
    """A streamed answer whose first chunk has come: vLLM refuses some requests by the first event of their stream.

    Args:
        first: The first chunks.
        rest: Those after them.
    """

    def __init__(self, first: list[dict[str, Any]], rest: AsyncIterator[list[dict[str, Any]]]) -> None:
        self._first, self._rest = first, rest

    @classmethod
    async def of(cls, reply: Reply) -> Self:
        """Waits for the first chunk. Raises RequestRefused, and what `Reply.chunks` raises."""
        batches = batches_of(reply)
        async for first in batches:
            return cls(first, batches)
        raise EngineLost("the stream ended before it began")

    async def batches(self) -> AsyncIterator[list[dict[str, Any]]]:
        """All chunks, the first included."""
        yield self._first
        async for batch in self._rest:
            yield batch

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The same, one by one."""
        async for batch in self.batches():
            for chunk in batch:
                yield chunk

    async def whole(self) -> dict[str, Any]:
        """Raises MalformedAnswer: a stream is no whole answer."""
        raise MalformedAnswer("a stream was asked for")


def engine_request(chat: ChatRequest, adapter: str) -> dict[str, Any]:
    """The request to an engine, for `Engine.chat`. It always asks for exact tokens, and for their number.

    Args:
        chat: The client's request.
        adapter: What the engine calls the version, or the base model.
    """
    parameters = forwarded_parameters(chat.body)
    if _adds_strict(chat):
        parameters["tools"] = [
            {**tool, "function": {"strict": True, **tool["function"]}} for tool in parameters["tools"]
        ]
    return {
        **parameters,
        **({"prompt": chat.prompt} if chat.prompt is not None else {}),
        "model": adapter,
        "n": chat.sampling.n,
        "temperature": chat.sampling.temperature,
        "max_tokens": chat.sampling.max_tokens,
        "logprobs": True,
        "top_logprobs": chat.options.top_logprobs,
        "return_token_ids": True,
        **({"stream_options": {"include_usage": True}} if chat.stream else {}),
        **({"seed": chat.sampling.seed} if chat.sampling.seed is not None else {}),
    }


def _adds_strict(chat: ChatRequest) -> bool:
    """Whether tools are made strict of which the client did not say it: vLLM enforces the schema of a forced tool call
    only if the tool is strict."""
    return chat.options.forced_tool and any("strict" not in tool["function"] for tool in chat.body.get("tools") or ())


def _conversation_key(chat: ChatRequest) -> str:
    """Affinity key of a call without a rollout: a digest of the conversation up to its first user message.

    Later calls of the same conversation begin with the same messages, so that they have the same key.
    """
    if chat.prompt is not None:
        return hashlib.sha256(json.dumps([chat.model, chat.prompt[:1000]]).encode()).hexdigest()
    messages = chat.body["messages"]
    question = next((at for at, message in enumerate(messages) if message.get("role") == "user"), 0)
    head = [chat.model, chat.body.get("tools"), messages[: question + 1]]
    return hashlib.sha256(json.dumps(head).encode()).hexdigest()


def _prompt_key(chat: ChatRequest, version: tuple[str, int] | None) -> str | None:
    """Digest of the first prompt of a rollout, which others of its scenario share; None: it is short, or no chat."""
    if chat.prompt is not None:
        return None
    messages = chat.body["messages"]
    private = json.dumps([message for message in messages if message.get("role") not in ("system", "developer")])
    if len(private) < _LONG_PROMPT:
        return None
    return hashlib.sha256(json.dumps([version, chat.body.get("tools"), messages]).encode()).hexdigest()


def _refusal_error(refusal: RequestRefused, chat: ChatRequest) -> APIError:
    """An engine's error as an error of OpenAI's API. A refused grammar is traced to the schema that it comes from."""
    status, message = refusal.status, str(refusal)
    if refusal.too_long:
        return APIError(400, message, code="context_length_exceeded", param="messages")
    if status in (400, 422) and _OF_GRAMMAR.search(message) and (fault := schema_fault(chat.body)) is not None:
        return APIError(400, f"{message.rstrip('. ')}: {fault[1]}", code="invalid_request", param=fault[0])
    if status in _LATER:
        return APIError(503, f"the engine answered {status}: {message}", code="engine_error", retry_after=2)
    if 400 <= status < 500 and status not in (401, 403, 404):
        return APIError(400, message, code="invalid_request")
    return APIError(502, f"the engine answered {status}: {message}", code="engine_error", retry_after=2)
