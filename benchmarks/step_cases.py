"""What benchmarks.train_step computes: trajectories as token ids."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer_server.training.tree import Ints, common_prefix

CASES = ("A", "B", "C", "D")


@dataclass(frozen=True, slots=True)
class Run:
    """One trajectory: its calls as (prompt ids, completion ids), and its advantage."""

    calls: tuple[tuple[Ints, Ints], ...]
    advantage: float

    def rows(self) -> list[tuple[Ints, Ints]]:
        """(tokens, 1 where a token was sampled); a call that continues the one before it shares its row."""
        rows: list[tuple[Ints, Ints]] = []
        for prompt, completion in self.calls:
            tokens = np.concatenate([prompt, completion])
            sampled = np.repeat([0, 1], [len(prompt), len(completion)])
            if rows and common_prefix(rows[-1][0], prompt) == len(rows[-1][0]):
                sampled[: len(rows[-1][1])] = rows[-1][1]
                rows.pop()
            rows.append((tokens, sampled))
        return rows


def case(name: str, path: str, vocabulary: int) -> list[Run]:
    """The runs of a case."""
    rng = np.random.default_rng(0)

    def some(n: int) -> Ints:
        return rng.integers(5, vocabulary, n)

    if name == "D":
        return quickstart(path)
    count, prompt, turns, turn = {"A": (8, 512, 1, 64), "B": (8, 1500, 4, 100), "C": (50, 512, 1, 64)}[name]
    shared, runs = some(prompt), []
    for _ in range(count):
        said = some(turns * turn)
        calls = [(np.concatenate([shared, said[: at * turn]]), said[at * turn :][:turn]) for at in range(turns)]
        runs.append(Run(tuple(calls), float(rng.normal())))
    return runs


def quickstart(path: str, groups: int = 2, size: int = 8) -> list[Run]:
    """Groups of the quickstart's training scenarios, rendered as its agent would ask."""
    from art_examples.quickstart.agent import PROMPT
    from art_examples.quickstart.scenarios import KINDS, training_scenarios
    from langchain_core.messages import convert_to_openai_messages
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    rng = random.Random(0)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": kind.tool, "parameters": schema}} for kind in KINDS]

    def ids(text: str) -> Ints:
        return np.array(tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt(messages: list[Any]) -> Ints:
        return ids(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True))

    runs = []
    for scenario in training_scenarios(0)[:groups]:
        city = scenario.metadata["arguments"]["city"]
        for _ in range(size):
            tool = rng.choice([scenario.metadata["tool"], rng.choice(KINDS).tool])
            asked = [*convert_to_openai_messages(PROMPT), {"role": "user", "content": scenario.input["messages"][0][1]}]
            called = {"id": "1", "type": "function", "function": {"name": tool, "arguments": {"city": city}}}
            result = next(kind.value(city) for kind in KINDS if kind.tool == tool)
            told = [*asked, {"role": "assistant", "content": "", "tool_calls": [called]},
                    {"role": "tool", "tool_call_id": "1", "content": result}]  # fmt: skip
            call = f'<tool_call>{{"name": "{tool}", "arguments": {{"city": "{city}"}}}}</tool_call><|im_end|>'
            answer = rng.choice(["It is {} in {}.", "{} in {}.", "The answer is {} for {}."]).format(result, city)
            calls = ((prompt(asked), ids(call)), (prompt(told), ids(f"{answer}<|im_end|>")))
            runs.append(Run(calls, rng.gauss(0, 1)))
    return runs
