"""The tokens of a completion: the text of each, and what is known of it, as the page colours them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_server.engines.pool import Engines
from trainer_server.ledger.step_tokens import CompletionInStep
from trainer_server.wire import Completion, EngineError

MOST_TOKENS = 3000
"""Tokens of a completion that a page shows at once."""
BINS = 6
"""Shades of each colour, from 0 (none) to this."""
_MOST_DECODED = 512
"""Tokens that an engine decodes for one page at most."""


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
    tokens = []
    for place, text in enumerate(texts, first):
        logprob = row.logprobs[place] if place < len(row.logprobs) else None
        trainer = _at(measurement.logprobs, place) if measurement else None
        tokens.append(
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
    return tokens


def _at(values: Sequence[float | None], place: int) -> float | None:
    return values[place] if place < len(values) else None


class TokenTexts:
    """The text of each token, by the base model's tokenizer, or else by an engine. Texts are cached.

    Args:
        model: Directory of the base model.
        engines: Decode tokens where the directory has no `tokenizer.json`.
        hidden: Whether texts are withheld, because stored texts are redacted.
    """

    def __init__(self, model: Path, engines: Engines, *, hidden: bool = False) -> None:
        self._hidden = hidden
        self._file, self._engines = model / "tokenizer.json", engines
        self._texts: dict[int, str] = {}
        self._tokenizer: Any = None

    async def of(self, tokens: Sequence[int]) -> list[str | None]:
        """The text of each token; None where it is not known."""
        if self._hidden:
            return [None] * len(tokens)
        new = list(dict.fromkeys(token for token in tokens if token not in self._texts))
        if new and self._file.exists():
            await asyncio.to_thread(self._read, new)
        elif new and self._engines.live:
            await self._decode_tokens(new[:_MOST_DECODED])
        return [self._texts.get(token) for token in tokens]

    def _read(self, tokens: Sequence[int]) -> None:
        if self._tokenizer is None:
            from tokenizers import Tokenizer  # takes a moment, and only this needs it

            self._tokenizer = Tokenizer.from_file(str(self._file))
        for token in tokens:
            piece = self._tokenizer.id_to_token(token)
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            if piece is not None and piece.startswith("▁") and not text.startswith(" "):
                text = f" {text}"  # decoders leave the space before the first word out
            if "\ufffd" in text or not text:  # a part of a character
                text = piece or text
            self._texts[token] = text

    async def _decode_tokens(self, tokens: Sequence[int]) -> None:
        engine, turns = self._engines.live[0], asyncio.Semaphore(16)

        async def decode(token: int) -> None:
            async with turns:
                self._texts[token] = await engine.detokenize([token])

        answers = await asyncio.gather(*map(decode, tokens), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineError):
                raise answer
