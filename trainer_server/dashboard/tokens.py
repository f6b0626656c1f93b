"""The tokens of a completion with what is known of each, as the page colours them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer_server.ledger.step_tokens import CompletionInStep
from trainer_server.wire import Completion

MOST_TOKENS = 3000
"""Tokens of a completion that a page shows at once."""
BINS = 6
"""Shades of each colour, from 0 (none) to this."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token as the page shows it. `None` in a value: it is not known."""

    text: str | None
    id: int
    logprob: float | None
    gap: float | None
    """The trainer's log-prob less the sampler's."""
    entropy: float | None
    advantage: float | None
    trained: bool | None
    """Whether it has a loss."""

    @property
    def classes(self) -> str:
        """Names of styles: a shade for each value. A missing one has none."""
        classes = ["tok"]
        if self.logprob is not None:
            classes.append(f"l{shade(-self.logprob, 4.0)}")
        if self.gap is not None:
            classes.append(f"g{'n' if self.gap < 0 else 'p'}{shade(abs(self.gap), 0.3)}")
        if self.entropy is not None:
            classes.append(f"e{shade(self.entropy, 3.0)}")
        if self.advantage is not None and self.trained:
            classes.append(f"a{'n' if self.advantage < 0 else 'p'}{shade(abs(self.advantage), 2.0)}")
        if self.trained is not None:
            classes.append("t1" if self.trained else "t0")
        return " ".join(classes)

    @property
    def title(self) -> str:
        """What is known of it, in words."""
        parts = [f"token {self.id}"]
        if self.logprob is not None:
            parts.append(f"log-prob {self.logprob:.3f} (p = {math.exp(min(self.logprob, 0.0)):.3g})")
        for name, value in (("trainer − sampler", self.gap), ("entropy", self.entropy), ("advantage", self.advantage)):
            if value is not None:
                parts.append(f"{name} {value:.3f}")
        if self.trained is not None:
            parts.append("trained" if self.trained else "not trained: it was forced")
        return ", ".join(parts)


def shade(value: float, most: float) -> int:
    """The shade of a value: 0 for none, BINS for `most` and above. Small values get more shades than large ones."""
    return min(BINS, round(BINS * math.sqrt(max(0.0, value) / most))) if math.isfinite(value) else BINS


def shown_tokens(
    row: Completion, texts: Sequence[str | None], measurement: CompletionInStep | None, first: int
) -> list[ShownToken]:
    """Tokens of a completion.

    Args:
        row: The completion.
        texts: Of these tokens.
        measurement: What a step measured; None: nothing is known.
        first: Place of the first of these tokens.
    """
    shown = []
    for place, text in enumerate(texts, first):
        logprob = row.logprobs[place] if place < len(row.logprobs) else None
        trainer = _at(measurement.logprobs, place) if measurement else None
        shown.append(
            ShownToken(
                text=text,
                id=row.token_ids[place],
                logprob=logprob,
                gap=None if trainer is None or logprob is None or row.constrained else trainer - logprob,
                entropy=_at(measurement.entropy, place) if measurement else None,
                advantage=measurement.advantage if measurement else None,
                trained=bool(measurement.trained[place]) if measurement and place < len(measurement.trained) else None,
            )
        )
    return shown


def _at(values: Sequence[float | None], place: int) -> float | None:
    return values[place] if place < len(values) else None
