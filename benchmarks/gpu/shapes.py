"""Models with random weights, and the groups of runs that the parts compute."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.steps.cases import Run, completion
from trainer_server.training.model.tree import Ints
from trainer_server.wire import Completion, GroupRef, TrajectoryRef

_TOKENIZER = ("tokenizer", "special", "chat_template", "vocab", "merges", "generation_config", "added_tokens")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Qwen3 model."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int


SHAPES = {
    "0.6B": Shape(1024, 3072, 28, 16, 8, 128, 151_936),
    "1.7B": Shape(2048, 6144, 28, 16, 8, 128, 151_936),
    "4B": Shape(2560, 9728, 36, 32, 8, 128, 151_936),
    "tiny": Shape(128, 192, 2, 4, 2, 32, 512),
}


def save_model(shape: Shape, path: Path, device: str, *, tokenizer: Path | None = None) -> str:
    """Writes a model of a shape with random weights in bf16, unless it is there, and returns its path.

    Args:
        shape: Of the model.
        path: The directory.
        device: Where the weights are drawn.
        tokenizer: A model whose tokenizer and vocabulary it gets. None: it gets no tokenizer.
    """
    from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

    if (path / "config.json").exists():
        return str(path)
    vocabulary, ends = shape.vocabulary, {}
    if tokenizer is not None:
        theirs = AutoConfig.from_pretrained(tokenizer)
        vocabulary, ends = theirs.vocab_size, {"eos_token_id": theirs.eos_token_id, "bos_token_id": theirs.bos_token_id}
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        **ends,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(config).bfloat16()
    scratch = path.with_name(f"{path.name}-part")
    model.save_pretrained(scratch)
    if tokenizer is not None:
        for file in tokenizer.iterdir():
            if file.name.startswith(_TOKENIZER):
                shutil.copy(file, scratch)
    scratch.rename(path)
    return str(path)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of runs on a prompt of their own.

    Args:
        groups: How many.
        size: Runs of each.
        prompt: Tokens of its prompt.
        turns: Of a run; each continues the one before.
        turn: Tokens of a turn.
    """

    groups: int
    size: int
    prompt: int
    turns: int
    turn: int

    def runs(self, seed: int, vocabulary: int, spread: float = 0.0) -> list[list[Run]]:
        """The runs of each group.

        Args:
            seed: Of tokens and lengths.
            vocabulary: Tokens that there are.
            spread: By which share of their length prompts and turns are shorter at most.
        """
        rng = np.random.default_rng(seed)

        def some(length: int) -> Ints:
            return rng.integers(5, vocabulary, max(2, int(length * (1 - spread * rng.random()))))

        made = []
        for _ in range(self.groups):
            prompt, runs = some(self.prompt), []
            for _ in range(self.size):
                text, calls = prompt, []
                for _ in range(self.turns):
                    answer = some(self.turn)
                    calls.append((text, answer))
                    text = np.concatenate([text, answer])
                runs.append(Run(tuple(calls), float(rng.normal())))
            made.append(runs)
        return made


CASES = {"S": Groups(1, 8, 512, 1, 256), "M": Groups(16, 8, 1500, 4, 150), "L": Groups(1, 8, 12_000, 1, 512)}
"""S: eight completions on a prompt. M: agents of four turns. L: eight answers on a long text."""
TINY_CASES = {"S": Groups(1, 3, 40, 1, 12), "M": Groups(3, 3, 60, 2, 9), "L": Groups(1, 3, 400, 1, 20)}


def requests(groups: list[list[Run]]) -> tuple[dict[str, Completion], list[GroupRef]]:
    """The runs as a client names them in a step, and the ledger's rows that they refer to."""
    completions: dict[str, Completion] = {}
    refs = []
    for group, runs in enumerate(groups):
        trajectories = []
        for at, run in enumerate(runs):
            ids = []
            for call, (prompt, answer) in enumerate(run.calls):
                ids.append(f"{group}-{at}-{call}")
                completions[ids[-1]] = completion(ids[-1], prompt.tolist(), answer.tolist())
            trajectories.append(TrajectoryRef(id=f"{group}-{at}", reward=run.advantage, completions=ids))
        refs.append(GroupRef(scenario_id=str(group), trajectories=trajectories))
    return completions, refs
