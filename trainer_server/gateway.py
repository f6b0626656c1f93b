"""The gateway: chat completions in front of vLLM, each recorded with exact tokens before its last byte leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from trainer_server.adapters import AdapterStore
from trainer_server.chat_request import ChatRequest, header_temperature, parse
from trainer_server.config import ServerConfig
from trainer_server.engine import Engine
from trainer_server.leases import Leases
from trainer_server.ledger import Ledger, LedgerError
from trainer_server.models import BaseModel
from trainer_server.openai_errors import APIError
from trainer_server.slots import NoFreeSlot, Slots
from trainer_server.wire import Completion, CompletionStatus, EngineError
from trainer_server.wire.headers import ROLLOUT, TEMPERATURE

log = logging.getLogger("trainer_server")


@dataclass(slots=True)
class Identity:
    """Who answers: stamped on every completion."""

    server_id: str
    base: BaseModel
    tokenizer: str


@dataclass(slots=True)
class Answer:
    """One choice while it grows."""

    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    message: dict[str, Any] | None = None

    def take(self, choice: dict[str, Any], prompt_token_ids: list[int] | None) -> None:
        """Adds the tokens of a choice, whole or a chunk of it."""
        if prompt_token_ids:
            self.prompt_token_ids = prompt_token_ids
        self.token_ids += choice.get("token_ids") or []
        self.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if delta := choice.get("delta"):
            self.message = merge_delta(self.message or {"role": "assistant", "content": None}, delta)
        elif message := choice.get("message"):
            self.message = message

    @property
    def whole(self) -> bool:
        return bool(self.prompt_token_ids and self.token_ids) and len(self.token_ids) == len(self.logprobs)


def merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """Adds a streamed delta to a message: texts are concatenated, tool calls merged by index."""
    for key in ("content", "reasoning", "reasoning_content"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    for part in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        while len(calls) <= part["index"]:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[part["index"]], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return message


class Gateway:
    """Answers `/v1/chat/completions` and `/v1/models`."""

    def __init__(
        self, config: ServerConfig, identity: Identity, ledger: Ledger, store: AdapterStore, slots: Slots,
        leases: Leases, engines: Sequence[Engine],
    ) -> None:  # fmt: skip
        self._config, self._identity, self._ledger = config, identity, ledger
        self._store, self._slots, self._leases, self._engines = store, slots, leases, engines
        self._background: set[asyncio.Task[None]] = set()
        self.requests = 0

    async def close(self) -> None:
        """Waits for the rows of aborted requests."""
        await asyncio.gather(*self._background, return_exceptions=True)

    def models(self) -> dict[str, Any]:
        """The base model, every policy, and every version of it."""
        ids = [self._identity.base.name]
        for policy in self._store.policies():
            ids += [policy.name, *(f"{policy.name}@{v}" for v in self._store.versions(policy.name))]
        return {
            "object": "list",
            "data": [{"id": one, "object": "model", "created": 0, "owned_by": "art-langgraph"} for one in ids],
        }

    async def chat(self, request: Request) -> Response:
        """One request, from the client's bytes to an answer or an error in OpenAI's shape."""
        self.requests += 1
        try:
            body = await request.json()
        except ValueError as error:
            raise APIError(400, f"the body is not JSON: {error}") from None
        rollout = request.headers.get(ROLLOUT)
        if rollout is not None and not 0 < len(rollout) <= 200:
            raise APIError(400, f"header {ROLLOUT} must have 1 to 200 characters", param=ROLLOUT)
        override = header_temperature(request.headers, TEMPERATURE)
        model = body.get("model") if isinstance(body, dict) else None
        policy, version = self._resolve(model, rollout)
        if override is None and policy and (spec := self._store.spec(policy)):
            override = spec.temperature
        chat = parse(body, default_max_tokens=self._config.max_tokens, temperature=override)
        call = _Call(self, chat, rollout, policy, version)
        if chat.stream:
            return await call.stream()
        return await _unless_disconnected(request, call.answer())

    def _resolve(self, model: object, rollout: str | None) -> tuple[str | None, int | None]:
        """Policy and version that a model's name stands for now. Raises APIError 404."""
        if not isinstance(model, str) or not model:
            raise APIError(400, "`model` is missing: name a policy (see /v1/models)", param="model")
        if model == self._identity.base.name:
            return None, None
        name, at, number = model.partition("@")
        newest = self._slots.newest.get(name)
        if newest is not None:
            if not at:
                return name, self._leases.pin(rollout, name, newest) if rollout else newest
            if number.isdigit() and self._store.version(name, int(number)):
                return name, int(number)
            raise APIError(404, f"policy {name!r} has no version {number!r}", code="model_not_found", param="model")
        names = [self._identity.base.name, *sorted(self._slots.newest)]
        raise APIError(
            404,
            f"the model {model!r} does not exist; there are: {', '.join(names)}. "
            "A policy is created by `TrainerClient.create_policy` or POST /api/policies.",
            code="model_not_found",
            param="model",
        )

    def engine(self, rollout: str | None) -> Engine:
        """The engine for a rollout: always the same one, so that its prefix cache helps."""
        ready = [engine for engine in self._engines if engine.ready] or list(self._engines)
        return ready[zlib.crc32((rollout or uuid.uuid4().hex).encode()) % len(ready)]

    @asynccontextmanager
    async def adapter(self, policy: str | None, version: int | None) -> AsyncIterator[str]:
        """The name that vLLM knows a version by, loaded for the length of the request."""
        if policy is None or version is None:
            yield self._identity.base.name
            return
        try:
            async with self._slots.use((policy, version)) as name:
                yield name
        except NoFreeSlot as error:
            raise APIError(503, str(error), code="no_free_slot", retry_after=5) from None

    def completion(self, one: str, call: _Call, answer: Answer, status: CompletionStatus, created: float) -> Completion:
        """The ledger's row of a choice."""
        return Completion(
            id=one, created=created, server_id=self._identity.server_id, base_model=self._identity.base.name,
            tokenizer=self._identity.tokenizer, policy=call.policy, version=call.version, rollout=call.rollout,
            status=status, finish_reason=answer.finish_reason, sampling=call.chat.sampling,
            constrained=call.chat.constrained, prompt_token_ids=answer.prompt_token_ids, token_ids=answer.token_ids,
            logprobs=answer.logprobs, request=call.chat.recorded(), message=answer.message,
        )  # fmt: skip

    async def record(self, completions: Sequence[Completion]) -> None:
        try:
            await self._ledger.add(*completions)
        except LedgerError as error:
            raise APIError(507, str(error), code="ledger_unwritable") from None

    def record_later(self, completions: Sequence[Completion]) -> None:
        """Records without waiting: for requests whose client is gone."""

        async def add() -> None:
            try:
                await self._ledger.add(*completions)
            except LedgerError as error:
                log.error("an aborted completion was not recorded: %s", error)

        task = asyncio.create_task(add())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    @property
    def engine_wait(self) -> float:
        return self._config.engine_wait


