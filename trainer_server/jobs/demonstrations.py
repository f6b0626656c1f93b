"""What a warm start imitates, in the trainer's format: rows of token ids, and the spans that have a loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from pydantic import BaseModel, Field

from trainer_server.wire import Completion, CompletionStatus, SFTConfig, TrajectoryRef


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model.

    Args:
        prompt: Token ids of the prompt.
        answer: Token ids that the model should sample, the token that ends the answer included.
    """

    prompt: list[int]
    answer: list[int]


class Row(BaseModel):
    """One sequence of token ids. Some of them have a loss; the others are context."""

    ids: list[int]
    """Token ids."""
    loss_spans: list[tuple[int, int]]
    """[start, stop) of the tokens with a loss; ascending, without overlap."""
    source: int = 0
    """Where it comes from: index of the conversation in the request, or of the trajectory, counted on after them."""

    @property
    def loss_tokens(self) -> int:
        """How many tokens have a loss."""
        return sum(stop - start for start, stop in self.loss_spans)


class Demonstrations(BaseModel):
    """Everything that one warm start imitates, or measures, and how much it skips."""

    rows: list[Row]
    """Sequences to train on."""
    turns: int
    """Number of answers in the rows."""
    turns_skipped: dict[str, int] = Field(default_factory=dict)
    """Answers that were skipped: reason → how many."""
    conversations_skipped: dict[str, int] = Field(default_factory=dict)
    """Conversations that were skipped: reason → how many."""
    trajectories_skipped: dict[str, int] = Field(default_factory=dict)
    """Trajectories that were skipped: reason → how many."""
    validation: Demonstrations | None = None
    """What is measured and not trained; None: nothing."""
    seconds: float = Field(default=0.0, description="wall time of rendering and look-up")

    @property
    def skip_counts(self) -> dict[str, int]:
        """Everything that was skipped: reason → how many."""
        return {**self.turns_skipped, **self.conversations_skipped, **self.trajectories_skipped}

    def why_nothing(self, what: str) -> str:
        """Why there are no rows, in words. what: The purpose that they lack for, such as "imitate"."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.skip_counts.items())
        return f"nothing to {what}: {reasons or 'no answers'}"

    def with_validation(self, validation: Demonstrations) -> Demonstrations:
        """Those of these demonstrations that are not among the validation ones, and the validation ones.

        Args:
            validation: Of which nothing is trained. Equal rows are skipped and counted as `in_validation`.
        """
        validation_ids = {tuple(row.ids) for row in validation.rows}
        rows = [row for row in self.rows if tuple(row.ids) not in validation_ids]
        duplicate_count = sum(len(row.loss_spans) for row in self.rows) - sum(len(row.loss_spans) for row in rows)
        return self.model_copy(
            update={
                "rows": rows,
                "turns": self.turns - duplicate_count,
                "turns_skipped": {
                    **self.turns_skipped,
                    **({"in_validation": duplicate_count} if duplicate_count else {}),
                },
                "validation": validation,
            }
        )


@dataclass(slots=True)
class Collection:
    """Collects turns, conversation by conversation and trajectory by trajectory; `whole` gives the result.

    Args:
        config: Of the warm start.
        rows: See Demonstrations; so are the other fields.
    """

    config: SFTConfig
    sources: int = 0
    """Conversations and trajectories so far."""
    rows: list[Row] = field(default_factory=list)
    turns: int = 0
    turns_skipped: Counter[str] = field(default_factory=Counter)
    conversations_skipped: Counter[str] = field(default_factory=Counter)
    trajectories_skipped: Counter[str] = field(default_factory=Counter)

    def add(self, turns: Iterable[Turn]) -> Self:
        """Adds the turns of one conversation or trajectory.

        Args:
            turns: In their order. Turns longer than `max_length` are skipped.

        Returns:
            This collection.
        """
        fitting = []
        for turn in turns:
            if len(turn.prompt) + len(turn.answer) > self.config.max_length:
                self.turns_skipped["too_long"] += 1
            else:
                fitting.append(turn)
        self.turns += len(fitting)
        self.rows += [row.model_copy(update={"source": self.sources}) for row in join(fitting)]
        self.sources += 1
        return self

    def add_trajectory(
        self, trajectory: TrajectoryRef, completions: Mapping[str, Completion], *, tokenizer: str
    ) -> None:
        """Adds the completions of a trajectory whose reward is high enough.

        Args:
            trajectory: Names its completions by id.
            completions: By id, as the ledger has them.
            tokenizer: Fingerprint; completions of other tokenizers are skipped.
        """
        least = self.config.min_reward
        if least is not None and (trajectory.reward is None or trajectory.reward < least):
            self.trajectories_skipped["no_reward" if trajectory.reward is None else "low_reward"] += 1
            self.sources += 1
            return
        if not trajectory.completions:
            self.trajectories_skipped["no_completions"] += 1
        turns = []
        for completion_id in dict.fromkeys(trajectory.completions):
            if reason := _why_skipped(completions.get(completion_id), tokenizer):
                self.turns_skipped[reason] += 1
            else:
                completion = completions[completion_id]
                turns.append(Turn(completion.prompt_token_ids, completion.token_ids))
        self.add(turns)

    def whole(self, seconds: float) -> Demonstrations:
        """The result.

        Args:
            seconds: Wall time that the collection took.
        """
        return Demonstrations(
            rows=self.rows,
            turns=self.turns,
            turns_skipped=self.turns_skipped,
            conversations_skipped=self.conversations_skipped,
            trajectories_skipped=self.trajectories_skipped,
            seconds=seconds,
        )


def join(turns: Sequence[Turn]) -> list[Row]:
    """Joins turns into rows. A turn whose prompt begins with a whole earlier row extends that row.

    Only equal tokens are shared, as in the prefix tree. A template that rewrites the history makes more rows, but no
    wrong ones.

    Args:
        turns: Of one conversation or trajectory, in their order.
    """
    rows: list[Row] = []
    for turn in turns:
        span = (len(turn.prompt), len(turn.prompt) + len(turn.answer))
        ids = turn.prompt + turn.answer
        for index, row in enumerate(rows):
            if turn.prompt[: len(row.ids)] == row.ids:
                rows[index] = Row(ids=ids, loss_spans=[*row.loss_spans, span])
                break
        else:
            rows.append(Row(ids=ids, loss_spans=[span]))
    return rows


def _why_skipped(completion: Completion | None, tokenizer: str) -> str | None:
    """Why a completion cannot be imitated; None if it can."""
    if completion is None:
        return "missing"
    if completion.tokenizer != tokenizer:
        return "other_tokenizer"
    if completion.status != CompletionStatus.complete:
        return str(completion.status)
    if completion.untrainable:
        return "incomplete"
    if completion.hint is not None:
        return "hinted"  # the policy would be prompted without the hint
    if completion.truncated:
        return "truncated"  # it would teach the model not to end its answers
    return None
