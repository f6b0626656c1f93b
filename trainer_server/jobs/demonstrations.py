"""What a warm start imitates, as the trainer gets it: rows of token ids, of which some are learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from pydantic import BaseModel, Field

from trainer_server.wire import Completion, CompletionStatus, SFTConfig, TrajectoryRef


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: exactly what the model is prompted with, and exactly what it should sample, its end included."""

    prompt: list[int]
    answer: list[int]


class Row(BaseModel):
    """Token ids in one piece, and which of them are learnt."""

    ids: list[int]
    learnt: list[tuple[int, int]]
    """Spans of places, [start, stop), ascending and apart."""

    @property
    def tokens(self) -> int:
        """How many are learnt."""
        return sum(stop - start for start, stop in self.learnt)


class Demonstrations(BaseModel):
    """Everything that one warm start imitates, and what it leaves out, by reason."""

    rows: list[Row]
    turns: int
    """Answers in the rows."""
    turns_skipped: dict[str, int] = Field(default_factory=dict)
    conversations_skipped: dict[str, int] = Field(default_factory=dict)
    trajectories_skipped: dict[str, int] = Field(default_factory=dict)
    seconds: float = Field(default=0.0, description="wall time of rendering and look-up")


@dataclass(slots=True)
class Collection:
    """Takes turns, conversation by conversation and trajectory by trajectory; `whole` is what came together."""

    config: SFTConfig
    rows: list[Row] = field(default_factory=list)
    turns: int = 0
    turns_skipped: Counter[str] = field(default_factory=Counter)
    conversations_skipped: Counter[str] = field(default_factory=Counter)
    trajectories_skipped: Counter[str] = field(default_factory=Counter)

    def add(self, turns: Iterable[Turn]) -> Self:
        """Turns of one conversation or trajectory, in their order."""
        fit = []
        for turn in turns:
            if len(turn.prompt) + len(turn.answer) > self.config.max_length:
                self.turns_skipped["too_long"] += 1
            else:
                fit.append(turn)
        self.turns += len(fit)
        self.rows += join(fit)
        return self

    def add_trajectory(self, trajectory: TrajectoryRef, found: Mapping[str, Completion], *, tokenizer: str) -> None:
        """A trajectory's completions, with the tokens that the ledger has of them."""
        least = self.config.min_reward
        if least is not None and (trajectory.reward is None or trajectory.reward < least):
            self.trajectories_skipped["no_reward" if trajectory.reward is None else "low_reward"] += 1
            return
        if not trajectory.completions:
            self.trajectories_skipped["no_completions"] += 1
        turns = []
        for one in dict.fromkeys(trajectory.completions):
            if reason := _unfit(found.get(one), tokenizer):
                self.turns_skipped[reason] += 1
            else:
                turns.append(Turn(found[one].prompt_token_ids, found[one].token_ids))
        self.add(turns)

    def whole(self, seconds: float) -> Demonstrations:
        return Demonstrations(
            rows=self.rows, turns=self.turns, turns_skipped=self.turns_skipped,
            conversations_skipped=self.conversations_skipped, trajectories_skipped=self.trajectories_skipped,
            seconds=seconds,
        )  # fmt: skip


def join(turns: Sequence[Turn]) -> list[Row]:
    """One row for each turn, except where a later prompt begins with all of an earlier turn: those share the row.

    As with the prefix tree, only equal tokens are shared. A template that rewrites the history costs rows, never
    correctness.
    """
    rows: list[Row] = []
    for turn in turns:
        learnt = (len(turn.prompt), len(turn.prompt) + len(turn.answer))
        ids = turn.prompt + turn.answer
        for at, row in enumerate(rows):
            if turn.prompt[: len(row.ids)] == row.ids:
                rows[at] = Row(ids=ids, learnt=[*row.learnt, learnt])
                break
        else:
            rows.append(Row(ids=ids, learnt=[learnt]))
    return rows


def _unfit(completion: Completion | None, tokenizer: str) -> str | None:
    """Why a completion cannot be imitated, or None."""
    if completion is None:
        return "missing"
    if completion.tokenizer != tokenizer:
        return "other_tokenizer"
    if completion.status != CompletionStatus.complete:
        return str(completion.status)
    if completion.truncated:
        return "truncated"  # it would teach not to end
    return None
