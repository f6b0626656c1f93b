"""What does a policy learn by GRPO alone, without a warm start, from what its base model can do when it is asked?

    python -m benchmarks.real_weights [--model testbed:qwen2.5-0.5b] [--task temporal_clue] [--seed 0] [--steps 30]
                                      [--every 6] [--lr 1e-4] [--remedy uniform] [--tool-call-parser auto] [--json]
                                      [--output FILE]

Starts the trainer server on the model, and gives a new policy the steps of the task's recipe: its groups, their size,
and its number of replaced groups, at a learning rate that stays, with a remedy for dead groups
(`benchmarks.tasks.remedies`) or for an entropy that collapses. The policy is measured before the first step, after
every `--every` of them and after the last, on all held-out scenarios of the task at temperature 0.

The last line under --json has `curve`, a row for each measurement: the step, the version, success with its 95 %
interval, the mean reward and the gain over the policy before the first step with p of McNemar's exact test; and
`steps`, `StepRecord.summary()` of each. With --output the same is written to FILE after each step, so that a run that
is ended early leaves what it measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from art_examples.learning.learn import CONCURRENCY, SERVER_ARGUMENTS
from art_examples.learning.runs import machine, tell
from art_examples.learning.task import Recipe
from art_examples.quickstart.server_process import trainer_server

from art_langgraph import ChatART, Evaluation, HeldOut, TrainerClient, train
from art_langgraph.loop.watch.record import StepRecord
from art_mcp import PairedGain
from benchmarks.tasks import remedies
from benchmarks.tasks.registry import MORE_TASKS
from trainer_server.common import Connection

REMEDIES: dict[str, Callable[[Recipe], Recipe]] = {
    **{name: remedy for name, remedy in remedies.REMEDIES.items() if name != "hints"},
    "entropy": lambda recipe: replace(recipe, config=recipe.config.model_copy(update={"entropy_coef": 0.02})),
}
"""A recipe with each remedy. Hints are words of a task."""


@dataclass(slots=True)
class Curve:
    """What a run measured.

    Args:
        facts: What the run is: model, task, seed, learning rate, sampler, machine.
        output: Where it is written. None: nowhere.
    """

    facts: dict[str, Any]
    output: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def add(self, record: StepRecord) -> None:
        """Keeps a step, and the measurements that it has."""
        if record.baseline and not self.rows:
            self.rows.append(measured(0, record.baseline))
            tell(f"before: {record.baseline}")
        self.steps.append(record.summary())
        if record.evaluation:
            self.rows.append(measured(record.step, record.evaluation, record.baseline))
        tell(str(record))
        if self.output:
            self.output.write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")

    def summary(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {"benchmark": "real_weights", **self.facts, "curve": self.rows, "steps": self.steps}


def measured(step: int, evaluation: Evaluation, before: Evaluation | None = None) -> dict[str, Any]:
    """The row of a measurement. before: that of the policy before the first step; None: it is that one."""
    gain = before and PairedGain.of(evaluation, before)
    return {"step": step, **evaluation.summary(), "gain": gain and gain.summary()}


async def run(server: Connection, options: argparse.Namespace, curve: Curve) -> None:
    """Takes the steps.

    Args:
        server: The trainer server.
        options: Options of the command line.
        curve: Keeps what is measured.
    """
    async with TrainerClient(server.url, server.api_key) as client, MORE_TASKS[options.task](options.seed) as task:
        config = task.recipe.config.model_copy(update={"lr": options.lr})
        recipe = REMEDIES[options.remedy](replace(task.recipe, config=config, falling=False))
        policy = f"{task.name}-{options.seed}".replace("_", "-")
        await client.create_policy(policy, rank=8, seed=options.seed)
        model = ChatART(policy=policy, base_url=server.url, api_key=server.api_key, max_tokens=task.max_tokens)
        async for record in train(
            task.graph(model),
            task.training,
            policy=policy,
            reward=task.reward,
            steps=options.steps,
            client=client,
            groups_per_step=recipe.groups_per_step,
            n=recipe.n,
            sampler=recipe.sampler,
            explore=recipe.explore,
            config=recipe.config_of,
            shuffle=recipe.shuffle,
            dynamic_sampling=recipe.dynamic_sampling,
            nodes=task.nodes,
            max_concurrency=CONCURRENCY,
            seed=options.seed,
            held_out=HeldOut(task.held_out, reward=task.reward, success=task.success),
            evaluate_every=options.every,
            progress=False,
        ):
            curve.add(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="testbed:qwen2.5-0.5b", help="as of `serve` (testbed:qwen2.5-0.5b)")
    parser.add_argument("--task", choices=list(MORE_TASKS), default="temporal_clue", help="a task (temporal_clue)")
    parser.add_argument("--seed", type=int, default=0, help="of the task, the LoRA and the training (0)")
    parser.add_argument("--steps", type=int, default=30, help="GRPO steps (30)")
    parser.add_argument("--every", type=int, default=6, help="steps between two measurements (6)")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate of all steps (1e-4)")
    parser.add_argument("--remedy", choices=list(REMEDIES), default="uniform", help="uniform: none (uniform)")
    parser.add_argument("--tool-call-parser", default="auto", help="as of `serve`; json_calls for Qwen2.5-Coder (auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--output", type=Path, help="keep the measurements and steps in this file")
    options = parser.parse_args()
    facts = {name: getattr(options, name) for name in ("model", "task", "seed", "lr", "remedy", "tool_call_parser")}
    curve = Curve(facts | {"machine": machine()}, options.output)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        arguments = (*SERVER_ARGUMENTS, "--model", options.model, "--tool-call-parser", options.tool_call_parser)
        with trainer_server(home, home / "server.log", tell, *arguments) as server:
            asyncio.run(run(server, options, curve))
    if options.json:
        print(json.dumps(curve.summary()))


if __name__ == "__main__":
    main()
