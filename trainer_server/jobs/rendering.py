"""Conversations → token ids, by the engine's own chat template: what the gateway prompts with, and should get back.

Each answer is rendered twice, as vLLM would render a request: what comes before it, with the generation prompt, and the
same with the answer. The second begins with the first; what it adds is what the model must sample, up to the token that
ends an answer. What does not fit this picture is left out and counted, not bent into shape.
"""

from __future__ import annotations

import asyncio
import time

from trainer_server.engines.base import Engine, RequestRefused
from trainer_server.jobs.demonstrations import Collection, Demonstrations, Turn
from trainer_server.ledger.base import Ledger
from trainer_server.wire import Conversation, SFTRequest, TrainingError

_PROBES = ("yes", "no")


class NotRendered(Exception):
    """An answer that the template does not lend itself to. The message is the reason that it is counted under."""


class Renderer:
    """Renders with one engine; all policies share its base model's template."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def demonstrations(self, request: SFTRequest, ledger: Ledger, tokenizer: str) -> Demonstrations:
        """Everything that a request wants imitated. Raises EngineError when the engine is away, TrainingError."""
        started = time.monotonic()
        collection = Collection(request.config)
        try:
            end = await self._end() if request.conversations else -1
        except RequestRefused as error:
            raise TrainingError(str(error)) from None
        for number, conversation in enumerate(request.conversations):
            places = conversation.answers(request.config.train_on)
            if not places:
                collection.conversations_skipped["no_answer"] += 1
            try:
                found = await asyncio.gather(*(self._turn(conversation, at, end) for at in places))
            except (TrainingError, RequestRefused) as error:
                raise TrainingError(f"conversation {number} (counted from 0): {error}") from None
            collection.turns_skipped.update(one for one in found if isinstance(one, str))
            collection.add(one for one in found if isinstance(one, Turn))
        ids = [one for trajectory in request.trajectories for one in trajectory.completions]
        completions = await asyncio.to_thread(ledger.read, ids)
        for trajectory in request.trajectories:
            collection.add_trajectory(trajectory, completions, tokenizer=tokenizer)
        return collection.whole(time.monotonic() - started)

    async def _turn(self, conversation: Conversation, at: int, end: int) -> Turn | str:
        """The answer at a place of a conversation, or why there is none."""
        prompt, whole = await asyncio.gather(
            self._chat(conversation, at, generation=True), self._chat(conversation, at + 1, generation=False)
        )
        try:
            rest = whole[len(prompt) :] if whole[: len(prompt)] == prompt else await self._retokenized(prompt, whole)
        except NotRendered as reason:
            return str(reason)
        if rest.count(end) != 1:
            return "no_end" if end not in rest else "end_in_text"
        answer = rest[: rest.index(end) + 1]
        return Turn(prompt, answer) if len(answer) > 1 else "empty"

    async def _retokenized(self, prompt: list[int], whole: list[int]) -> list[int]:
        """What is added when tokens merge across the border: the same text, in tokens that begin where sampling does.

        Raises NotRendered when the text before the answer is another once there is an answer.
        """
        before, text = await asyncio.gather(self._engine.detokenize(prompt), self._engine.detokenize(whole))
        if not text.startswith(before):
            raise NotRendered("template_rewrites_prompt")
        rest = await self._engine.tokenize(text[len(before) :])
        if await self._engine.detokenize(prompt + rest) != text:
            raise NotRendered("not_tokenizable")
        return rest

    async def _end(self) -> int:
        """The token that ends an answer: the first one that the template puts after any answer."""
        ask = {"role": "user", "content": "?"}
        first, second = [
            await self._chat(Conversation(messages=[ask, {"role": "assistant", "content": one}]), 2, generation=False)
            for one in _PROBES
        ]
        same = 0
        while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
            same += 1
        if not same:
            raise TrainingError("the chat template puts nothing after an answer: no token could end it")
        return first[-same]

    async def _chat(self, conversation: Conversation, count: int, *, generation: bool) -> list[int]:
        """Token ids of the first `count` messages. The gateway passes these parameters of a chat request on as they
        are, and so does this."""
        messages = [{k: v for k, v in one.items() if k != "weight"} for one in conversation.messages[:count]]
        asked = {
            "messages": messages,
            "tools": conversation.tools,
            "chat_template_kwargs": conversation.chat_template_kwargs,
        }
        body = {key: value for key, value in asked.items() if value is not None}
        return await self._engine.render(body, generation=generation)
