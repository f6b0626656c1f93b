"""Completions that another server recorded, and that a client brings here."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_server.gateway.body import check_values
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import ChatBody
from trainer_server.gateway.recorder import Identity
from trainer_server.ledger.base import Ledger
from trainer_server.ledger.redaction import Redaction
from trainer_server.wire import (
    MAX_VERSION,
    NAME_PATTERN,
    Added,
    Completion,
    CompletionStatus,
    Conflict,
    Unprocessable,
)

MOST_ROLLOUT = 200
"""Characters of a rollout's id, as for the gateway."""
_NUMBERS = {"prompt_token_ids", "token_ids", "logprobs"}
"""Fields that are checked by themselves."""


class ImportedCompletions:
    """Takes completions of other servers into the ledger. They keep the id of the server that recorded them.

    Warm starts imitate them. Steps of GRPO skip them: a version of theirs has other weights than the version of the
    same number here.

    Args:
        identity: Of this server.
        ledger: Where they are recorded.
        redaction: Changes texts before they are recorded.
    """

    def __init__(self, identity: Identity, ledger: Ledger, redaction: Redaction | None = None) -> None:
        self._identity, self._ledger, self._redaction = identity, ledger, redaction or Redaction()
        self._vocabulary = _vocabulary(Path(identity.base.path))
        self._adding = asyncio.Lock()

    async def add(self, completions: Sequence[Completion]) -> Added:
        """Records completions, all or none of them; those that are here already stay as they are.

        Their time of creation becomes that of their arrival, from which they are kept as long as any other.

        Args:
            completions: Rows of another server's ledger.

        Returns:
            How many are new, and how many were here.

        Raises:
            Unprocessable: A row is none of this base model and tokenizer, or cannot be what a server recorded.
            Conflict: The ledger has another row of the same id, or a row says that this server recorded it, and it
                did not, or a row names a rollout that ran here.
            LedgerError: They could not be recorded.
        """
        by_id = await asyncio.to_thread(self._check_rows, completions)
        async with self._adding:
            own_rows = await asyncio.to_thread(self._ledger.read, list(by_id))
            for completion in by_id.values():
                if completion.id in own_rows:
                    _agree(own_rows[completion.id], completion)
                elif completion.server_id == self._identity.server_id:
                    raise Conflict(
                        f"{completion.id} says that this server ({completion.server_id}) recorded it, but the ledger "
                        "does not have it: it was deleted after its retention, and cannot be brought back",
                        code="not_recorded",
                        param="server_id",
                    )
            arrival = {"created": time.time()}
            new = [row.model_copy(update=arrival) for row in by_id.values() if row.id not in own_rows]
            await asyncio.to_thread(self._refuse_own_rollouts, new)
            await self._ledger.add(*new)
        return Added(added=len(new), known=len(own_rows))

    def _refuse_own_rollouts(self, completions: Sequence[Completion]) -> None:
        """Raises Conflict for a row of a rollout that ran here: to delete the row's policy would delete the rollout."""
        by_rollout = {completion.rollout: completion for completion in completions}
        for rollout, completion in by_rollout.items():
            if rollout is None:
                continue
            if any(row.server_id == self._identity.server_id for row in self._ledger.rollout(rollout)):
                raise Conflict(
                    f"{completion.id} names the rollout {rollout!r:.100}, which ran on this server: rows of another "
                    "server cannot belong to it. Give the row's rollout another id",
                    code="rollout_of_this_server",
                    param="rollout",
                )

    def _check_rows(self, completions: Sequence[Completion]) -> dict[str, Completion]:
        """The rows by id, as they are recorded. Raises as `add` does."""
        for completion in completions:
            self._check(completion)
        by_id: dict[str, Completion] = {}
        for completion in map(self._redaction.completion, completions):
            _agree(by_id.setdefault(completion.id, completion), completion)
        return by_id

    def _check(self, completion: Completion) -> None:
        """Raises Unprocessable for a row that cannot be used here."""
        own = self._identity
        if completion.base_model != own.base.name or completion.tokenizer != own.tokenizer:
            what = "model" if completion.base_model != own.base.name else "tokenizer"
            raise Unprocessable(
                f"{completion.id} was sampled by the base model {completion.base_model!r} with the tokenizer "
                f"{completion.tokenizer[:12]}…; this server has {own.base.name!r} with {own.tokenizer[:12]}…, so its "
                "tokens would be other text here. Bring it to a server with the same base model, or bring the "
                "conversations alone (`trajectories import --no-tokens`)",
                code=f"other_{what}",
                param="base_model" if what == "model" else "tokenizer",
            )
        if problem := self._problem(completion):
            where, what = problem
            raise Unprocessable(
                f"{completion.id[:80]!r} is no row of a ledger: {what}", code="not_a_completion", param=where
            )

    def _problem(self, completion: Completion) -> tuple[str, str] | None:
        """The field of a row that no server would have recorded, and why; None: there is none."""
        if not re.fullmatch(r"[A-Za-z0-9._:-]{1,200}", completion.id):
            return "id", "its id must be letters, digits, `.`, `_`, `:` and `-`, at most 200"
        if completion.policy is not None and not re.fullmatch(NAME_PATTERN, completion.policy):
            return "policy", f"{completion.policy[:80]!r} is no name of a policy"
        if completion.rollout is not None and not 0 < len(completion.rollout) <= MOST_ROLLOUT:
            return "rollout", f"the id of its rollout has {len(completion.rollout)} characters, not 1 to {MOST_ROLLOUT}"
        if (completion.policy is None) != (completion.version is None):
            return "version", "a policy has a version, and the base model has none"
        if completion.version is not None and not 0 <= completion.version < MAX_VERSION:
            return "version", f"{completion.version} is no number of a version"
        count = len(completion.token_ids)
        whole = completion.status == CompletionStatus.complete and not completion.untrainable
        if whole and len(completion.logprobs) != count:
            return "logprobs", f"it has {len(completion.logprobs)} log-probabilities for {count} tokens"
        if not all(map(math.isfinite, completion.logprobs)):
            return "logprobs", "a log-probability is not finite"
        tokens = (*completion.prompt_token_ids, *completion.token_ids)
        if tokens and not (min(tokens) >= 0 and max(tokens) < self._vocabulary):
            return "token_ids", f"the vocabulary has the tokens 0 to {self._vocabulary - 1:.0f}"
        try:
            check_values(completion.model_dump(exclude=_NUMBERS), halves=True)
            ChatBody.of(_conversation(completion))
        except APIError as error:
            return "request", error.message
        return None


