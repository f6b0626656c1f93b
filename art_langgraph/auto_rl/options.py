"""Options of `autorl` that are plain values. Nothing heavy is imported here: the command line reads this."""

from __future__ import annotations

from dataclasses import dataclass, field

from art_langgraph.loop.options import SizeOptions


@dataclass(frozen=True, kw_only=True)
class AutoRLPlainOptions(SizeOptions):
    """What Python and the command line have in common: keywords of `autorl`, flags of `art-langgraph autorl`.

    Args:
        steps: Training steps.
        instructions: Further instructions to the writer of scenarios.
        seed: Seeds the invented scenarios, their split and their order.
    """

    steps: int = field(default=8, metadata={"min": 1})
    groups_per_step: int = field(default=4, metadata={"flag": "--groups", "min": 1})
    n: int = field(default=8, metadata={"flag": "--n -n", "min": 2})
    instructions: str | None = None
    seed: int = 0
