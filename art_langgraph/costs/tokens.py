"""Tokens: how many tokens runs read and wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from art_langgraph.trajectory import CompletionCall, Trajectory


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of some model calls, as the answers counted them.

    Args:
        prompt: Tokens of all prompts.
        sampled: Tokens that the model said.
        cached: Tokens of the prompts that the engine had in its cache. None: no answer says.
        trained: Tokens that the trainer computed. None: nothing was trained.
        uncounted: Answers that do not say their tokens. The numbers above are without them.
    """

    prompt: int = 0
    sampled: int = 0
    cached: int | None = None
    trained: int | None = None
    uncounted: int = 0

    @classmethod
    def of_call(cls, call: CompletionCall) -> Self:
        """The tokens of a model call. A call without an answer, and one that LangChain's cache answered, has none."""
        if call.message is None or call.cached:
            return cls()
        if call.prompt_tokens is None or call.sampled_tokens is None:
            return cls(uncounted=1)
        return cls(call.prompt_tokens, call.sampled_tokens, call.cached_tokens)

    @classmethod
    def of(cls, runs: Iterable[Trajectory]) -> Self:
        """The tokens of the policies in some runs: of all calls that the gateway answered."""
        total = cls()
        for run in runs:
            for call in run.completions:
                if call.id is not None:
                    total += cls.of_call(call)
        return total

    def __add__(self, other: Tokens) -> Self:
        return type(self)(
            self.prompt + other.prompt,
            self.sampled + other.sampled,
            _sum(self.cached, other.cached),
            _sum(self.trained, other.trained),
            self.uncounted + other.uncounted,
        )

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        of_cache = "cached unknown" if self.cached is None else f"{self.cached:,} of them cached"
        text = f"{self.prompt:,} prompt tokens ({of_cache}), {self.sampled:,} sampled"
        if self.trained is not None:
            text += f", {self.trained:,} trained"
        return text + (f"; {self.uncounted} answers do not say theirs" if self.uncounted else "")


def _sum(first: int | None, other: int | None) -> int | None:
    """The sum of what is known. None: neither is."""
    return None if first is None and other is None else (first or 0) + (other or 0)