def _conversation(completion: Completion) -> dict[str, Any]:
    """A row's request and answer as a chat request. Later requests go on from both, and pages show them.

    Raises:
        APIError: 400, the request has another form than the ledger's.
    """
    request, message = completion.request, completion.message
    messages, instructions = request.get("messages", []), request.get("instructions", 0)
    if not isinstance(messages, list):
        raise APIError(400, f"`messages` should be a list, not {messages!r:.100}")
    if not isinstance(request.get("prompt", ""), str):
        raise APIError(400, f"`prompt` should be a text, not {request['prompt']!r:.100}")
    if not (type(instructions) is int and 0 <= instructions <= len(messages)):
        raise APIError(400, f"`instructions` should be a number of its messages, not {instructions!r:.100}")
    answer = {"role": "assistant", **(message or {})}
    parameters = {name: request.get(name) for name in ("tools", "tool_choice", "stop")}
    return {"model": completion.base_model, "messages": [*messages, answer], **parameters}


def _agree(here: Completion, other: Completion) -> None:
    """Raises Conflict where two rows of one id differ in more than their time."""
    if here.model_copy(update={"created": other.created}) != other:
        raise Conflict(
            f"the ledger has another row of the id {other.id}; rows are never overwritten",
            code="other_content",
            param="id",
        )


def _vocabulary(model: Path) -> float:
    """How many tokens a base model knows; infinite where its configuration does not say."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return float(size or math.inf)
