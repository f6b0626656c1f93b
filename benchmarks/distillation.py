"""On-policy distillation against GRPO: how many rollouts until a student does what its teacher does.

    python -m benchmarks.distillation [--json] [--seeds 3]

The student and its teacher are LoRAs on a tiny base model of random weights: this measures the step, and no engine.
The task: eight prompts, each with an answer of six tokens that no prompt gives away. A rollout's reward is the share of
its tokens that are right, so that rewards alone can teach it too. The teacher was trained on the answers beforehand
(those updates count for nobody). Every side takes steps of 64 rollouts, sampled from its newest weights, until the mean
reward of a step is at least 0.95 of the teacher's, or for 200 steps. Each side runs at each learning rate; its figure
is the median over seeds at its best rate. `ratio`: rollouts of `grpo` over those of `teacher`. A side that never
reaches its goal counts with the rollouts that it made; the ratio is then a lower bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from trainer_server.training.grpo.batch import Origin, gather_batch
from trainer_server.training.grpo.step import optimise
from trainer_server.training.model.lora import adapted_targets
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.optimizer import make_optimizer
from trainer_server.wire import (
    Completion,
    CompletionStatus,
    Distillation,
    GroupRef,
    GRPOConfig,
    PolicySpec,
    Sampling,
    TrajectoryRef,
)

PROMPTS, RUNS, LENGTH, ALPHABET = 8, 8, 6, 16
STEPS, REACHED = 200, 0.95
RATES = (3e-3, 1e-2)
SIDES: dict[str, Distillation | None] = {
    "grpo": None,
    "teacher": Distillation(teacher="base", rewards=False),
    "both": Distillation(teacher="base"),
}
"""What teaches: rewards, the teacher, or both. The teacher's weights stand in for those of the base model."""
SPEC = PolicySpec(name="student", rank=8)
Weights = dict[str, torch.Tensor]
GOOD = 0.8
"""Mean reward that a teacher must have; with less there is nothing to compare."""