class _Call:
    """One chat request on its way through vLLM."""

    def __init__(
        self, gateway: Gateway, chat: ChatRequest, rollout: str | None, policy: str | None, version: int | None
    ) -> None:
        self.gateway, self.chat, self.rollout, self.policy, self.version = gateway, chat, rollout, policy, version
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = time.time()

    async def answer(self) -> Response:
        """The whole answer at once."""
        answers = [Answer() for _ in range(self.chat.sampling.n)]
        try:
            async with self._ask() as response:
                body = json.loads(await response.aread())
        except asyncio.CancelledError:
            self.gateway.record_later(self._rows(answers, CompletionStatus.aborted))
            raise
        except (httpx.HTTPError, ValueError) as error:
            self.gateway.record_later(self._rows(answers, CompletionStatus.failed))
            raise _lost(error) from error
        for choice in body["choices"]:
            answers[choice["index"]].take(choice, body.get("prompt_token_ids"))
            self._clean(choice)
        await self._record(answers)
        self._stamp(body)
        body["system_fingerprint"] = self.id
        body.pop("prompt_token_ids", None)
        return JSONResponse(body)

    async def stream(self) -> Response:
        """Server-sent events. Errors before the first byte are ordinary error answers."""
        events = self._events()
        first = await anext(events)

        async def rest() -> AsyncIterator[bytes]:
            try:
                yield first
                async for event in events:
                    yield event
            finally:
                await events.aclose()  # type: ignore[attr-defined]

        return StreamingResponse(rest(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _events(self) -> AsyncIterator[bytes]:
        answer, status = Answer(), CompletionStatus.aborted
        sent = False
        try:
            async with self._ask() as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise httpx.RemoteProtocolError(str(chunk["error"]))
                    for choice in chunk.get("choices") or []:
                        answer.take(choice, chunk.get("prompt_token_ids"))
                        self._clean(choice)
                        if choice.get("finish_reason"):  # the last of the text: recorded before it leaves
                            status = CompletionStatus.failed
                            await self._record([answer])
                            status = CompletionStatus.complete
                            chunk["system_fingerprint"] = self.id
                    if chunk.get("choices") or self.chat.wants_usage:
                        self._stamp(chunk)
                        chunk.pop("prompt_token_ids", None)
                        if not self.chat.wants_usage:
                            chunk.pop("usage", None)
                        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
                        sent = True
            if status != CompletionStatus.complete:
                raise httpx.RemoteProtocolError("the stream ended without a finish_reason")
            yield b"data: [DONE]\n\n"
        except (httpx.HTTPError, ValueError) as error:
            status = CompletionStatus.failed
            lost = _lost(error)
            if not sent:
                raise lost from error
            yield b"data: " + json.dumps(lost.body()).encode() + b"\n\n"
        except APIError as error:
            status = CompletionStatus.failed
            if not sent:
                raise
            yield b"data: " + json.dumps(error.body()).encode() + b"\n\n"
        finally:
            if status != CompletionStatus.complete:
                self.gateway.record_later(self._rows([answer], status))

    @asynccontextmanager
    async def _ask(self) -> AsyncIterator[httpx.Response]:
        """vLLM's answer, its headers read. Leaving the context early closes the connection, which aborts generation.

        Raises APIError for what vLLM refuses; retries once where the default length does not fit the context.
        """
        engine = self.gateway.engine(self.rollout)
        try:
            await engine.wait_ready(self.gateway.engine_wait)
        except EngineError as error:
            raise APIError(503, str(error), code="engine_not_ready", retry_after=10) from None
        async with self.gateway.adapter(self.policy, self.version) as name:
            body = self.chat.upstream(name, cpu=engine.cpu)
            while True:
                request = engine.client.build_request("POST", "/v1/chat/completions", json=body)
                try:
                    response = await engine.client.send(request, stream=True)
                except httpx.HTTPError:
                    engine.suspect()
                    raise
                try:
                    if response.status_code == 200:
                        yield response
                        return
                    refusal = _refusal(response.status_code, await response.aread())
                finally:
                    await response.aclose()
                if refusal.code == "context_length_exceeded" and self.chat.default_max_tokens and "max_tokens" in body:
                    del body["max_tokens"]  # vLLM then takes what the context leaves, if it leaves anything
                    self.chat.sampling.max_tokens = None
                    continue
                raise refusal

    def _rows(self, answers: Sequence[Answer], status: CompletionStatus) -> list[Completion]:
        return [
            self.gateway.completion(self.id if i == 0 else f"{self.id}.{i}", self, answer, status, self.created)
            for i, answer in enumerate(answers)
        ]

    async def _record(self, answers: Sequence[Answer]) -> None:
        if not all(answer.whole for answer in answers):
            raise APIError(
                502,
                "the engine answered without exact tokens; it must be vLLM that honours return_token_ids",
                code="missing_tokens",
            )
        if self.chat.sampling.max_tokens is None:
            engine = self.gateway.engine(self.rollout)
            left = (engine.max_model_len or 0) - len(answers[0].prompt_token_ids)
            self.chat.sampling.max_tokens = left if left > 0 else None
        await self.gateway.record(self._rows(answers, CompletionStatus.complete))

    def _clean(self, choice: dict[str, Any]) -> None:
        """Takes out of an answer what the client did not ask for."""
        if not self.chat.body.get("return_token_ids"):
            choice.pop("token_ids", None)
        if not self.chat.wants_logprobs and "logprobs" in choice:
            choice["logprobs"] = None

    def _stamp(self, body: dict[str, Any]) -> None:
        body["id"] = self.id
        body["model"] = f"{self.policy}@{self.version}" if self.policy else body.get("model")


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Cancels the work when the client goes away, which aborts the generation in vLLM."""
    task = asyncio.create_task(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.create_task(gone())
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


def _refusal(status: int, body: bytes) -> APIError:
    """vLLM's error in OpenAI's words."""
    try:
        found = json.loads(body)
        message = str((found.get("error") or found).get("message") or found)
    except (ValueError, AttributeError):
        message = body.decode(errors="replace")[:500]
    lowered = message.lower()
    if status == 400 and (
        "context length" in lowered or "maximum model length" in lowered or "max_model_len" in lowered
    ):
        return APIError(400, message, code="context_length_exceeded", param="messages")
    if 400 <= status < 500 and status not in (401, 403, 404):
        return APIError(400, message, code="invalid_request")
    return APIError(502, f"the engine answered {status}: {message}", code="engine_error", retry_after=2)


def _lost(error: Exception) -> APIError:
    return APIError(503, f"the engine went away during the answer: {error!r}", code="engine_lost", retry_after=5)
