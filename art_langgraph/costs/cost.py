"""Cost: what something cost, in tokens, seconds, GPU-hours and dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from art_langgraph.costs.tokens import Tokens
from trainer_server.wire.text import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a step, or a whole training, cost. What is not known is None, and so is every sum that has it.

    Args:
        runs: Runs of the graph.
        tokens: Tokens of the policies.
        seconds: Wall time.
        gpu_hours: Hours of GPUs; 0: the server has none. None: it is not known how many it has.
        gpu_usd: Their price in USD.
        judge_usd: USD for the language models that this process asked meanwhile, such as judges; 0: it asked none.
    """

    runs: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    seconds: float = 0.0
    gpu_hours: float | None = 0.0
    gpu_usd: float | None = 0.0
    judge_usd: float | None = 0.0

    @property
    def usd(self) -> float | None:
        """USD for GPUs and judges together; None: one of them is not known."""
        return _sum(self.gpu_usd, self.judge_usd)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            runs=self.runs + other.runs,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
            gpu_hours=_sum(self.gpu_hours, other.gpu_hours),
            gpu_usd=_sum(self.gpu_usd, other.gpu_usd),
            judge_usd=_sum(self.judge_usd, other.judge_usd),
        )

    @classmethod
    def of_summary(cls, summary: Mapping[str, Any]) -> Cost:
        """The cost that `summary` gave."""
        names = ("runs", "seconds", "gpu_hours", "gpu_usd", "judge_usd")
        return cls(tokens=Tokens(**summary["tokens"]), **{name: summary[name] for name in names})

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {**asdict(self), "usd": self.usd}

    def __str__(self) -> str:
        runs = f"{quantity(self.runs, 'run')}, " if self.runs else ""
        return f"{runs}{self.tokens}, {self.seconds:,.0f} s, {self.dollars()}"

    def dollars(self) -> str:
        """GPU-hours and dollars in words, with what is not known."""
        if self.gpu_hours is None:
            gpus = "GPU-hours unknown (it is not known how many GPUs the server uses: serve --billed-gpus)"
        elif self.gpu_hours == 0:
            gpus = "no GPU"
        elif self.gpu_usd is None:
            gpus = f"{self.gpu_hours:.2f} GPU-hours (price unknown: set ART_GPU_HOUR_PRICE)"
        else:
            gpus = f"{self.gpu_hours:.2f} GPU-hours ({self.gpu_usd:.2f} USD)"
        judge = (
            "language models: price unknown" if self.judge_usd is None else f"language models {self.judge_usd:.4f} USD"
        )
        return gpus if self.judge_usd == 0 else f"{gpus}, {judge}"


def _sum(first: float | None, other: float | None) -> float | None:
    return None if first is None or other is None else first + other
