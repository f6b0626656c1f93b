"""Turns conversations into token ids with the engine's own chat template.

Each answer is rendered twice, as vLLM renders a request. The first text has the messages before the answer and the
generation prompt: that is what the gateway would prompt with. The second text has the answer too. The second begins
with the first. The tokens that it adds, up to the token that ends an answer, are those that the model must sample.
Answers for which this does not hold are skipped and counted, and so are those of which the template leaves something
out. Answers of gpt-oss are written in Harmony's format, which no template of vLLM renders.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from trainer_server.engines import harmony
from trainer_server.engines.base import Engine, RequestRefused
from trainer_server.jobs.demonstrations import Collection, Demonstrations, Turn
from trainer_server.ledger.base import Ledger
from trainer_server.wire import Conversation, SFTRequest, TrainingError, TrajectoryRef

_QUESTION = {"role": "user", "content": "?"}
_PROBES = ("yes", "no")
"""Two answers that differ in every token, to find what the template puts after any answer."""


class NotRendered(Exception):
    """An answer that the template cannot render exactly. The message is the reason under which it is counted."""


class Renderer:
    """Renders conversations with one engine. All policies share the chat template of its base model.

    Args:
        engine: Renders and tokenizes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def demonstrations(self, request: SFTRequest, ledger: Ledger, tokenizer: str) -> Demonstrations:
        """Renders everything that a warm start imitates and measures.

        Args:
            request: The warm start.
            ledger: Holds the completions of the request's trajectories.
            tokenizer: Fingerprint; completions of other tokenizers are skipped.

        Raises:
            EngineError: The engine went away.
            TrainingError: A conversation cannot be rendered, or nothing of the validation can be measured.
            LedgerError: The ledger could not be read.
        """
        start = time.monotonic()
        try:
            end = await self._end() if request.conversations or request.validation else -1
        except RequestRefused as error:
            raise TrainingError(str(error)) from None
        trajectories = [*request.trajectories, *request.validation_trajectories]
        ids = [completion_id for trajectory in trajectories for completion_id in trajectory.completions]
        completions = await asyncio.to_thread(ledger.read, ids)

        async def collect(
            conversations: list[Conversation], trajectories: list[TrajectoryRef], what: str
        ) -> Demonstrations:
            collection = Collection(request.config)
            for number, item in enumerate(conversations):
                conversation = item if item.tools is not None else item.model_copy(update={"tools": request.tools})
                positions = conversation.answers(request.config.train_on)
                if not positions:
                    collection.conversations_skipped["no_answer"] += 1
                try:
                    results = await asyncio.gather(*(self._turn(conversation, at, end) for at in positions))
                except (TrainingError, RequestRefused) as error:
                    raise TrainingError(f"{what} {number} (counted from 0): {error}") from None
                collection.turns_skipped.update(reason for reason in results if isinstance(reason, str))
                collection.add(turn for turn in results if isinstance(turn, Turn))
            for trajectory in trajectories:
                collection.add_trajectory(trajectory, completions, tokenizer=tokenizer)
            return collection.whole(time.monotonic() - start)

        validation = None
        if request.validation or request.validation_trajectories:
            validation = await collect(
                request.validation, request.validation_trajectories, "conversation of the validation"
            )
            if not validation.rows:
                raise TrainingError(f"validation: {validation.why_nothing('measure')}")
        demonstrations = await collect(request.conversations, request.trajectories, "conversation")
        return demonstrations if validation is None else demonstrations.with_validation(validation)

    async def _turn(self, conversation: Conversation, at: int, end: int | None) -> Turn | str:
        """Renders one answer.

        Args:
            conversation: The conversation.
            at: Index of the answer's message.
            end: The token that ends an answer; None: answers are in Harmony's format.

        Returns:
            The answer, or the reason why it is skipped.
        """
        message = conversation.messages[at]
        if end is None:
            if (text := harmony.answer(message)) is None:
                return "not_one_answer"
            prompt, answer = await asyncio.gather(
                self._chat(conversation, at, generation=True), self._engine.tokenize(text)
            )
            return Turn(prompt, answer)
        prompt, whole = await asyncio.gather(
            self._chat(conversation, at, generation=True), self._chat(conversation, at + 1, generation=False)
        )
        try:
            rest = (
                whole[len(prompt) :] if whole[: len(prompt)] == prompt else await self._tokenize_answer(prompt, whole)
            )
        except NotRendered as reason:
            return str(reason)
        if left_out := await self._left_out(message, rest):
            return left_out
        if rest.count(end) != 1:
            return "no_end" if end not in rest else "end_in_text"
        answer = rest[: rest.index(end) + 1]
        return Turn(prompt, answer) if len(answer) > 1 else "empty"

    async def _left_out(self, message: Mapping[str, Any], answer: list[int]) -> str | None:
        """What a template that knows no calls or no thoughts has left out of an answer; None: nothing."""
        names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
        thought = message.get("reasoning") or message.get("reasoning_content") or ""
        if not names and not thought:
            return None
        text = await self._engine.detokenize(answer)
        if any(name not in text for name in names):
            return "template_drops_tool_calls"
        return None if "".join(thought.split()) in "".join(text.split()) else "template_drops_reasoning"

    async def _tokenize_answer(self, prompt: list[int], whole: list[int]) -> list[int]:
        """Tokens of the answer where the tokenizer merged tokens of prompt and answer.

        The answer's text is tokenized by itself, so that its tokens begin where sampling begins.

        Args:
            prompt: Tokens up to the answer.
            whole: Tokens up to the answer's end.

        Raises:
            NotRendered: The template renders the prompt differently once there is an answer, or the tokens do not give
                the same text.
        """
        before, text = await asyncio.gather(self._engine.detokenize(prompt), self._engine.detokenize(whole))
        if not text.startswith(before):
            raise NotRendered("template_rewrites_prompt")
        rest = await self._engine.tokenize(text[len(before) :])
        if await self._engine.detokenize(prompt + rest) != text:
            raise NotRendered("not_tokenizable")
        return rest

    async def _end(self) -> int | None:
        """The token that ends an answer: the first token that the template puts after every answer. None where answers
        are in Harmony's format."""
        prompt = await self._chat(Conversation(messages=[_QUESTION]), 1, generation=True)
        if (await self._engine.detokenize(prompt)).endswith(harmony.START):
            return None
        first, second = [
            await self._chat(
                Conversation(messages=[_QUESTION, {"role": "assistant", "content": answer}]), 2, generation=False
            )
            for answer in _PROBES
        ]
        same = 0
        while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
            same += 1
        if not same:
            raise TrainingError("the chat template puts nothing after an answer: no token could end it")
        return first[-same]

    async def _chat(self, conversation: Conversation, count: int, *, generation: bool) -> list[int]:
        """Token ids of the first `count` messages, rendered with the parameters that the gateway would forward."""
        messages = [
            {key: value for key, value in message.items() if key != "weight"}
            for message in conversation.messages[:count]
        ]
        parameters = {
            "messages": messages,
            "tools": conversation.tools,
            "chat_template_kwargs": conversation.chat_template_kwargs,
        }
        body = {key: value for key, value in parameters.items() if value is not None}
        return await self._engine.render(body, generation=generation)
