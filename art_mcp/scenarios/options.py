"""Options of a generation that are plain values: keywords of functions, fields of settings, flags of commands.

Nothing heavy is imported here: the command line reads this for its `--help`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Which tasks are generated.

    Args:
        difficulty: Least and greatest difficulty, from 1 to 5.
        instructions: Additional instructions for the model that writes scenarios.
        allow_destructive: Call tools that may change or destroy something although the change stays. Not needed with a
            world or a reset. Otherwise such tools (`CatalogTool.why_changing`) are not called, and the agent of
            `specialize` does not get them.
    """

    difficulty: tuple[int, int] = (1, 5)
    instructions: str | None = None
    allow_destructive: bool = False


@dataclass(frozen=True, kw_only=True)
class SetOptions(TaskOptions):
    """Which set of scenarios is generated.

    Args:
        seconds: Time for the whole generation. With `minutes` of `specialize`, it may be less.
        held_out: Share of the scenarios to hold out from training, a third of it for each held-out set.
    """

    seconds: float = field(default=120.0, metadata={"min": 1.0})
    held_out: float = field(default=0.25, metadata={"min": 0.0, "max": 0.9})
