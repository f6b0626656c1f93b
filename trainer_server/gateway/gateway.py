"""The gateway: answers requests for completions, and records each with exact tokens before its last byte is sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trainer_server.engines.base import RequestRefused
from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Slots
from trainer_server.gateway.admission import Admission
from trainer_server.gateway.body import check_values, read_json
from trainer_server.gateway.call import Call
from trainer_server.gateway.chat_request import ChatRequest
from trainer_server.gateway.dialects.base import Dialect, Exchange
from trainer_server.gateway.dialects.exchange_check import check_exchange
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.recorder import Recorder, Source
from trainer_server.gateway.rollout_pins import RolloutPins
from trainer_server.gateway.splice.splicer import Splicer
from trainer_server.policies.canary import Canary
from trainer_server.policies.leases import Leases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import LATEST, CompletionStatus, EngineError, version_number
from trainer_server.wire.json_size import off_loop
from trainer_server.wire.network.headers import ROLLOUT
from trainer_server.wire.rollouts import hinted_messages

log = logging.getLogger("trainer_server")


class Gateway:
    """Answers `/v1/chat/completions`, the same in other dialects, and `/v1/models`.

    Args:
        recorder: Writes answers to the ledger.
        store: Policies on disk.
        names: The version that each policy's name currently means.
        slots: The cache of adapters on the engines.
        leases: Versions that running rollouts are pinned to.
        canary: What policies' names mean for each rollout.
        pins: What the requests of each rollout are answered with.
        engines: The engines that answer.
        admission: Places at the engines.
        max_tokens: Limit of tokens when a request names none.
        engine_wait: Seconds that a request waits for an engine that is starting or restarting.
        media_domains: Domains from which engines may fetch images and other media; empty: they fetch nothing.
        splicer: Splices prompts with the tokens of earlier turns.
        check_owner: Called with a request and the rollout of the answer that it continues; raises APIError, 403, if the
            rollout belongs to another token.

    Attributes:
        splicer: As the argument.
        requests: Chat requests since the start of the server.
        stopping: Set it to end all streams that are under way.
    """

    def __init__(
        self,
        *,
        recorder: Recorder,
        store: AdapterStore,
        names: PolicyNames,
        slots: Slots,
        leases: Leases,
        canary: Canary,
        pins: RolloutPins,
        engines: Engines,
        admission: Admission,
        max_tokens: int = 1024,
        engine_wait: float = 180.0,
        media_domains: Collection[str] = (),
        splicer: Splicer,
        check_owner: Callable[[Request, str], Awaitable[None]],
    ) -> None:
        self._recorder = recorder
        self._store, self._names, self._slots = store, names, slots
        self._leases, self._engines, self._pins = leases, engines, pins
        self._canary = canary
        self._admission, self._media_domains = admission, media_domains
        self.splicer, self._check_owner = splicer, check_owner
        self._max_tokens, self._engine_wait = max_tokens, engine_wait
        self.stopping = asyncio.Event()
        self._noted: set[str] = set()
        """Dropped parameters that were logged. Each is logged once."""
        self._base = recorder.identity.base.name
        self.requests = 0

    def models(self) -> dict[str, Any]:
        """The answer to `GET /v1/models`: the base model, all policies, and all their versions. `@latest` is listed
        where the policy's name means another version."""
        ids = [self._base]
        for policy in self._store.policies():
            latest = [] if policy.promoted is None else [f"{policy.name}@{LATEST}"]
            ids += [policy.name, *latest, *(f"{policy.name}@{v}" for v in self._store.versions(policy.name))]
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "art-langgraph"} for name in ids],
        }

    async def answer(self, request: Request, dialect: Dialect) -> Response:
        """Answers a request.

        Args:
            request: The request.
            dialect: The API in which it asks.

        Raises:
            APIError: The request is wrong, or cannot be answered now.
        """
        self.requests += 1
        exchange, size = await self._read(request, dialect)
        rollout = request.headers.get(ROLLOUT)
        if rollout is not None and not 0 < len(rollout) <= 200:
            raise APIError(400, f"header {ROLLOUT} must have 1 to 200 characters", param=ROLLOUT)
        pinned = await self._pins.of(rollout, request.headers)
        policy, version = await self._resolve(pinned.model(exchange.chat.get("model")), rollout)
        override = pinned.temperature
        if override is None and policy and (spec := self._store.spec(policy)):
            override = spec.temperature
        hint = pinned.hints.get(policy) if policy else None
        if hint is not None:
            if exchange.prompt is not None:
                raise APIError(400, "a text completion has no messages, which the rollout's hint needs", param="prompt")
            exchange.chat["messages"] = hinted_messages(exchange.chat.get("messages"), hint)
        chat = await off_loop(size, partial(self._check_exchange, exchange, override))
        self._note_dropped(chat)
        source = Source(policy, version, rollout, hint)
        call = Call(
            chat,
            source,
            exchange=exchange,
            prompt=self.splicer.prompt(chat, rollout),
            affinity_key=rollout or _conversation(chat),
            engines=self._engines,
            slots=self._slots,
            names=self._names,
            recorder=self._recorder,
            admission=self._admission,
            engine_wait=self._engine_wait,
            stopping=self.stopping,
        )
        return await _unless_disconnected(request, call.stream() if chat.stream else call.answer())

    async def count(self, request: Request, dialect: Dialect) -> int:
        """Counts the tokens that a request would prompt the model with.

        Raises:
            APIError: The request is wrong, or cannot be rendered now.
        """
        exchange, size = await self._read(request, dialect)
        await self._resolve(exchange.chat.get("model"), None)
        chat = await off_loop(size, partial(self._check_exchange, exchange, None))
        rendered = {
            name: chat.body[name]
            for name in ("messages", "tools", "chat_template_kwargs", "continue_final_message")
            if chat.body.get(name)
        }
        try:
            await self._engines.wait_ready(self._engine_wait)
            with self._engines.route(_conversation(chat), sticky=False) as engine:
                return len(await engine.render(rendered, generation=chat.options.add_generation_prompt))
        except RequestRefused as error:
            raise APIError(400, str(error), code="invalid_request", param="messages") from None
        except EngineError as error:
            raise APIError(503, str(error), code="engine_not_ready", retry_after=10) from None

    def forget(self, rollouts: Collection[str]) -> None:
        """Forgets what is kept in memory for rollouts that have ended: their turns, and which engine knows them."""
        self.splicer.forget(rollouts)
        self._engines.forget(rollouts)

    def erase(self, rollouts: Collection[str], completions: Collection[str]) -> None:
        """Forgets what is kept in memory for rollouts and completions that are deleted."""
        self.forget(rollouts)
        self.splicer.drop(completions)

    async def _read(self, request: Request, dialect: Dialect) -> tuple[Exchange, int]:
        """Reads a request, with the completion that it continues; and the bytes of its body."""
        raw = await request.body()
        body = await off_loop(len(raw), partial(_object, raw, dialect.most_values))
        wanted, earlier = dialect.continues(body), None
        if wanted is not None:
            earlier = await self._recorder.read(wanted)
            if earlier is None or earlier.status != CompletionStatus.complete:
                why = "this server has no such answer" if earlier is None else f"that answer is {earlier.status}"
                message = f"{why} ({wanted}), or no longer: send the whole conversation instead of the answer's id"
                raise APIError(404, message, code="previous_response_not_found", param="previous_response_id")
            if earlier.rollout is not None:
                await self._check_owner(request, earlier.rollout)
        return await off_loop(len(raw), partial(dialect.read, body, earlier)), len(raw)

    def _check_exchange(self, exchange: Exchange, temperature: float | None) -> ChatRequest:
        return check_exchange(
            exchange,
            default_max_tokens=self._max_tokens,
            temperature=temperature,
            media_domains=self._media_domains,
        )

    def _note_dropped(self, chat: ChatRequest) -> None:
        for name in sorted(set(chat.dropped_names) - self._noted):
            self._noted.add(name)
            log.info("clients send `%s`, which changes nothing here: it is dropped and noted in the ledger", name)

    async def _resolve(self, model: object, rollout: str | None) -> tuple[str | None, int | None]:
        """The policy and version that a model's name means now; (None, None) for the base model.

        Raises:
            APIError: 404, there is no such model; 400, none is named.
            LedgerError: What the name means, or what the rollout holds, cannot be read or written.
        """
        if not isinstance(model, str) or not model:
            raise APIError(400, "`model` is missing: name a policy (see /v1/models)", param="model")
        name, at, number = model.partition("@")
        if model == self._base:
            return None, None
        if rollout and name == self._base and (number == LATEST or version_number(number) is not None):
            return None, None  # a rollout's version is that of the policies; it does not know which model is none
        await self._names.refresh(name)
        newest = self._names.newest.get(name)
        if newest is not None:
            if not at:
                return name, await self._canary.version(name, rollout)
            if number == LATEST:
                return name, await self._leases.pin(rollout, name, newest, requested_name=model) if rollout else newest
            wanted = version_number(number)
            if wanted is not None and self._store.version(name, wanted):
                if rollout:  # so that it is not deleted between two calls of the run
                    await self._leases.pin(rollout, name, wanted, requested_name=model)
                return name, wanted
            message = self._store.quarantine_reasons(name).get(wanted) if wanted is not None else None
            message = message or f"policy {name!r} has no version {number!r}; its newest is {newest}"
            raise APIError(404, message, code="model_not_found", param="model")
        if unavailable_reason := self._names.unserved_policies.get(name):
            raise APIError(404, unavailable_reason, code="model_not_found", param="model")
        names = [self._base, *sorted(self._names.newest)]
        raise APIError(
            404,
            f"the model {model!r} does not exist; there are: {', '.join(names)}. "
            "`art-langgraph policies create NAME` creates a policy, and so do TrainerClient.create_policy and "
            "POST /api/policies.",
            code="model_not_found",
            param="model",
        )


def _object(raw: bytes, most: int) -> dict[str, Any]:
    """The JSON object in a body. most: see read_json."""
    body = read_json(raw, most)
    if not isinstance(body, dict):
        raise APIError(400, "the body must be a JSON object")
    check_values(body)
    return body


def _conversation(chat: ChatRequest) -> str:
    """Affinity key of a call without a rollout: a digest of the conversation up to its first user message.

    Later calls of the same conversation begin with the same messages, so that they have the same key.
    """
    if chat.prompt is not None:
        return hashlib.sha256(json.dumps([chat.model, chat.prompt[:1000]]).encode()).hexdigest()
    messages = chat.body["messages"]
    question = next((at for at, message in enumerate(messages) if message.get("role") == "user"), 0)
    head = [chat.model, chat.body.get("tools"), messages[: question + 1]]
    return hashlib.sha256(json.dumps(head).encode()).hexdigest()


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Awaits an answer. Cancels the work when the client disconnects, which aborts the generation."""
    task = asyncio.create_task(work)

    async def wait_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.create_task(wait_disconnect())
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
