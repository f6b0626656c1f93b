"""Asks an engine for a chat completion. An answer with exact tokens is recorded, and only then sent to the client."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

from starlette.responses import Response, StreamingResponse

from trainer_server.engines.base import AdapterLost, Engine, EngineLost, MalformedAnswer, Reply, RequestRefused
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Key, NoFreeSlot, Slots, adapter_name
from trainer_server.gateway.admission import Admission
from trainer_server.gateway.answer import Answer, as_text, unusable_calls, why_incomplete
from trainer_server.gateway.chat_request import ChatRequest
from trainer_server.gateway.dialects.base import Exchange
from trainer_server.gateway.errors import APIError, stopping
from trainer_server.gateway.recorder import Recorder, Source
from trainer_server.gateway.schema_faults import schema_fault
from trainer_server.gateway.splice.messages import only_text
from trainer_server.gateway.splice.splicer import Prompt
from trainer_server.policies.names import PolicyNames
from trainer_server.wire import Completion, CompletionStatus, EngineError
from trainer_server.wire.jsonl import to_json
from trainer_server.wire.network.headers import COMPLETION
from trainer_server.wire.tool_arguments import arguments_text
from trainer_server.wire.watching import gen_ai, tracing

log = logging.getLogger("trainer_server")

_OF_GRAMMAR = re.compile(r"grammar|schema", re.IGNORECASE)
"""Words of an engine that cannot make a grammar."""
_LATER = (408, 425, 429)
"""Statuses of a proxy before an engine that mean: ask again later."""


class Call:
    """One chat request: an engine answers it, the ledger records the answer, and the client gets it.

    Args:
        chat: The request.
        source: The version that answers, and the rollout that asks.
        exchange: Translates the answer to the API in which the client asked.
        prompt: Splices the prompt with an earlier turn's tokens.
        affinity_key: The rollout, or a digest of the conversation's beginning; see Engines.route.
        engines: The engines that can answer.
        slots: Loads the version's adapter.
        names: The versions in service.
        recorder: Writes the answer into the ledger.
        admission: Places at the engines.
        engine_wait: Seconds to wait for an engine when none is ready.
        stopping: Is set when the server has waited long enough for running answers, and ends them.

    Attributes:
        id: Id of the answer, `chatcmpl-…`.
    """

    def __init__(
        self,
        chat: ChatRequest,
        source: Source,
        *,
        exchange: Exchange,
        prompt: Prompt,
        affinity_key: str,
        engines: Engines,
        slots: Slots,
        names: PolicyNames,
        recorder: Recorder,
        admission: Admission,
        engine_wait: float,
        stopping: asyncio.Event,
    ) -> None:
        self._chat, self._exchange, self._prompt = chat, exchange, prompt
        self._source, self._affinity_key = source, affinity_key
        self._engines, self._slots, self._names = engines, slots, names
        self._recorder, self._engine_wait = recorder, engine_wait
        self._admission, self._stopping = admission, stopping
        self._engine: Engine | None = None
        self._tries = self._deaths = 0
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._span = tracing.NOTHING
        self._created = time.time()

    async def answer(self) -> Response:
        """Answers without streaming.

        Raises:
            APIError: The request cannot be answered, or the answer not recorded.
        """
        answers = [Answer() for _ in range(self._chat.sampling.n)]
        async with self._admit(answers):
            body = await self._whole()
            if (numbers := sorted(choice["index"] for choice in body["choices"])) != list(range(len(answers))):
                raise MalformedAnswer(f"{len(answers)} choices were asked for, and those numbered {numbers} came")
            for choice in body["choices"]:
                await self._make_readable(choice)
                answers[choice["index"]].take(choice, body.get("prompt_token_ids"))
                self._clean(choice)
            await self._record(answers, (body.get("usage") or {}).get("completion_tokens"))
        self._stamp(body)
        body["system_fingerprint"] = self.id
        written = to_json(self._exchange.whole(body))  # a model may say half of a character, which UTF-8 cannot hold
        return Response(written, media_type="application/json", headers={COMPLETION: self.id})

    async def _make_readable(self, choice: dict[str, Any]) -> None:
        """Makes the tool calls of a whole choice ones that clients can read, in place: those without arguments get an
        empty object, and those whose arguments are no object become text."""
        for call in choice["message"].get("tool_calls") or ():
            call["function"]["arguments"] = arguments_text(call["function"].get("arguments"))
        if unusable_calls(choice):
            as_text(choice, await self._sampled_text(choice))

    async def _finish(self, choice: dict[str, Any], answer: Answer) -> None:
        """Puts the tool calls of a stream into its last choice, in place, as they are in a whole answer.

        Until then they are held back: what has begun as a call may turn out to be text.
        """
        if answer.message is None or not answer.message.get("tool_calls"):
            return
        content, delta = answer.message["content"] or "", choice["delta"]
        whole = {**choice, "message": dict(answer.message), "token_ids": answer.token_ids}
        await self._make_readable(whole)
        if not (whole["message"]["content"] or "").startswith(content):  # a parser has changed what was sent already
            whole = {**choice, "message": dict(answer.message)}
            as_text(whole, None)
        if text := (whole["message"]["content"] or "").removeprefix(content):
            delta["content"] = (delta.get("content") or "") + text
        if calls := whole["message"]["tool_calls"]:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        choice["finish_reason"] = answer.finish_reason = whole["finish_reason"]
        answer.message = None
        answer.take({"message": whole["message"]}, None)

    async def _sampled_text(self, choice: dict[str, Any]) -> str | None:
        """What the model wrote, without the token that ends an answer; None if the engine cannot be asked any more."""
        tokens = list(choice.get("token_ids") or ())
        if tokens and tokens[-1] in ModelFiles(Path(self._recorder.identity.base.path)).end_tokens:
            tokens.pop()
        if not tokens or self._engine is None:
            return None
        try:
            return await self._engine.detokenize(tokens)
        except EngineError:
            return None

    async def _whole(self) -> dict[str, Any]:
        """The engine's whole answer. If the engine dies before it is received, the request is sent again."""
        while True:
            try:
                async with self._send_request() as reply:
                    return await reply.whole()
            except EngineLost as error:
                self._engine_died(error)

    async def stream(self) -> Response:
        """Answers with server-sent events.

        Raises:
            APIError: The request failed before the first byte was sent. Later errors are events of the stream.
        """
        events = self._events()
        first = await anext(events)

        async def rest() -> AsyncIterator[bytes]:
            try:
                yield first
                async for event in events:
                    yield event
            finally:
                await events.aclose()

        headers = {"Cache-Control": "no-store", COMPLETION: self.id}
        return StreamingResponse(rest(), media_type="text/event-stream", headers=headers)

    async def _events(self) -> AsyncGenerator[bytes]:
        """The events of a stream. An error after the first one is the last one."""
        sent = False
        try:
            async with aclosing(self._text()) as text:
                async for event in text:
                    yield event
                    sent = True
        except APIError as error:
            if not sent:
                raise
            yield self._exchange.stream.failure(error)

    async def _text(self) -> AsyncGenerator[bytes]:
        """The events of an answer. Those from the end of its text on are held back until the answer is recorded."""
        answer, counted, end, answered = Answer(), None, [], False
        async with self._admit([answer]):
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    if self._stopping.is_set():
                        raise stopping()
                    for choice in chunk.get("choices") or []:
                        if choice["index"]:
                            raise MalformedAnswer(f"one choice was asked for, and number {choice['index']} came")
                        answer.take(choice, chunk.get("prompt_token_ids"))
                        if choice["delta"].pop("tool_calls", None) and answered:
                            raise MalformedAnswer("a part of a tool call came after the end of the answer")
                        if choice.get("finish_reason"):
                            await self._finish(choice, answer)
                            answered, chunk["system_fingerprint"] = True, self.id
                        self._clean(choice)
                    counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
                    self._stamp(chunk)
                    if not (events := self._exchange.stream.chunk(chunk)):
                        continue
                    if answer.finish_reason:
                        end.append(events)
                    else:
                        yield events
            if not answer.finish_reason:
                raise EngineLost("the stream ended without a finish_reason")
            await self._record([answer], counted)
        for events in end:
            yield events
        yield self._exchange.stream.end()

    @asynccontextmanager
    async def _admit(self, answers: Sequence[Answer]) -> AsyncIterator[None]:
        """Counts the request as admitted, and records what was received of its answers when it fails.

        The rows are `aborted` if the client went away, and `failed` otherwise. A request that was refused has a single
        row, `refused`, which is in the ledger before the client hears of it.

        Raises:
            APIError: The server has too many requests; or in place of an EngineLost.
        """
        with self._admission.admit(self._source.policy):
            status, words, recorded = CompletionStatus.failed, None, False
            self._span = self._begin_span()
            try:
                yield
                status, recorded = CompletionStatus.complete, True
            except (APIError, EngineLost, MalformedAnswer) as error:
                problem = error if isinstance(error, APIError) else self._as_api_error(error)
                problem.completion, words = self.id, problem.message
                if 400 <= problem.status < 500:
                    status = CompletionStatus.refused
                    answers = answers[:1]
                    await self._recorder.note(self._rows(answers, status, error=words))
                    recorded = True
                if problem is error:
                    raise
                raise problem from error
            except (asyncio.CancelledError, GeneratorExit):
                status = CompletionStatus.aborted
                raise
            finally:
                self._end_span(answers, status)
                if not recorded:
                    self._recorder.add_later(self._rows(answers, status, error=words))

    def _as_api_error(self, error: EngineLost | MalformedAnswer) -> APIError:
        """What the client hears of an engine that gave no answer, or none that can be used."""
        if isinstance(error, EngineLost):
            message = f"the engine went away during the answer: {error}"
            return APIError(503, message, code="engine_lost", retry_after=5)
        log.error("%s was not answered by %s: %s", self.id, self._engine.url if self._engine else "?", error)
        return APIError(502, f"the engine's answer cannot be used: {error}", code="engine_error")

    def _begin_span(self) -> tracing.Span:
        """The span of the request, while traces are on."""
        if not tracing.on():
            return tracing.NOTHING
        name, about = gen_ai.chat(self._chat.model, rollout=self._source.rollout)
        asked = self._chat.sampling
        return tracing.begin(
            name,
            {
                **about,
                "gen_ai.request.max_tokens": asked.max_tokens,
                "gen_ai.request.temperature": asked.temperature,
                "gen_ai.request.choice.count": asked.n if asked.n > 1 else None,
                "art.policy": self._source.policy,
                "art.version": self._source.version,
                "art.stream": self._chat.stream,
            },
        )

    def _end_span(self, answers: Sequence[Answer], status: CompletionStatus) -> None:
        if self._span is tracing.NOTHING:
            return
        names = self._source.policy and adapter_name((self._source.policy, self._source.version or 0))
        self._span.set(
            gen_ai.answer_attributes(
                id=self.id,
                model=names or self._recorder.identity.base.name,
                prompt=len(answers[0].prompt_token_ids),
                sampled_tokens=sum(len(answer.token_ids) for answer in answers),
                reasons=[answer.finish_reason for answer in answers],
            )
        )
        if status != CompletionStatus.complete:
            self._span.fail(status.value)
        self._span.end()

    async def _chunks(self) -> AsyncGenerator[dict[str, Any]]:
        """Chunks of the engine's answer. If the engine dies before its first chunk, the request is sent again."""
        begun = False
        while True:
            try:
                async with self._send_request() as reply:
                    async for chunk in reply.chunks():
                        begun = True
                        yield chunk
                return
            except EngineLost as error:
                self._engine_died(error, again=not begun)

    def _engine_died(self, error: EngineLost, *, again: bool = True) -> None:
        """Counts the failure, and raises the error if the request must not be sent again.

        It must not be sent again when a part of the answer has been sent to the client, or when two engines died after
        the request had reached them: it may be the cause. Engines that it did not reach are limited by the number of
        tries.
        """
        self._tries += 1
        self._deaths += error.reached
        if not again or self._deaths > 1 or self._tries > len(self._engines) + 1:
            raise error

    @asynccontextmanager
    async def _send_request(self) -> AsyncIterator[Reply]:
        """Sends the request to an engine. Leaving the context early aborts the generation.

        If a limit of tokens that may shrink does not fit the context, the request is sent again without it. If the
        engine refuses tools that the gateway made strict, or a spliced prompt, the request is sent again without.

        Raises:
            APIError: The engine refused the request, or no engine is ready.
            EngineLost: The engine went away.
        """
        async with self._loaded_engine() as (engine, name), self._engine_span(engine, name) as span:
            self._engine = engine
            if self._chat.options.may_call and (unavailable_reason := engine.no_tools):
                raise APIError(400, f"`tools`: {unavailable_reason}", code="tools_not_parsed", param="tools")
            limit, strict = self._chat.sampling.max_tokens, self._chat.adds_strict
            request = self._chat.upstream(name)
            if spliced := await self._prompt.tokens(engine, request):
                request["prompt_token_ids"] = spliced
            answers = False
            while True:
                try:
                    asked = engine.chat(request) if self._chat.prompt is None else engine.complete(request)
                    async with AsyncExitStack() as stack:
                        with tracing.within(span):  # of this moment: the parts of a stream are asked for by other tasks
                            reply = await stack.enter_async_context(asked)
                        if self._chat.stream:
                            reply = await _BegunReply.of(reply)
                        answers = True
                        yield reply
                        return
                except AdapterLost:
                    if self._key:
                        self._slots.mark_lost(self._key)
                    raise
                except RequestRefused as refusal:
                    if answers:
                        raise _refusal_error(refusal, self._chat) from None
                    if refusal.too_long and self._chat.shrinks and "max_tokens" in request:
                        del request["max_tokens"]  # the engine then takes what the context leaves, if anything
                        self._chat.sampling.max_tokens = None
                    elif strict and refusal.status in (400, 422) and not refusal.too_long:
                        strict, request["tools"] = False, self._chat.upstream(name, strict=False)["tools"]
                    elif self._prompt.refused():
                        self._chat.sampling.max_tokens = limit
                        strict, request = self._chat.adds_strict, self._chat.upstream(name)
                    else:
                        raise _refusal_error(refusal, self._chat) from None

    @asynccontextmanager
    async def _engine_span(self, engine: Engine, name: str) -> AsyncIterator[tracing.Span]:
        """The span of an engine's work. It is not entered: the parts of a stream are asked for by other tasks."""
        if self._span is tracing.NOTHING:
            yield tracing.NOTHING
            return
        about = {"server.address": engine.url, "gen_ai.request.model": name, "gen_ai.operation.name": "chat"}
        span = tracing.begin("engine", about, kind="client", parent=self._span.parent)
        try:
            yield span
        except Exception as error:
            span.fail(error)
            raise
        finally:
            span.end()

    @property
    def _key(self) -> Key | None:
        policy, version = self._source.policy, self._source.version
        return None if policy is None or version is None else (policy, version)

    @asynccontextmanager
    async def _loaded_engine(self) -> AsyncIterator[tuple[Engine, str]]:
        """An engine that has the version loaded, and the version's name on it, for the duration of the request."""
        base = nullcontext(self._recorder.identity.base.name)
        try:
            async with self._turn(), self._slots.use(self._key) if self._key else base as name:
                await self._engines.wait_ready(self._engine_wait)
                with self._engines.route(self._affinity_key, sticky=self._source.rollout is not None) as engine:
                    yield engine, name
        except (EngineLost, MalformedAnswer, RequestRefused):
            raise  # errors of the request, not of the search for an engine
        except NoFreeSlot as error:
            raise APIError(503, str(error), code="no_free_slot", retry_after=5) from None
        except EngineError as error:
            if self._key and (problem := self._names.problem(self._key)):
                why = self._names.refuse(self._key, problem)
                raise APIError(404, why, code="version_unusable", param="model") from None
            raise APIError(503, str(error), code="engine_not_ready", retry_after=10) from None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """A turn at an engine that is ready. Whoever waits for an engine to be ready takes no turn from others."""
        while True:
            await self._engines.wait_ready(self._engine_wait)
            async with self._admission.turn():
                if self._engines.live:  # else they went away while this request stood in line
                    yield
                    return

    def _rows(
        self,
        answers: Sequence[Answer],
        status: CompletionStatus,
        untrainable: str | None = None,
        error: str | None = None,
    ) -> list[Completion]:
        return [
            self._recorder.row(
                self.id if i == 0 else f"{self.id}.{i}",
                self._chat,
                self._source,
                answer,
                status,
                self._created,
                constrains_calls=bool(self._engine and self._engine.constrains_calls),
                untrainable=untrainable,
                continues=self._prompt.continues,
                continuation=self._prompt.continuation,
                error=error,
            )
            for i, answer in enumerate(answers)
        ]

    def _unseen(self) -> str | None:
        """Why the trainer cannot compute the prompt; None: it can. Its tokens have places for images, which are not in
        the ledger."""
        if only_text(self._chat.body.get("messages") or ()):
            return None
        return "its prompt has images or other media, and the trainer computes text alone"

    async def _record(self, answers: Sequence[Answer], token_count: int | None) -> None:
        """Records whole answers. token_count: see why_incomplete."""
        if any(answer.finish_reason == "abort" for answer in answers):
            raise APIError(503, "the engine broke the answer off; ask again", code="engine_lost", retry_after=2)
        if not all(answer.exact for answer in answers):
            raise APIError(
                502,
                "the engine answered without exact tokens; it must be vLLM that honours return_token_ids",
                code="missing_tokens",
            )
        url = self._engine.url if self._engine else "?"
        if untrainable := why_incomplete(answers, token_count):
            log.warning("%s of %s will not be trained: %s. Newer versions of vLLM send all", self.id, url, untrainable)
        elif untrainable := self._prompt.check(answers[0].prompt_token_ids, url) or self._unseen():
            log.warning("%s of %s will not be trained: %s", self.id, url, untrainable)
        if self._chat.sampling.max_tokens is None:
            context = self._engine.max_model_len if self._engine else None
            left = (context or 0) - len(answers[0].prompt_token_ids)
            self._chat.sampling.max_tokens = left if left > 0 else None
        rows = self._rows(answers, CompletionStatus.complete, untrainable)
        await self._recorder.add(rows)
        for row, answer in zip(rows, answers, strict=True):
            self._prompt.remember_turn(row, answer)

    def _clean(self, choice: dict[str, Any]) -> None:
        """Removes from a choice the fields that the client did not ask for."""
        if not self._chat.options.return_token_ids:
            choice.pop("token_ids", None)
        if not self._chat.options.logprobs and "logprobs" in choice:
            choice["logprobs"] = None
        if not self._chat.options.include_reasoning:  # the engine must not know: it would leave tokens out too
            part = "delta" if self._chat.stream else "message"
            choice[part] = {name: value for name, value in choice[part].items() if not name.startswith("reasoning")}

    def _stamp(self, body: dict[str, Any]) -> None:
        body["id"] = self.id
        body["model"] = f"{self._source.policy}@{self._source.version}" if self._source.policy else body.get("model")


class _BegunReply:
    """A streamed answer whose first chunk has come: vLLM refuses some requests by the first event of their stream.

    Args:
        first: The first chunk.
        rest: Those after it.
    """

    def __init__(self, first: dict[str, Any], rest: AsyncIterator[dict[str, Any]]) -> None:
        self._first, self._rest = first, rest

    @classmethod
    async def of(cls, reply: Reply) -> Self:
        """Waits for the first chunk. Raises RequestRefused, and what `Reply.chunks` raises."""
        chunks = reply.chunks()
        async for first in chunks:
            return cls(first, chunks)
        raise EngineLost("the stream ended before it began")

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """See Reply.chunks."""
        yield self._first
        async for chunk in self._rest:
            yield chunk

    async def whole(self) -> dict[str, Any]:
        """See Reply.whole."""
        raise MalformedAnswer("a stream was asked for")


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