def tiny_base(where: Path) -> Path:
    """A base model whose head can tell its 64 tokens apart, so that a LoRA below it can learn."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    path = where / "base"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


class Student:
    """The trainer's model, and the stock model of the same weights, which samples."""

    def __init__(self, base: Path, seed: int) -> None:
        self.model = PolicyModel(str(base), dtype=torch.float32, device="cpu")
        self.model.initialise(SPEC)
        stock = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        lora = LoraConfig(r=SPEC.rank, lora_alpha=int(SPEC.alpha), target_modules=adapted_targets(stock, SPEC.targets))
        self.stock: Any = PeftModel.eval(get_peft_model(stock, lora))
        generator = torch.Generator().manual_seed(seed)
        self.prompts = [[10 + at, 20, 30] for at in range(PROMPTS)]
        self.answers = torch.randint(40, 40 + ALPHABET, (PROMPTS, LENGTH), generator=generator)

    def weights(self) -> Weights:
        return {name: weight.detach().clone() for name, weight in self.model.parameters()}

    def put(self, weights: Weights) -> None:
        with torch.no_grad():
            for name, weight in self.model.parameters():
                weight.copy_(weights[name])

    def sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (prompts · runs, length) and their log-probs, from the newest weights, at temperature 1."""
        theirs = {name.replace(".default.", "."): weight for name, weight in self.stock.named_parameters()}
        with torch.no_grad():
            for name, weight in self.model.parameters():
                theirs[name].copy_(weight)
            texts = torch.tensor(self.prompts).repeat_interleave(RUNS, 0)
            logps = []
            for _ in range(LENGTH):
                logp_NV = self.stock(input_ids=texts).logits[:, -1].log_softmax(1)
                tokens = torch.multinomial(logp_NV.exp(), 1)
                logps.append(logp_NV.gather(1, tokens))
                texts = torch.cat([texts, tokens], 1)
        return texts[:, len(self.prompts[0]) :], torch.cat(logps, 1)

    def reward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (tokens == self.answers.repeat_interleave(RUNS, 0)).float().mean(1)

    def step(self, optimizer: torch.optim.AdamW, config: GRPOConfig, teacher: Weights | None) -> float:
        """Samples 64 rollouts and trains on them; their mean reward."""
        tokens, logps = self.sample()
        rewards = self.reward(tokens)
        completions = {
            str(at): Completion(
                id=str(at), created=0.0, server_id="s", base_model="base", tokenizer="t", policy="student", version=0,
                status=CompletionStatus.complete, sampling=Sampling(), prompt_token_ids=self.prompts[at // RUNS],
                token_ids=tokens[at].tolist(), logprobs=logps[at].tolist(),
            )
            for at in range(len(tokens))
        }  # fmt: skip
        refs = [TrajectoryRef(id=one, reward=float(rewards[int(one)]), completions=[one]) for one in completions]
        groups = [GroupRef(scenario_id=str(at), trajectories=refs[at * RUNS :][:RUNS]) for at in range(PROMPTS)]
        batch = gather_batch(groups, completions, config, policy="student", version=0, origin=Origin("base", "t"))

        @contextmanager
        def with_version(version: int) -> Iterator[bool]:
            yield True

        @contextmanager
        def with_teacher() -> Iterator[str]:
            own = self.weights()
            self.put(teacher or own)
            yield "teacher"
            self.put(own)

        optimise(self.model, optimizer, batch, config, with_version, with_teacher)
        return float(rewards.mean())

    def taught(self) -> Weights:
        """The teacher: trained on the answers, as a warm start would, by steps on the right texts."""
        config = GRPOConfig(lr=1e-2, importance_sampling_cap=None, max_logp_gap=None)
        optimizer = make_optimizer(self.model, config)
        completions = {
            str(at): Completion(
                id=str(at), created=0.0, server_id="s", base_model="base", tokenizer="t", policy="student", version=0,
                status=CompletionStatus.complete, sampling=Sampling(), prompt_token_ids=self.prompts[at],
                token_ids=self.answers[at].tolist(), logprobs=[0.0] * LENGTH,
            )
            for at in range(PROMPTS)
        }  # fmt: skip
        refs = [TrajectoryRef(id=one, reward=1.0, completions=[one]) for one in completions]
        groups = [GroupRef(scenario_id=ref.id, trajectories=[ref], baseline=0.0) for ref in refs]
        for _ in range(200):
            batch = gather_batch(groups, completions, config, policy="student", version=0, origin=Origin("base", "t"))

            @contextmanager
            def nothing(*_: object) -> Iterator[Any]:
                yield "none"

            optimise(self.model, optimizer, batch, config, nothing, nothing)
            if float(self.reward(self.sample()[0]).mean()) >= 0.9:
                break
        return self.weights()


def rollouts_until(student: Student, start: Weights, teacher: Weights, goal: float, **config: Any) -> int | None:
    """How many rollouts a student takes until the mean reward of a step reaches the goal; None: too many."""
    student.put(start)
    settings = GRPOConfig(**config)
    optimizer = make_optimizer(student.model, settings)
    for step in range(1, STEPS + 1):
        if student.step(optimizer, settings, teacher) >= goal:
            return step * PROMPTS * RUNS
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each side at each learning rate (3)")
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)
    console = Console(stderr=options.json, width=110)
    most, started = STEPS * PROMPTS * RUNS, time.monotonic()
    found: dict[str, dict[float, list[int | None]]] = {side: {rate: [] for rate in RATES} for side in SIDES}
    goals = []
    with tempfile.TemporaryDirectory() as folder:
        base = tiny_base(Path(folder))
        for seed in range(options.seeds):
            student = Student(base, seed)
            start = student.weights()
            torch.manual_seed(seed)
            teacher = student.taught()
            goals.append(statistics.fmean(float(student.reward(student.sample()[0]).mean()) for _ in range(8)))
            if goals[-1] < GOOD:
                raise SystemExit(f"seed {seed}: the teacher's mean reward is {goals[-1]:.3f}, which is below {GOOD}")
            for side, distill in SIDES.items():
                for rate in RATES:
                    torch.manual_seed(seed)
                    took = rollouts_until(
                        student, start, teacher, REACHED * goals[-1], lr=rate, distill=distill, scale_rewards="group"
                    )
                    found[side][rate].append(took)
    table = Table("taught by", "learning rate", f"rollouts until {REACHED:.0%} of the teacher", "by seed")
    best: dict[str, dict[str, Any]] = {}
    for side, by_rate in found.items():
        medians = {
            rate: statistics.median(most if one is None else one for one in took) for rate, took in by_rate.items()
        }
        rate = min(medians, key=lambda one: medians[one])
        took = by_rate[rate]
        best[side] = {
            "lr": rate,
            "rollouts": medians[rate],
            "reached": sum(one is not None for one in took),
            "by_seed": took,
        }
        shown = f"{medians[rate]:.0f}" if all(took) else f"> {medians[rate]:.0f}"
        table.add_row(side, f"{rate:g}", shown, ", ".join("never" if one is None else str(one) for one in took))
    console.print(table)
    console.print(f"the teacher's mean reward: {', '.join(f'{goal:.3f}' for goal in goals)}")
    if options.json:
        print(json.dumps({
            "benchmark": "distillation", "teacher_reward": goals, "sides": best,
            "all": {side: {str(rate): took for rate, took in by_rate.items()} for side, by_rate in found.items()},
            "ratio": best["grpo"]["rollouts"] / best["teacher"]["rollouts"], "most": most,
            "seconds": time.monotonic() - started,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
