"""Another vLLM as a teacher: it says how likely it finds tokens that a policy of this server sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trainer_server.engines.base import Engine, EngineLost, MalformedAnswer, RequestRefused, TeacherLost
from trainer_server.engines.vllm.dialect import VLLMClient
from trainer_server.wire import Completion, EngineError, TrainingError
from trainer_server.wire.text import beginning

PROBES = (
    "The quick brown fox, 12345 + 67.89 = ?\n\n\tdef f(x):\n        return {'a': [x ** 2]}",
    'Zażółć gęślą jaźń — ελληνικά, русский, 日本語, العربية 🦊‍🔥\r\n  \u00a0<tool_call>{"name": null}</tool_call>',
)
"""Texts in which tokenizers differ: numbers, white space, code, other scripts, joined emoji, markup of tool calls."""
COMPARED_COMPLETIONS = 64
"""How many completions are read by both tokenizers, token by token, before any is scored."""
ANSWER_WITHIN = 180.0
"""Seconds in which a teacher must score a completion. One that accepts requests and never answers counts as lost."""
KEY_VARIABLE = "ART_TEACHER_API_KEY"
"""Where `serve` finds the key of its teachers."""


class VLLMTeacher:
    """A client of the vLLM at one address.

    Args:
        url: Its root, without `/v1`.
        api_key: Its key; None: it has none.
        model: Name of the model; None: the only one that it serves.

    Attributes:
        url: As the argument.
        refusal: Why it first refused a completion; None: it refused none.
    """

    def __init__(self, url: str, api_key: str | None, model: str | None = None) -> None:
        self.url, self._api_key, self._model = url, api_key, model
        self._client = self._client_for(model or "")
        self.refusal: str | None = None

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()

    def _client_for(self, model: str) -> VLLMClient:
        return VLLMClient(self.url, self._api_key, base=model, cpu=False, option="--teacher-url", key=KEY_VARIABLE)

    async def check(self, engine: Engine, completions: Sequence[Completion]) -> None:
        """Looks whether it has the tokenizer of this server's engine.

        Args:
            engine: Of this server.
            completions: That it will score; both tokenizers read some of them.

        Raises:
            TrainingError: It has another tokenizer, or it is not clear which of its models is asked, or it refuses the
                key.
            TeacherLost: It does not answer.
        """
        if self._model is None:
            models = await self._list_models()
            if len(models) != 1:
                raise TrainingError(
                    f"the teacher at {self.url} serves {', '.join(models) or 'nothing'}: name one of its models, "
                    'Distillation(teacher="…", model="…")'
                )
            await self._client.close()
            self._model, self._client = models[0], self._client_for(models[0])
        try:
            for text in PROBES:
                here = await engine.tokenize(text)
                with _as_teacher_lost():
                    there = await self._client.tokenize(text)
                if here != there:
                    raise self._other_tokenizer(text, here, there)
            for completion in completions[:COMPARED_COMPLETIONS]:
                tokens = [*completion.prompt_token_ids, *completion.token_ids]
                ours = await engine.detokenize(tokens)
                with _as_teacher_lost():
                    theirs = await self._client.detokenize(tokens)
                if ours != theirs:
                    at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
                    raise TrainingError(
                        f"the teacher {self._model} at {self.url} has another tokenizer: tokens of {completion.id} "
                        f"read {beginning(ours[at:], 60)!r} here and {beginning(theirs[at:], 60)!r} there. A teacher "
                        "must have the tokenizer of the base model"
                    )
        except (RequestRefused, MalformedAnswer) as refusal:
            raise TrainingError(
                f"the teacher {self._model} at {self.url} cannot be asked about its tokenizer: {refusal}. It must be a "
                f"vLLM; its key, if it has one, is {KEY_VARIABLE} in the environment of `serve`"
            ) from None

    async def scores(self, completion: Completion) -> list[float | None] | None:
        """The log-probability of each sampled token, at temperature 1; None for those it gave none.

        Returns:
            None where it refuses the completion, for example because it is longer than its context; see `refusal`.

        Raises:
            TeacherLost: It went away, or did not answer within ANSWER_WITHIN seconds.
        """
        tokens = [*completion.prompt_token_ids, *completion.token_ids]
        try:
            with _as_teacher_lost():
                async with asyncio.timeout(ANSWER_WITHIN):
                    return await self._client.prompt_logprobs(tokens, len(completion.token_ids))
        except TimeoutError:
            raise TeacherLost(f"{self.url} did not score {completion.id} within {ANSWER_WITHIN:g} s") from None
        except (RequestRefused, MalformedAnswer) as refusal:
            self.refusal = self.refusal or str(refusal)
            return None

    async def _list_models(self) -> list[str]:
        try:
            with _as_teacher_lost():
                return await self._client.list_models()
        except TeacherLost:
            raise
        except EngineError as error:
            raise TrainingError(f"the teacher at {self.url} does not say which models it has: {error}") from None

    def _other_tokenizer(self, text: str, here: Sequence[int], there: Sequence[int]) -> TrainingError:
        return TrainingError(
            f"the teacher {self._model} at {self.url} has another tokenizer: {beginning(text, 30)!r} is "
            f"{len(here)} tokens here and {len(there)} there, the first {list(here[:5])} and {list(there[:5])}. A "
            "teacher must have the tokenizer of the base model"
        )


@contextmanager
def _as_teacher_lost() -> Iterator[None]:
    """For requests to a teacher, so that it is not taken for an engine of this server."""
    try:
        yield
    except EngineLost as error:
        raise TeacherLost(str(error), reached=error.reached) from error
