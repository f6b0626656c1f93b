"""What benchmarks.train_step computes: trajectories as token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer_server.training.model.tree import Ints, common_prefix
from trainer_server.wire import Completion, CompletionStatus, Sampling

SAMPLER_LOGPROB = -9.0
"""Of each token of a completion: what the sampler gave does not matter for the time of a step."""
CASES = ("A", "B", "C", "D", "E")
_SIZES = {"A": (8, 512, 1, 64), "B": (8, 1500, 4, 100), "C": (50, 512, 1, 64), "E": (8, 1500, 1, 100)}
"""Runs, tokens of the prompt, turns, tokens of a turn."""
QUICKSTART = Path(__file__).with_name("quickstart_groups.json")


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


def completion(name: str, prompt: list[int], answer: list[int]) -> Completion:
    """A row of the ledger: the policy `p` of the base model `m` has sampled an answer after a prompt."""
    return Completion(
        id=name, created=0.0, server_id="s", base_model="m", tokenizer="t", policy="p", version=0,
        status=CompletionStatus.complete, finish_reason="stop", sampling=Sampling(),
        prompt_token_ids=prompt, token_ids=answer, logprobs=[SAMPLER_LOGPROB] * len(answer),
    )  # fmt: skip


def case(name: str, vocabulary: int) -> list[Run]:
    """The runs of a case."""
    rng = np.random.default_rng(0)

    def some(n: int) -> Ints:
        return rng.integers(5, vocabulary, n)

    if name == "D":
        return quickstart()
    count, prompt, turns, turn = _SIZES[name]
    shared, runs = some(prompt), []
    for _ in range(count):
        said = some(turns * turn)
        calls = [(np.concatenate([shared, said[: at * turn]]), said[at * turn :][:turn]) for at in range(turns)]
        runs.append(Run(tuple(calls), float(rng.normal())))
    return runs


def quickstart() -> list[Run]:
    """Two groups of eight that a quickstart with seed 0 trained on in its sixth step, as its ledger had them.

    A prompt is written as what follows the first tokens of another one: {"of", "first", "then"}.
    """
    prompts: list[list[int]] = []
    runs = []
    for run in json.loads(QUICKSTART.read_text()):
        calls = []
        for prompt, completion in run["calls"]:
            known = prompts[prompt["of"]][: prompt["first"]] if prompt["of"] >= 0 else []
            prompts.append([*known, *prompt["then"]])
            calls.append((np.array(prompts[-1]), np.array(completion)))
        runs.append(Run(tuple(calls), run["advantage"]))
    return runs
