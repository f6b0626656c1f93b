"""What the trainer needs of engines before it takes a step that has a teacher: scores of another vLLM, hinted prompts.

A teacher that is a policy or the base model needs none of this: the trainer computes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

from trainer_server.engines.base import Engine, RequestRefused
from trainer_server.engines.registry import Teacher
from trainer_server.jobs.job_files import Teaching
from trainer_server.ledger.base import Ledger
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Completion, GRPOConfig, StepRequest, TrainingError, Unprocessable
from trainer_server.wire.rollouts import hinted_messages

log = logging.getLogger("trainer_server")

T = TypeVar("T")

_AT_ONCE = 16
"""Requests to an engine that are under way at the same time."""


class Teachers:
    """The teachers that steps may name; scores of those that are another vLLM.

    Args:
        store: Versions on disk.
        names: The policies that are served.
        urls: Addresses that may be asked (`serve --teacher-url`).
        api_key: Key of the servers there; None: they have none.
    """

    def __init__(
        self, store: AdapterStore, names: PolicyNames, *, urls: Collection[str] = (), api_key: str | None = None
    ) -> None:
        self._store, self._names, self._api_key = store, names, api_key
        self._urls = {url.rstrip("/").removesuffix("/v1") for url in urls}

    def check(self, config: GRPOConfig) -> None:
        """Raises Unprocessable for a teacher that is not there, or whose address is not allowed."""
        distill = config.distill
        if distill is None or distill.teacher is None:
            return
        why = None
        if distill.url is not None:
            if distill.url not in self._urls:
                addresses = ", ".join(sorted(self._urls)) or "none"
                why = f"the server may not ask this address; `serve --teacher-url` allows addresses (now: {addresses})"
        elif distill.version is not None:
            policy, version = distill.version
            newest = self._store.newest(policy)
            if policy in self._names.unserved_policies:
                why = self._names.unserved_policies[policy]
            elif newest is None:
                policies = ", ".join(["base", *self._names.newest])
                why = f"there is no policy {policy!r} on this server; there are: {policies}"
            else:
                why = self._store.problem(policy, version if isinstance(version, int) else newest)
        if why is not None:
            raise Unprocessable(
                f"distill.teacher={distill.teacher!r}: {why}", code="unknown_teacher", param="config.distill.teacher"
            )

    async def teaching(self, request: StepRequest, engine: Engine, ledger: Ledger) -> Teaching:
        """Asks for all that a step needs.

        Args:
            request: The step.
            engine: Of this server; it is ready.
            ledger: Has the step's completions.

        Raises:
            TrainingError: The teacher has another tokenizer, or refuses every completion.
            EngineError: The engine or the teacher went away.
        """
        start = time.monotonic()
        ids = [id for group in request.groups for trajectory in group.trajectories for id in trajectory.completions]
        completions = await asyncio.to_thread(ledger.read, list(dict.fromkeys(ids)))
        hints = [(completions[id], hint) for id, hint in request.hints if id in completions]
        prompts = await _each(hinted_prompt(engine, completion, hint) for completion, hint in hints)
        teaching = Teaching()
        for (completion, hint), prompt in zip(hints, prompts, strict=True):
            if prompt is not None:
                teaching.prompts.setdefault(hint, {})[completion.id] = prompt
        if missing := prompts.count(None):
            log.warning("%d of %d prompts cannot have their hint, and are not trained", missing, len(prompts))
        distill = request.config.distill
        if distill is not None and distill.url is not None:
            teacher = Teacher(distill.url, self._api_key, distill.model)
            try:
                teaching.scores = await self._scores(teacher, list(completions.values()), engine)
            finally:
                await teacher.close()
        teaching.seconds = time.monotonic() - start
        return teaching

    async def _scores(
        self, teacher: Teacher, completions: Sequence[Completion], engine: Engine
    ) -> dict[str, list[float | None]]:
        await teacher.check(engine, completions)
        results = await _each(teacher.scores(completion) for completion in completions)
        scores = {
            completion.id: score for completion, score in zip(completions, results, strict=True) if score is not None
        }
        if completions and not scores:
            raise TrainingError(f"the teacher at {teacher.url} scored no completion: {teacher.refusal}")
        if refusals := len(completions) - len(scores):
            log.warning(
                "the teacher at %s scored %d of %d completions, the others are not trained: %s",
                teacher.url,
                len(scores),
                refusals + len(scores),
                teacher.refusal,
            )
        return scores


async def hinted_prompt(engine: Engine, completion: Completion, hint: str) -> list[int] | None:
    """The prompt of a completion with a hint in it, as token ids.

    The chat template renders the messages without and with the hint. What differs between the two is put into the
    recorded prompt, at the same place. So the tokens of earlier turns stay those that the policy sampled, and all that
    a request said besides its messages stays as it was.

    Args:
        engine: Renders.
        completion: Of the ledger.
        hint: What is put in.

    Returns:
        None where that cannot be done: the prompt is no conversation, the template refuses the hint, or the recorded
        prompt is another one before the place of the hint.

    Raises:
        EngineError: The engine went away.
    """
    messages = completion.request.get("messages")
    if not messages:
        return None
    tools = {"tools": completion.request["tools"]} if completion.request.get("tools") else {}
    try:
        tokens = await engine.render({"messages": messages, **tools}, generation=True)
        tokens_with_hint = await engine.render({"messages": hinted_messages(messages, hint), **tools}, generation=True)
    except RequestRefused as refusal:
        log.warning("%s cannot have its hint: %s", completion.id, refusal)
        return None
    first = _common(tokens, tokens_with_hint)
    last = _common(tokens[first:][::-1], tokens_with_hint[first:][::-1])
    suffix_start, new_tokens = len(tokens) - last, tokens_with_hint[first : len(tokens_with_hint) - last]
    if completion.prompt_token_ids[:suffix_start] != tokens[:suffix_start] or not new_tokens:
        return None
    return completion.prompt_token_ids[:first] + new_tokens + completion.prompt_token_ids[suffix_start:]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


async def _each(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Awaits all calls, `_AT_ONCE` at a time; the first error ends the others."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def run_limited(call: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await call

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run_limited(call)) for call in calls]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in running]
