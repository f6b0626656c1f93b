"""How the policy learns: `autorl` is given a sentence, the graph and a model, and nothing else."""

from __future__ import annotations

import time

from art_examples.autorl.agent import build_graph
from art_examples.autorl.messages import held_out
from art_examples.autorl.rules import RulesModel, rules
from art_examples.learning.learn import Learned
from art_examples.learning.runs import Run
from langchain_core.runnables import Runnable

from art_langgraph import ChatART, GRPOConfig, Trajectory, autorl, evaluate
from trainer_server.wire import ConfigError

TASK = "Answers guests of a hotel in one polite sentence of at most fifteen words."
STEPS, LR = 8, 3e-4


async def from_a_sentence(run: Run) -> Learned:
    """Trains a policy by `autorl`, and measures it by the rules of the sentence, which `autorl` does not see."""
    options, learned = run.options, Learned("autorl", run.seed)
    if options.models:
        raise ConfigError(f"--model {options.models[0]}: this example has one model beside the policy: --judge")
    await run.client.create_policy(run.policy, rank=8, seed=run.seed)
    server = run.client.connection
    graph = build_graph(ChatART(policy=run.policy, base_url=server.url, api_key=server.api_key, max_tokens=40))
    await _measure(graph, "before", run, learned)
    report = await autorl(
        TASK,
        graph=graph,
        policy=run.policy,
        judge=options.judge or RulesModel(),
        client=run.client,
        steps=options.steps or STEPS,
        config=GRPOConfig(lr=LR),
        seed=run.seed,
        progress=False,
        on_stage=run.tell,
    )
    run.tell(f"{report.comparison}; {', '.join(f'{role}: {usage}' for role, usage in report.usage.items())}")
    learned.seconds |= report.seconds
    learned.tokens["training"] = sum(record.result.metrics.get("tokens_trained", 0) for record in report.steps)
    learned.rewards = [record.reward for record in report.steps]
    learned.skipped = sum(record.skipped is not None for record in report.steps)
    await _measure(graph, "after", run, learned)
    return learned


async def _measure(graph: Runnable, stage: str, run: Run, learned: Learned) -> None:
    """Measures the newest version on messages that no training has, at temperature 0. stage: before or after."""
    started = time.monotonic()
    version = (await run.client.policy(run.policy)).latest
    messages = held_out()[: run.options.held_out]
    found = await evaluate(graph, messages, reward, version=version, success=right, max_concurrency=48, progress=False)
    setattr(learned, stage, found)
    learned.seconds[stage] = time.monotonic() - started
    run.tell(f"{stage}: {found}")


def reward(trajectory: Trajectory) -> dict[str, float]:
    """A third for each rule that the answer keeps."""
    kept = rules(trajectory.final_text)
    return {name: holds / len(kept) for name, holds in kept.items()}


def right(trajectory: Trajectory) -> bool:
    """Whether the answer keeps all rules."""
    return all(rules(trajectory.final_text).values())
