"""The text of each token of a completion, for people: by the base model's tokenizer, or else by an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_server.engines.pool import Engines
from trainer_server.wire import EngineError

_ASKED = 512
"""Tokens that an engine is asked for, at most, for one page."""


class TokenTexts:
    """Texts of single tokens. What was asked once is kept.

    Args:
        model: Directory of the base model.
        engines: They are asked where the directory has no `tokenizer.json`.
        hidden: Whether no text is told, because stored texts are redacted.
    """

    def __init__(self, model: Path, engines: Engines, *, hidden: bool = False) -> None:
        self._hidden = hidden
        self._file, self._engines = model / "tokenizer.json", engines
        self._known: dict[int, str] = {}
        self._tokenizer: Any = None

    async def of(self, tokens: Sequence[int]) -> list[str | None]:
        """The text of each token; None where it is not known."""
        if self._hidden:
            return [None] * len(tokens)
        new = list(dict.fromkeys(token for token in tokens if token not in self._known))
        if new and self._file.exists():
            await asyncio.to_thread(self._read, new)
        elif new and self._engines.live:
            await self._decode_tokens(new[:_ASKED])
        return [self._known.get(token) for token in tokens]

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
            self._known[token] = text

    async def _decode_tokens(self, tokens: Sequence[int]) -> None:
        engine, turns = self._engines.live[0], asyncio.Semaphore(16)

        async def decode(token: int) -> None:
            async with turns:
                self._known[token] = await engine.detokenize([token])

        answers = await asyncio.gather(*map(decode, tokens), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineError):
                raise answer
