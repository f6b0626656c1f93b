"""Stage 5, record: makes rows of the ledger from answers, and writes them before the last byte is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_server.common.text_call import TEXT_CALL, TEXT_CALL_REMEDY, text_call
from trainer_server.engines.served_model import ServedModel
from trainer_server.gateway.answer import Answer
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parser import ChatRequest
from trainer_server.gateway.resolver import Source
from trainer_server.gateway.sampler import Attempt
from trainer_server.ledger.base import CompletionWriter, LedgerError
from trainer_server.ledger.redaction import Redaction
from trainer_server.wire import Completion, CompletionStatus
from trainer_server.wire.text import beginning

log = logging.getLogger("trainer_server")

_ERROR = 2000
"""Characters of an error that are recorded: an engine may repeat the whole request in it."""
_REFUSED_TEXT, _REFUSED_TEXTS = 2**14, 2**18
"""Characters of each text of a refused request that are recorded, and of all together: it may be as large as bodies may
be, and a client may send it again and again."""
_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
_SHORT = 40
"""Characters of a text that are recorded in any case: roles, names and ids."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the server, which every completion in the ledger has.

    Args:
        server_id: Id of the server.
        base: The base model.
        tokenizer: Fingerprint of its tokenizer.
    """

    server_id: str
    base: ServedModel
    tokenizer: str


class Recorder:
    """Writes completions into the ledger.

    Args:
        identity: Identity of this server.
        ledger: Where completions are recorded.
        counts: Called with the completions of an answer once they are recorded.
        redaction: Changes texts before they are recorded; None: they are recorded as they are.
    """

    def __init__(
        self,
        identity: Identity,
        ledger: CompletionWriter,
        counts: Collection[Callable[[Sequence[Completion]], None]] = (),
        redaction: Redaction | None = None,
    ) -> None:
        self.identity, self._ledger, self._counts = identity, ledger, counts
        self._redaction = redaction if redaction and redaction.on else None
        self._background: set[asyncio.Task[None]] = set()
        self._text_callers: set[str | None] = set()

    def rows(
        self,
        chat: ChatRequest,
        source: Source,
        attempt: Attempt,
        answers: Sequence[Answer],
        status: CompletionStatus,
        *,
        untrainable: str | None = None,
        error: str | None = None,
    ) -> list[Completion]:
        """Makes the ledger's rows of an answer, one for each choice.

        Args:
            chat: The request.
            source: Where the answer comes from.
            attempt: How the request was sent to an engine.
            answers: The choices, as far as they were received.
            status: How the completion ended.
            untrainable: Why it must not be trained; None: it may be.
            error: The error message that the client gets in place of an answer; None: it gets an answer.
        """
        request = ledger_request(chat)
        reasons = constraints(chat, calls=bool(attempt.engine and attempt.engine.constrains_calls))
        return [
            Completion(
                id=f"{attempt.id}.{number}" if number else attempt.id,
                created=attempt.created_at,
                server_id=self.identity.server_id,
                base_model=self.identity.base.name,
                tokenizer=self.identity.tokenizer,
                policy=source.policy,
                version=source.version,
                model=chat.model,
                rollout=source.rollout,
                hint=source.hint,
                status=status,
                untrainable=untrainable,
                error=None if error is None else error[:_ERROR],
                finish_reason=answer.finish_reason,
                sampling=chat.sampling.model_copy(update={"max_tokens": attempt.max_tokens}),
                constrained=reasons,
                dropped=chat.dropped_names,
                prompt_token_ids=answer.prompt_token_ids,
                token_ids=answer.token_ids,
                logprobs=answer.logprobs,
                routed_experts=answer.routed_experts,
                request=_shorten(request) if status == CompletionStatus.refused else request,
                message=answer.message,
                continues=attempt.prompt.continues,
                continuation=attempt.prompt.continuation,
            )
            for number, answer in enumerate(answers)
        ]

    async def add(self, completions: Sequence[Completion]) -> None:
        """Records completions, and returns once they are on disk.

        Raises:
            APIError: 507, the ledger could not be written.
        """
        try:
            await self._write(completions)
        except LedgerError as error:
            raise APIError(507, str(error), code="ledger_unwritable") from None

    async def note(self, completions: Sequence[Completion]) -> None:
        """Records completions that have no whole answer, and returns once they are on disk. Errors are logged: the
        client gets that of its request."""
        try:
            await self._write(completions)
        except LedgerError as error:
            log.error("a completion without a whole answer was not recorded: %s", error)

    def add_later(self, completions: Sequence[Completion]) -> None:
        """Records completions in the background, for requests whose client has disconnected. Errors are logged."""
        task = asyncio.create_task(self.note(completions))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _write(self, completions: Sequence[Completion]) -> None:
        rows = completions
        if (redaction := self._redaction) is not None:
            rows = await asyncio.to_thread(lambda: [redaction.completion(completion) for completion in completions])
        await self._ledger.add(*rows)
        for count in self._counts:
            count(completions)
        self._warn_of_text_calls(completions)

    def _warn_of_text_calls(self, completions: Sequence[Completion]) -> None:
        """Logs the first answer of each policy that looks like a tool call which the parser did not take: the agent
        takes it for its last word, and success is 0 without an error."""
        for row in completions:
            if row.policy not in self._text_callers and (name := text_call(row.message, row.request)):
                self._text_callers.add(row.policy)
                call = TEXT_CALL.format(name=name)
                log.warning("an answer of %s: %s. %s", row.policy or row.model, call, TEXT_CALL_REMEDY)

    async def close(self) -> None:
        """Waits until the completions of `add_later` are recorded."""
        await asyncio.gather(*self._background, return_exceptions=True)


def constraints(chat: ChatRequest, *, calls: bool) -> list[str]:
    """Why the log-probabilities of an answer are not those of the policy alone: a grammar, `top_p`, …

    Args:
        chat: The request.
        calls: Whether the engine answers all requests with tools under a grammar.
    """
    options, sampling = chat.options, chat.sampling
    reasons = ["grammar"] * (options.grammar or (calls and options.may_call))
    reasons += ["top_p"] * (sampling.top_p < 1) + ["top_k"] * (sampling.top_k > 0)
    reasons += ["min_p"] * (sampling.min_p > 0)
    if any(getattr(sampling, name) != neutral for name, neutral in _PENALTIES.items()):
        reasons.append("penalties")
    if options.logit_bias or options.min_tokens:
        reasons.append("logit_bias")
    return reasons


def ledger_request(chat: ChatRequest) -> dict[str, Any]:
    """The part of a request that goes into the ledger. A prompt of token ids is in the row already."""
    parts = {key: chat.body[key] for key in ("messages", "tools", "tool_choice", "stop") if chat.body.get(key)}
    text = {"prompt": chat.prompt} if isinstance(chat.prompt, str) else {}
    return {**parts, **text, **chat.exchange.note}


def _shorten(request: dict[str, Any]) -> dict[str, Any]:
    """A refused request with the beginnings of its texts."""
    rest = _REFUSED_TEXTS

    def short(value: Any) -> Any:
        nonlocal rest
        if isinstance(value, str):
            start = beginning(value, min(_REFUSED_TEXT, max(rest, _SHORT)))
            rest -= min(len(value), _REFUSED_TEXT, rest)
            return start
        if isinstance(value, dict):
            return {name: short(part) for name, part in value.items()}
        return [short(part) for part in value] if isinstance(value, list) else value

    return {name: short(value) for name, value in request.items()}
