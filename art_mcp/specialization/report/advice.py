"""What to do next, by rules: which kind of failure is the most frequent, what the numbers of the run say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from art_mcp.specialization.report.failures import Cluster, Kind
from art_mcp.specialization.specialization import Specialization

REMEDIES: dict[Kind, str] = {
    "raised": "Read the error: a run that runs out of time needs a longer `timeout`, a prompt over the context needs "
    "fewer tools (`--graph`) or a model with a longer context.",
    "unscored": "The server had ended or gave no answer in these runs. See its output, and try --isolation session.",
    "unreadable call": "The model does not write calls in the form that the engine reads. Give more demonstrations "
    "(more --minutes), or check the tool parser of `serve`.",
    "refused": "The model gives up too early. Fewer tasks that cannot be done, or more demonstrations of those that "
    "can, help; so do more training steps.",
    "no call": "The model answers without the tools. The warm start was too short: give more --minutes, or a system "
    "prompt that asks for calls.",
    "needless call": "The model calls tools for everything. More demonstrations that need no tool help.",
    "unknown tool": "The model makes up names of tools. Give more --minutes to the warm start.",
    "wrong tool": "The model mixes tools up. Give the server's tools descriptions that tell them apart, generate tasks "
    "with --model so that wordings differ more, or train for longer.",
    "missing call": "The model stops after the first call. Generate more tasks of several calls (--difficulty 3 5), or "
    "train for longer.",
    "argument name": "The model does not know the arguments yet: more demonstrations (more --minutes) teach them.",
    "tool error": "The server refuses the calls. See the example; where the error does not say what would be right, a "
    "better error of the server helps the model as well.",
    "argument value": "The model copies values wrongly. Give more values with --resource, so that it learns to copy "
    "instead of remembering, or take a larger model.",
    "too many calls": "The model tries tools until one fits. More training steps make it surer.",
    "world": "The model does more or less than it was asked. See the differences in the examples; more training steps "
    "help, as the reward counts each change.",
    "no answer": "Answers are cut or never come. Raise --max-tokens if results are long; else give more --minutes.",
    "claimed": "The model makes up an answer where the right one is that it cannot be done. More such tasks help.",
    "missing fact": "The calls are right, but the answer does not say what they gave. Raise --max-tokens if it is cut; "
    "else more training steps help, as the reward counts the facts.",
    "other": "Read the examples of these runs.",
}
"""What helps against each kind of failure."""

_SOLVED, _ENOUGH = 0.95, 0.8
_FEW = 40
"""Scenarios of the headline below which intervals are wide."""
_TELLING = 10
"""Scenarios of a set below which it is not compared with others."""
_GAP = 0.2
"""How far a set must be behind another one to be worth a remark."""


def advice(outcome: Specialization, failures: Sequence[Cluster]) -> list[str]:
    """What to do next, the most important first.

    Args:
        outcome: The specialization, as far as it is.
        failures: The failures of its last measurement, the most frequent kind first.
    """
    return list(_advice(outcome, failures))


def _advice(outcome: Specialization, failures: Sequence[Cluster]) -> Iterator[str]:
    last = list(outcome.measurements.values())[-1] if outcome.measurements else None
    if last is None or last.headline is None:
        return
    rates, sets = last.rates(), last.sets
    if failures and last.headline < _SOLVED:
        most = failures[0]
        share = f"{len(most.failures)} of {most.runs} runs"
        yield f"The most frequent failure ({share}): {most.words}. {REMEDIES[most.kind]}"
    if not failures:
        yield "Every held-out task was solved: try harder ones (--difficulty 3 5, or --model to write them)."
    rates = {name: rate for name, rate in rates.items() if name not in sets or sets[name].scenarios >= _TELLING}
    combinations, headline = rates.get("combinations"), last.headline
    if combinations is not None and combinations < headline - _GAP:
        yield (
            f"New combinations of tools ({combinations:.2f}) are behind the rest ({headline:.2f}): train on more tasks "
            "of several calls (--difficulty 3 5, more scenarios)."
        )
    values, phrasings = rates.get("values"), rates.get("phrasings")
    if values is not None and phrasings is not None and phrasings < values - _GAP:
        yield "New wordings are behind new values: let a language model write or rewrite tasks (--model, --paraphrase)."
    if values is not None and phrasings is not None and values < phrasings - _GAP:
        yield "New values are behind new wordings: give more values for arguments (--resource)."
    if "after" in outcome.measurements:
        yield from _of_training(outcome)
    if last.on_headline.scenarios < _FEW:
        yield (
            f"Only {last.on_headline.scenarios} held-out scenarios were measured, so that the intervals are wide: give "
            "more --minutes, or more values with --resource."
        )
    if "after" in outcome.measurements and last.headline < _ENOUGH:
        yield (
            f"{outcome.base_model} may be too small for this server. On a GPU, serve a larger model "
            "(`art-langgraph serve --model Qwen/Qwen3-0.6B`), and give the same command another --output."
        )


def _of_training(outcome: Specialization) -> Iterator[str]:
    """What the steps of the training say."""
    gain, prompted, after = outcome.gain, outcome.measurements.get("prompted"), outcome.measurements["after"]
    if prompted and (prompted.headline or 0.0) >= (after.headline or 0.0) > 0:
        yield "Three demonstrations in the prompt are as good as this training: use them, or train for longer."
    if not outcome.steps:
        return
    if gain is not None and gain.better < gain.worse and gain.p < 0.05:
        yield "Reinforcement learning made it worse: lower the learning rate (--lr), or stop after the warm start."
    elif gain is not None and not gain.significant:
        rewards = [reward for _, reward in outcome.rewards]
        if rewards and rewards[0] > 0.9:
            yield "Reinforcement learning had little left to teach: the warm start had solved the training tasks."
        elif rewards and max(rewards[-3:]) > rewards[0] + 0.05:
            yield "The reward of the training was still rising: more --minutes or more --steps will gain more."
        else:
            yield "Reinforcement learning gained nothing beyond chance: try more runs of each scenario (--n 16)."
