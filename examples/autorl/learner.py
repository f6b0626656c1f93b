"""How the policy learns: `autorl` is given a sentence, the graph and a model, and nothing else."""

from __future__ import annotations

from typing import Any

from art_examples.autorl.agent import build_graph
from art_examples.autorl.messages import demonstrations, scenarios
from art_examples.autorl.rules import RulesModel, rules
from art_examples.learning.baselines import LiteLLMChat, PromptedChatART
from art_examples.learning.learn import Learned
from art_examples.learning.runs import Run
from art_examples.learning.stage import measure_stage
from langchain_core.language_models import BaseChatModel

from art_langgraph import ChatART, GRPOConfig, Trajectory, autorl
from trainer_server.wire import ConfigError

TASK = "Answers guests of a hotel in one polite sentence of at most fifteen words."
STEPS, LR = 10, 2e-3
"""Steps of a whole run, and the learning rate of the first of them, from which it falls to 0."""


async def from_a_sentence(run: Run) -> Learned:
    """Trains a policy by `autorl`, and measures it by the rules of the sentence, which `autorl` does not see."""
    options, learned = run.options, Learned("autorl", run.seed)
    if options.minutes:
        raise ConfigError("--minutes: `autorl` takes a number of steps (--steps)")
    steps = options.steps or STEPS
    await run.client.create_policy(run.policy, rank=8, seed=run.seed)
    server, shown = run.client.connection, {"demonstrations": demonstrations(), "shots": 4}
    asked: dict[str, Any] = {"policy": run.policy, "base_url": server.url, "api_key": server.api_key, "max_tokens": 40}

    async def measure(stage: str, model: BaseChatModel) -> None:
        await measure_stage(stage, build_graph(model), scenarios(), reward, right, run, learned)

    await measure("before", ChatART(**asked))
    if options.prompted:
        await measure("prompted", PromptedChatART(**asked, **shown))
    for name in options.models:
        await measure(name, LiteLLMChat(model=name, **shown))
    report = await autorl(
        TASK,
        graph=build_graph(ChatART(**asked)),
        policy=run.policy,
        judge=options.judge or RulesModel(),
        client=run.client,
        steps=steps,
        groups_per_step=6,
        config=lambda step: GRPOConfig(lr=LR * (1 - (step - 1) / steps)),
        temperature=0.7,
        seed=run.seed,
        progress=False,
        on_stage=run.tell,
    )
    run.tell(f"{report.comparison}; {', '.join(f'{role}: {usage}' for role, usage in report.usage.items())}")
    learned.seconds |= report.seconds
    learned.tokens["training"] = sum(record.result.metrics.get("tokens_trained", 0) for record in report.steps)
    learned.rewards = [record.reward for record in report.steps]
    learned.skipped = sum(record.skipped is not None for record in report.steps)
    await measure("after", ChatART(**asked))
    return learned


def reward(trajectory: Trajectory) -> dict[str, float]:
    """A third for each rule that the answer keeps."""
    kept = rules(trajectory.final_text)
    return {name: holds / len(kept) for name, holds in kept.items()}


def right(trajectory: Trajectory) -> bool:
    """Whether the answer keeps all rules."""
    return all(rules(trajectory.final_text).values())
