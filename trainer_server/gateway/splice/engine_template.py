"""What an engine's chat template and tokenizer do, as far as the proof of a splice asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer_server.engines.base import Engine, RequestRefused

_QUESTION = {"role": "user", "content": "?"}


class EngineTemplate:
    """The `proof.Template` of an engine, which remembers what does not change.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._texts: dict[int, str] = {}
        """Of single tokens: those that end turns."""
        self._ends: dict[tuple[frozenset[str], int], bool] = {}

    async def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        if len(tokens) != 1:
            return await self._engine.detokenize(tokens) if tokens else ""
        (token,) = tokens
        if token not in self._texts:
            self._texts[token] = await self._engine.detokenize(tokens)
        return self._texts[token]

    async def ends(self, answer: Mapping[str, Any], token: int) -> bool:
        """Whether the template ends answers with this token.

        It is asked once for each shape of answers: the fields that they have.
        """
        fields = {name: value for name, value in answer.items() if value}
        shape = frozenset(fields)
        if (shape, token) not in self._ends:
            try:
                tokens = await self._engine.render({"messages": [_QUESTION, fields]}, generation=False)
            except RequestRefused:  # perhaps of this answer alone
                return False
            self._ends[shape, token] = await self._at_end(token, tokens)
        return self._ends[shape, token]

    async def _at_end(self, token: int, tokens: Sequence[int]) -> bool:
        """Whether at most white space follows a token."""
        if token not in tokens:
            return False
        after = tokens[len(tokens) - tokens[::-1].index(token) :]
        return not (await self._engine.detokenize(after) if after else "").strip()
