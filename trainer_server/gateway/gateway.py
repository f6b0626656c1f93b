"""The gateway: answers requests for completions, and records each with exact tokens before its last byte is sent.

The stages of a request, in order: parse, resolve, prompt, sample, record, answer. Engines (`engines/base.py`) and
ledgers (`ledger/base.py`) are protocols; `registry.py` of either folder has their names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from trainer_server.common import gen_ai, tracing
from trainer_server.common.jsonl import to_json
from trainer_server.engines.base import EngineClient, EngineLost, MalformedAnswer, Reply, batches_of
from trainer_server.engines.slots import adapter_name
from trainer_server.gateway.answer import Answer, ChoiceWriter, check_exact, why_incomplete
from trainer_server.gateway.client_api import ClientAPI
from trainer_server.gateway.errors import APIError, stopping
from trainer_server.gateway.parser import ChatRequest, Parser
from trainer_server.gateway.recorder import Recorder
from trainer_server.gateway.resolver import Resolver, Source, Sources
from trainer_server.gateway.sampler import Attempt, EngineSender, Sampler
from trainer_server.gateway.splice.splicer import Prompt, Splicer
from trainer_server.gateway.splice.turns import only_text
from trainer_server.wire import CompletionStatus
from trainer_server.wire.headers import COMPLETION

log = logging.getLogger("trainer_server")


class CompletionGateway:
    """Answers `/v1/chat/completions`, and the same in other client APIs.

    Args:
        parser: Reads requests.
        sources: Finds the version that answers.
        splicer: Splices prompts with the tokens of earlier turns.
        sender: Sends requests to engines.
        recorder: Writes answers to the ledger.

    Attributes:
        requests: Chat requests since the start of the server.
        stopping: Set it to end all streams that are under way.
    """

    def __init__(
        self, parser: Parser, sources: Sources, splicer: Splicer, sender: EngineSender, recorder: Recorder
    ) -> None:
        self.parser, self.sources, self.splicer = parser, sources, splicer
        self.sender, self.recorder = sender, recorder
        self.stopping = asyncio.Event()
        self.requests = 0

    async def answer(self, request: Request, api: ClientAPI) -> Response:
        """Answers a request.

        Args:
            request: The request.
            api: The API in which the client wrote it.

        Raises:
            APIError: The request is wrong, or cannot be answered now.
        """
        self.requests += 1
        chat = await self.parser.parse(request, api)
        source = await self.sources.resolve(chat.model, request.headers)
        chat = chat.override(temperature=source.temperature, hint=source.hint)
        prompt = await self.splicer.match(chat, source.rollout)
        call = _Call(self, chat, source, prompt)
        return await _unless_disconnected(request, call.stream() if chat.stream else call.answer())


class Gateway(CompletionGateway):
    """Answers completions, `/v1/models`, and how many tokens a prompt has.

    Args:
        parser: Reads requests.
        resolver: Finds the version that answers.
        splicer: Splices prompts with the tokens of earlier turns.
        sampler: Chooses engines, and sends requests to them.
        recorder: Writes answers to the ledger.
    """

    def __init__(
        self, parser: Parser, resolver: Resolver, splicer: Splicer, sampler: Sampler, recorder: Recorder
    ) -> None:
        super().__init__(parser, resolver, splicer, sampler, recorder)
        self.resolver, self.sampler = resolver, sampler

    async def count(self, request: Request, api: ClientAPI) -> int:
        """Counts the tokens that a request would prompt the model with.

        Raises:
            APIError: The request is wrong, or cannot be rendered now.
        """
        chat = await self.parser.parse(request, api)
        await self.resolver.version(chat.model, None)
        return await self.sampler.count_tokens(chat)

    def models(self) -> dict[str, Any]:
        """The answer to `GET /v1/models`."""
        return self.resolver.models()

    def forget(self, rollouts: Collection[str]) -> None:
        """Drops the turns of rollouts that have ended, and which engine has their prompts."""
        self.splicer.forget(rollouts)
        self.sampler.forget(rollouts)

    def erase(self, rollouts: Collection[str], completions: Collection[str]) -> None:
        """Drops from memory what belongs to rollouts and completions that are deleted."""
        self.forget(rollouts)
        self.splicer.drop(completions)


class _Call:
    """One chat request with its version: an engine answers it, the ledger records the answer, and the client gets it.

    Args:
        gateway: Has the stages.
        chat: The request.
        source: The version that answers, and the rollout of the request.
        prompt: The turns that the request continues.
    """

    def __init__(self, gateway: CompletionGateway, chat: ChatRequest, source: Source, prompt: Prompt) -> None:
        self._gateway, self._chat, self._source = gateway, chat, source
        self._attempt = Attempt(prompt, chat.sampling.max_tokens)
        self._span = tracing.NOTHING

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
            writer = self._writer()
            for choice in body["choices"]:
                await writer.make_readable(choice)
                answers[choice["index"]].take(choice, body.get("prompt_token_ids"))
                writer.clean(choice)
            await self._record(answers, (body.get("usage") or {}).get("completion_tokens"))
        self._stamp(body)
        body["system_fingerprint"] = self._attempt.id
        text = to_json(self._chat.exchange.whole(body))  # a model may say half of a character, which UTF-8 cannot hold
        return Response(text, media_type="application/json", headers={COMPLETION: self._attempt.id})

    async def stream(self) -> Response:
        """Answers with server-sent events.

        Raises:
            APIError: The request failed before the first byte was sent. Later errors are events of the stream.
        """
        events = self._events()
        content = _with_first(await anext(events), events)
        headers = {"Cache-Control": "no-store", COMPLETION: self._attempt.id}
        return StreamingResponse(content, media_type="text/event-stream", headers=headers)

    async def _events(self) -> AsyncGenerator[bytes]:
        """The events of a stream. An error after the first one is the last one."""
        is_first = True
        try:
            async with aclosing(self._text()) as text:
                async for event in text:
                    yield event
                    is_first = False
        except APIError as error:
            if is_first:
                raise
            yield self._chat.exchange.stream.failure(error)

    async def _text(self) -> AsyncGenerator[bytes]:
        """The events of an answer. Those from the end of its text on come when the answer is recorded."""
        answer, token_count, is_finished = Answer(), None, False
        end: list[bytes] = []
        stream = self._chat.exchange.stream
        async with self._admit([answer]):
            async with aclosing(self._batches()) as batches:
                async for batch in batches:
                    if self._gateway.stopping.is_set():
                        raise stopping()
                    writer = self._writer()
                    events: list[bytes] = []
                    for chunk in batch:
                        for choice in chunk.get("choices") or []:
                            if choice["index"]:
                                raise MalformedAnswer(f"one choice was asked for, and number {choice['index']} came")
                            answer.take(choice, chunk.get("prompt_token_ids"))
                            if choice["delta"].pop("tool_calls", None) and is_finished:
                                raise MalformedAnswer("a part of a tool call came after the end of the answer")
                            if choice.get("finish_reason"):
                                await writer.finish(choice, answer)
                                is_finished = True
                            writer.clean(choice)
                        if is_finished:  # on the usage too: clients keep what the last chunk says
                            chunk["system_fingerprint"] = self._attempt.id
                        token_count = (chunk.get("usage") or {}).get("completion_tokens", token_count)
                        self._stamp(chunk)
                        (end if answer.finish_reason else events).extend(stream.chunk(chunk))
                    if events:
                        yield b"".join(events)
            if not answer.finish_reason:
                raise EngineLost("the stream ended without a finish_reason")
            await self._record([answer], token_count)
        if end:
            yield b"".join(end)
        yield b"".join(stream.end())

    @asynccontextmanager
    async def _admit(self, answers: Sequence[Answer]) -> AsyncIterator[None]:
        """Counts the request as admitted, and records what was received of its answers when it fails.

        The rows are `aborted` if the client went away, and `failed` otherwise. A request that was refused has a single
        row, `refused`, which is in the ledger before the client gets the error.

        Raises:
            APIError: The server has too many requests; or in place of an EngineLost.
        """
        recorder, request = self._gateway.recorder, (self._chat, self._source, self._attempt)
        async with self._gateway.sender.admit(self._source.policy):
            status, message, is_recorded = CompletionStatus.failed, None, False
            self._begin_span()
            try:
                yield
                status, is_recorded = CompletionStatus.complete, True
            except (APIError, EngineLost, MalformedAnswer) as error:
                problem = error if isinstance(error, APIError) else self._as_api_error(error)
                problem.completion, message = self._attempt.id, problem.message
                if 400 <= problem.status < 500:
                    status = CompletionStatus.refused
                    answers = answers[:1]
                    await recorder.note(recorder.rows(*request, answers, status, error=message))
                    is_recorded = True
                if problem is error:
                    raise
                raise problem from error
            except (asyncio.CancelledError, GeneratorExit):
                status = CompletionStatus.aborted
                raise
            finally:
                self._end_span(answers, status)
                if not is_recorded:
                    recorder.add_later(recorder.rows(*request, answers, status, error=message))

    async def _whole(self) -> dict[str, Any]:
        """The engine's whole answer. If the engine dies before it is received, the request is sent again."""
        while True:
            try:
                async with self._reply() as reply:
                    return await reply.whole()
            except EngineLost as error:
                self._gateway.sender.count_failure(self._attempt, error)

    async def _batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """Chunks of the engine's answer. If the engine dies before its first chunk, the request is sent again."""
        is_first = True
        while True:
            try:
                async with self._reply() as reply:
                    async for batch in batches_of(reply):
                        is_first = False
                        yield batch
                return
            except EngineLost as error:
                self._gateway.sender.count_failure(self._attempt, error, again=is_first)

    @asynccontextmanager
    async def _reply(self) -> AsyncIterator[Reply]:
        """The answer of one engine. Leaving the context early aborts the generation.

        Raises:
            APIError: The engine refused the request, or no engine is ready.
            EngineLost: The engine went away.
        """
        splicer, sender = self._gateway.splicer, self._gateway.sender
        chat, source, attempt = self._chat, self._source, self._attempt
        async with (
            sender.engine(chat, source, attempt) as (engine, request),
            self._engine_span(engine, request) as span,
        ):
            attempt.prompt = await splicer.splice(attempt.prompt, chat, engine, request)
            async with sender.send(request, chat, source, attempt, span) as reply:
                yield reply

    async def _record(self, answers: Sequence[Answer], token_count: int | None) -> None:
        """Records whole answers. token_count: what the engine says it sampled; None: it does not say."""
        check_exact(answers)
        splicer, recorder, attempt = self._gateway.splicer, self._gateway.recorder, self._attempt
        prompt_token_ids, url = answers[0].prompt_token_ids, attempt.engine.url if attempt.engine else "?"
        if untrainable := why_incomplete(answers, token_count):
            hint = ". Newer versions of vLLM send all"
        else:
            hint = ""
            attempt.prompt, untrainable = splicer.verify(attempt.prompt, prompt_token_ids, url)
            if not untrainable and not only_text(self._chat.body.get("messages") or ()):  # no images in the ledger
                untrainable = "its prompt has images or other media, and the trainer computes text alone"
        if untrainable:
            log.warning("%s of %s will not be trained: %s%s", attempt.id, url, untrainable, hint)
        elif self._source.policy is not None and self._chat.sampling.temperature:  # what may be trained
            await self._pack_experts(answers, url)
        if attempt.max_tokens is None:
            room = ((attempt.engine and attempt.engine.max_model_len) or 0) - len(prompt_token_ids)
            attempt.max_tokens = room if room > 0 else None
        rows = recorder.rows(
            self._chat, self._source, attempt, answers, CompletionStatus.complete, untrainable=untrainable
        )
        await recorder.add(rows)
        for row, answer in zip(rows, answers, strict=True):
            await splicer.remember(attempt.prompt, self._chat, row, answer)

    async def _pack_experts(self, answers: Sequence[Answer], url: str) -> None:
        for answer in answers:
            try:
                await answer.pack_experts()
            except ValueError as error:
                log.warning("%s of %s is trained without the sampler's experts: %s", self._attempt.id, url, error)

    def _writer(self) -> ChoiceWriter:
        return ChoiceWriter(self._chat, self._attempt.engine, self._gateway.recorder.identity.base.path)

    def _stamp(self, body: dict[str, Any]) -> None:
        body["id"] = self._attempt.id
        body["model"] = f"{self._source.policy}@{self._source.version}" if self._source.policy else body.get("model")

    def _as_api_error(self, error: EngineLost | MalformedAnswer) -> APIError:
        """The client's error for an engine that gave no answer, or none that can be used."""
        if isinstance(error, EngineLost):
            message = f"the engine went away during the answer: {error}"
            return APIError(503, message, code="engine_lost", retry_after=5)
        url = self._attempt.engine.url if self._attempt.engine else "?"
        log.error("%s was not answered by %s: %s", self._attempt.id, url, error)
        return APIError(502, f"the engine's answer cannot be used: {error}", code="engine_error")

    def _begin_span(self) -> None:
        """Begins the span of the request, while traces are on."""
        if not tracing.on():
            return
        name, about = gen_ai.chat(self._chat.model, rollout=self._source.rollout)
        sampling = self._chat.sampling
        self._span = tracing.begin(
            name,
            {
                **about,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.choice.count": sampling.n if sampling.n > 1 else None,
                "art.policy": self._source.policy,
                "art.version": self._source.version,
                "art.stream": self._chat.stream,
            },
        )

    def _end_span(self, answers: Sequence[Answer], status: CompletionStatus) -> None:
        if self._span is tracing.NOTHING:
            return
        self._span.set(
            gen_ai.answer_attributes(
                id=self._attempt.id,
                model=adapter_name(self._source.key) if self._source.key else self._gateway.recorder.identity.base.name,
                prompt=len(answers[0].prompt_token_ids),
                sampled_tokens=sum(len(answer.token_ids) for answer in answers),
                reasons=[answer.finish_reason for answer in answers],
            )
        )
        if status != CompletionStatus.complete:
            self._span.fail(status.value)
        self._span.end()

    @asynccontextmanager
    async def _engine_span(self, engine: EngineClient, request: Mapping[str, Any]) -> AsyncIterator[tracing.Span]:
        """The span of an engine's work. It is not entered: other tasks read the parts of a stream."""
        if self._span is tracing.NOTHING:
            yield tracing.NOTHING
            return
        about = {
            "server.address": engine.url,
            "gen_ai.request.model": request["model"],
            "gen_ai.operation.name": "chat",
        }
        span = tracing.begin("engine", about, kind="client", parent=self._span.parent)
        try:
            yield span
        except Exception as error:
            span.fail(error)
            raise
        finally:
            span.end()


async def _with_first(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """The events of a stream whose first one has come."""
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Awaits an answer. Cancels the work when the client disconnects, which aborts the generation."""
    task, watch = asyncio.create_task(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return Response(status_code=499)
        return task.result()
    finally:
        watch.cancel()
        task.cancel()


async def _disconnect(request: Request) -> None:
    """Returns once the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
