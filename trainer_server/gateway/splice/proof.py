"""Whether a prompt can be an earlier turn's own tokens and what the chat template renders after them.

The rendered and the spliced prompt then say the same messages:

- Before the answer: what the template renders there now is what it rendered there for the earlier turn.
- The answer: the request has the message that the engine read from the sampled tokens (`turns.py` found it so). In the
  rendered prompt it begins where the earlier prompt ended, all of its text is there, and it ends with the token that
  ended the turn: the template ends answers with it, and the answer's own text does not have it.
  Where the request allows one tool call at most, nothing but what the template renders was sampled after the call's
  name: engines leave further calls out of the message.
- After the answer: these are the template's own tokens. The token that ends a turn is special. No tokenizer merges it
  with its neighbours, so a prompt can be cut there.

Where any of this cannot be shown, the prompt is rendered anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from trainer_server.engines.base import EngineClient, RequestRefused
from trainer_server.gateway.splice.turns import Match, Tokens, holds, thoughts, visible_texts
from trainer_server.wire import Continuation

_TAGS = re.compile(r"\s+|<[^<>]*>|\[/?[A-Z_]*\]")
"""What may stand around thoughts: white space, `<think>`, `[THINK]` and the like."""
_MOST_TURNED = 100
"""Characters by which the place of a deletion is moved to look for thoughts in it."""

_MOST_SHARED = 3
"""Tokens that the tag of a generation prompt and the beginning of an answer may share: the "<" of both, for example."""

_QUESTION = {"role": "user", "content": "?"}

TextOf = Callable[[Sequence[int]], Awaitable[str]]


class Template(Protocol):
    """What the proof needs to know of the engine's tokenizer and chat template."""

    async def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        ...

    async def ends(self, answer: Mapping[str, Any], token: int) -> bool:
        """Whether the template ends answers of the shape of this one with this token."""
        ...


class EngineTemplate:
    """The template of an engine, which remembers what does not change.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: EngineClient) -> None:
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


class _Answer(NamedTuple):
    """Where a rendered prompt has an earlier answer."""

    start: int
    """Index of its first token."""
    end: int
    """Index of the token that ends its turn."""
    lacks_thoughts: bool
    """Whether thoughts of answers before it are left out, which the template rendered then."""


async def splice(
    match: Match,
    messages: Sequence[Mapping[str, Any]],
    rendered_prompt: Tokens,
    template: Template,
    *,
    keep_thoughts: bool,
) -> Tokens | Continuation:
    """Puts an earlier turn's tokens in place of what the template renders for them.

    Args:
        match: The turn that the request continues.
        messages: Of the request.
        rendered_prompt: The request's prompt as the template renders it.
        template: The engine's.
        keep_thoughts: Whether the prompt may have thoughts of earlier turns that the rendered one leaves out.

    Returns:
        The prompt; or `extended` where `rendered_prompt` begins with the turn's tokens; or why the prompt is rendered
        anew.
    """
    turn = match.turn
    own = turn.prompt + turn.sampled_tokens
    if turn.sampled_tokens and rendered_prompt[: len(own)] == own:
        return Continuation.extended
    if turn.unavailable_reason:
        return turn.unavailable_reason
    end_token = turn.sampled_tokens[-1]
    if not await template.ends(turn.message, end_token) or holds(turn.message, await template.text_of([end_token])):
        return Continuation.unlike
    earlier_thoughts = [thought for message in messages[: match.length - 1] for thought in thoughts(message)]
    answer = await _find_answer(turn.rendered_prompt, rendered_prompt, end_token, template.text_of, earlier_thoughts)
    if answer is None:
        return Continuation.changed
    text = await template.text_of(rendered_prompt[answer.start : answer.end])
    if not _in_order(visible_texts(turn.message), text):
        return Continuation.unlike
    if turn.single:
        sampled_text = await template.text_of(turn.sampled_tokens[:-1])
        if _rest(visible_texts(turn.message), sampled_text) != _rest(visible_texts(turn.message), text):
            return Continuation.unlike
    if not keep_thoughts and (answer.lacks_thoughts or not _in_order(thoughts(turn.message), text)):
        return Continuation.thoughts
    return own + rendered_prompt[answer.end + 1 :]


async def _find_answer(
    then: Tokens, now: Tokens, end_token: int, text_of: TextOf, earlier_thoughts: Sequence[str]
) -> _Answer | None:
    """Finds an answer in a rendered prompt: it begins where the earlier rendered prompt ended.

    Args:
        then: The prompt that was answered, as the template rendered it.
        now: The prompt that has the answer in it.
        end_token: The token that ended the answer.
        text_of: Decodes tokens.
        earlier_thoughts: Thoughts of the messages before the answer.

    Returns:
        None: what the template renders before the answer is not what it rendered then, apart from thoughts.
    """
    parts_then, parts_now = _parts(then, end_token), _parts(now, end_token)
    *before, prompt_end = parts_then
    if len(parts_now) <= len(parts_then):
        return None
    start, lacks_thoughts = 0, False
    for part_then, part_now in zip(before, parts_now, strict=False):
        start += len(part_now)
        if part_then != part_now:
            if not _thoughts_dropped(await text_of(part_then), await text_of(part_now), earlier_thoughts):
                return None
            lacks_thoughts = True
    part = parts_now[len(before)]
    same = _common_prefix(prompt_end, part[:-1])
    for begin in range(same, max(same - _MOST_SHARED, 0) - 1, -1):
        if begin == len(prompt_end) or not _TAGS.sub("", await text_of(prompt_end[begin:])):
            return _Answer(start + begin, start + len(part) - 1, lacks_thoughts)
    return None


def _common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """How many items two sequences begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _parts(tokens: Tokens, end_token: int) -> list[Tokens]:
    """Tokens, cut behind each `end_token`. The last part has none, and may be empty."""
    parts, start = [], 0
    for _ in range(tokens.count(end_token)):
        end = tokens.index(end_token, start) + 1
        parts.append(tokens[start:end])
        start = end
    return [*parts, tokens[start:]]


def _thoughts_dropped(longer: str, shorter: str, earlier_thoughts: Sequence[str]) -> bool:
    """Whether a text is another one without known thoughts and the tags around them, which stand in one place."""
    length = len(longer) - len(shorter)
    start = _common_prefix(longer, shorter)
    for at in range(start, max(start - _MOST_TURNED, 0) - 1, -1):  # "<think>…</think><b>" less "think>…</think><"
        if length <= 0 or longer[at + length :] != shorter[at:]:
            return False
        block = longer[at : at + length]
        for thought in earlier_thoughts:
            block = block.replace(thought, "")
        if not _TAGS.sub("", block):
            return True
    return False


def _in_order(texts: Iterable[str], whole: str) -> bool:
    """Whether texts stand in a text one after another, as they are or as JSON writes them."""
    return _rest(texts, whole) is not None


def _rest(texts: Iterable[str], whole: str) -> str | None:
    """What stands in a text after the last of some texts, without white space; None: they do not stand there in order,
    as they are or as JSON writes them."""
    at = 0
    for text in texts:
        forms = (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1])
        occurrence = next(((where, form) for form in forms if (where := whole.find(form, at)) >= 0), None)
        if occurrence is None:
            return None
        at = occurrence[0] + len(occurrence[1])
    return "".join(whole[at:].split())
