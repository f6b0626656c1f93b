"""Tokens: how many tokens the runs of a stage read and wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage

from art_langgraph.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of some runs, as the answers of the server counted them.

    Args:
        prompt: Tokens of all prompts.
        sampled: Tokens that the policy said.
        cached: Tokens of the prompts that the engine had in its cache. None: it does not say.
        trained: Tokens that the trainer computed. None: nothing was trained.
    """

    prompt: int = 0
    sampled: int = 0
    cached: int | None = None
    trained: int | None = None

    @classmethod
    def of(cls, runs: Iterable[Trajectory]) -> Tokens:
        """The tokens of runs. Runs that raised and answers without a count are left out."""
        total = cls()
        for run in runs:
            for message in run.messages:
                if isinstance(message, AIMessage) and (usage := message.usage_metadata):
                    read = (usage.get("input_token_details") or {}).get("cache_read")
                    total += cls(usage["input_tokens"], usage["output_tokens"], read)
        return total

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prompt + other.prompt,
            self.sampled + other.sampled,
            _sum(self.cached, other.cached),
            _sum(self.trained, other.trained),
        )

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {"prompt": self.prompt, "sampled": self.sampled, "cached": self.cached, "trained": self.trained}


def _sum(one: int | None, other: int | None) -> int | None:
    """The sum of what is known. None: neither is."""
    return None if one is None and other is None else (one or 0) + (other or 0)
