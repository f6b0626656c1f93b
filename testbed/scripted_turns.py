"""An agent of eight turns whose policy writes what a script says, on real chat templates.

The policy writes calls without spaces, three for each text. The client writes them anew, and sends no thoughts, as
ChatOpenAI does.
"""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from trainer_server.gateway.splice.proof import splice
from trainer_server.gateway.splice.turns import Match, Tokens, Turn
from trainer_server.wire import Continuation

SPECIAL = re.compile(r"<\|[^|<>]+\|>|<｜[^｜]+｜>|</?(?:start_of_turn|end_of_turn|think|s)>|\n\n|.", re.DOTALL)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": "integer"}}},
    },
}
TURNS = 8


class Vocabulary(Protocol):
    """A tokenizer."""

    def encode(self, text: str) -> Tokens: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass
class Characters:
    """A token for each special text, each character, and two newlines."""

    ids: dict[str, int] = field(default_factory=dict)

    def encode(self, text: str) -> Tokens:
        return array("I", (self.ids.setdefault(piece, len(self.ids)) for piece in SPECIAL.findall(text)))

    def decode(self, tokens: Sequence[int]) -> str:
        pieces = list(self.ids)
        return "".join(pieces[token] for token in tokens)


class FileVocabulary:
    """A model's own tokenizer, from its `tokenizer.json`."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))

    def encode(self, text: str) -> Tokens:
        return array("I", self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def trl_template(name: str) -> Path:
    """The file of a real model's chat template; TRL carries many."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates" / f"{name}.jinja"


def read(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as vLLM gives it to templates: arguments as objects, thoughts under the name that they know."""
    made = {**message, "content": message.get("content") or ""}
    if thought := made.pop("reasoning", None):
        made["reasoning_content"] = thought
    if calls := made.get("tool_calls"):
        functions = [
            {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])} for call in calls
        ]
        made["tool_calls"] = [{**call, "function": one} for call, one in zip(calls, functions, strict=True)]
    return made


@dataclass
class RealTemplate:
    """A family's template and tokenizer, and how its models write thoughts and calls, and end a turn.

    Args:
        text: The template.
        end: The text of the token that ends turns.
        call: A call; `%s` stands for its arguments.
        vocabulary: The tokenizer.
        thinks: Whether it thinks in each turn.
    """

    text: str
    end: str
    call: str
    vocabulary: Vocabulary
    thinks: bool = False

    def render(self, messages: Sequence[Mapping[str, Any]], *, generation: bool = True) -> Tokens:
        rendered, _ = render_jinja_template(
            [[read(message) for message in messages]],
            tools=[TOOL],
            chat_template=self.text,
            add_generation_prompt=generation,
            bos_token="",
            eos_token=self.end,
        )
        return self.vocabulary.encode(rendered[0])

    async def text_of(self, tokens: Sequence[int]) -> str:
        return self.vocabulary.decode(tokens)

    async def ends(self, answer: Mapping[str, Any], token: int) -> bool:
        said = {name: value for name, value in answer.items() if value}
        text = self.vocabulary.decode(self.render([{"role": "user", "content": "?"}, said], generation=False))
        return text.rstrip().endswith(self.vocabulary.decode([token]))

    def answer(self, turn: int) -> tuple[str, dict[str, Any]]:
        """What the policy writes in a turn, and the message that the engine reads from it. Each fourth is a text."""
        thought = f"Day {turn} is near." if self.thinks else ""
        wrote = f"<think>\n{thought}\n</think>\n\n" * bool(thought)
        message: dict[str, Any] = {"role": "assistant", "content": None, **({"reasoning": thought} if thought else {})}
        if turn % 4 == 3:
            return f"{wrote}Sun on day {turn}.", {**message, "content": f"Sun on day {turn}."}
        arguments = {"city": "Bern", "day": turn}
        function = {"name": "weather", "arguments": json.dumps(arguments)}
        wrote += self.call % json.dumps(arguments, separators=(",", ":"))
        return wrote, {**message, "tool_calls": [{"id": f"call{turn:05}", "type": "function", "function": function}]}


@dataclass
class Run:
    """The turns of an agent."""

    prompts: list[Tokens] = field(default_factory=list)
    sampled: list[Tokens] = field(default_factory=list)
    ways: list[Continuation] = field(default_factory=list)

    @property
    def drift(self) -> float:
        """As prefix_drift has it."""
        missing = 0
        for prompt, sampled, following in zip(self.prompts, self.sampled, self.prompts[1:], strict=False):
            pairs = zip(prompt + sampled, following, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            missing += len(sampled) - max(0, shared - len(prompt))
        return missing / sum(map(len, self.sampled[:-1]))

    @property
    def separate(self) -> int:
        """Tokens of all turns, one by one."""
        return sum(map(len, self.prompts + self.sampled))

    @property
    def packed(self) -> int:
        """Tokens of the prefix tree of all turns."""
        nodes: dict[tuple[int, int], int] = {}
        for prompt, sampled in zip(self.prompts, self.sampled, strict=True):
            node = 0
            for token in prompt + sampled:
                node = nodes.setdefault((node, token), len(nodes) + 1)
        return len(nodes)


def agent(template: RealTemplate, mode: str) -> Run:
    """Runs the agent: mode as `serve --splice` has it."""
    run, earlier, end = Run(), list[Match](), template.vocabulary.encode(template.end)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Bern?"}]
    for number in range(TURNS):
        prompt = rendered = template.render(messages)
        if earlier and mode != "off":
            keep = mode == "thoughts"
            made = asyncio.run(splice(earlier[-1], messages, rendered, template, keep_thoughts=keep))
            run.ways.append(made if isinstance(made, Continuation) else Continuation.spliced)
            prompt = rendered if isinstance(made, Continuation) else made
        wrote, message = template.answer(number)
        run.prompts.append(prompt)
        run.sampled.append(template.vocabulary.encode(wrote) + end)
        returned = {name: value for name, value in message.items() if name != "reasoning"}
        turn = Turn(str(number), prompt, run.sampled[-1], rendered, message)
        calls = message.get("tool_calls")
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": '"sun" & 5°'} if calls else None
        messages = [*messages, returned, result or {"role": "user", "content": "And then?"}]
        earlier.append(Match(turn, len(messages) - 1))
    return run


HERMES = '<tool_call>\n{"name":"weather","arguments":%s}\n</tool_call>'
LLAMA = '{"name":"weather","parameters":%s}'
"""How families write a call, here without spaces."""
