"""Failed runs: an error when all runs failed, a warning when many failed or when nothing was recorded."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from art_langgraph.credit import RetryCredit, group_refs
from art_langgraph.notices import HELP, warn_once
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import ARTError

log = logging.getLogger("art_langgraph")

TEXT_CALLS = "have a call in their text that the parser of tool calls did not take"
_MANY = 0.1
"""Share of runs that raised from which a warning is worth a line; a group without any good run always is."""


class RolloutsFailed(ARTError):
    """All runs of a gather, an evaluation or a training step failed. The message has their number and the first error.

    Args:
        message: What is wrong with the runs.
        trajectories: The runs, with their errors and everything that happened until then.
    """

    def __init__(self, message: str, *, trajectories: Sequence[Trajectory]) -> None:
        super().__init__(message)
        self.trajectories = list(trajectories)


def check_runs(groups: Sequence[TrajectoryGroup], *, answered_counts: bool = True) -> None:
    """Warns when many runs raised, or all of a scenario.

    Args:
        groups: The runs.
        answered_counts: A run that raised after the trainer server had answered in it is a measurement of the policy,
            such as an untrained one whose answers cannot be parsed. False: it is not.

    Raises:
        RolloutsFailed: All runs raised, and none of them counts.
    """
    runs = runs_of(groups)
    errors = [run for run in runs if run.error is not None]
    if not errors:
        return
    message = f"{len(errors)} of {len(runs)} runs raised: {errors[0].error}"
    if len(errors) == len(runs) and not (answered_counts and any(map(answered, runs))):
        raise RolloutsFailed(message, trajectories=runs)
    hopeless = [group for group in groups if group.trajectories and all(run.error for run in group.trajectories)]
    if hopeless or len(errors) >= _MANY * len(runs):
        scenarios = f" (scenarios of which every run raised: {len(hopeless)} of {len(groups)})" if hopeless else ""
        log.warning("%s%s", message, scenarios)


def failures_of(runs: Sequence[Trajectory]) -> str | None:
    """How many runs raised and how many others have no reward, each with the first error; None where none did."""
    errors = [run.error for run in runs if run.error is not None]
    reasons = [run.reward_error or "not scored" for run in runs if run.error is None and not run.scored]
    parts = [f"{len(errors)} of {len(runs)} runs raised: {errors[0]}"] if errors else []
    parts += [f"{len(reasons)} of {len(runs)} runs have no reward: {reasons[0]}"] if reasons else []
    return "; ".join(parts) or None


def answered(run: Trajectory) -> bool:
    """Whether the trainer server gave an answer in a run."""
    return any(call.id is not None and call.error is None for call in run.completions)


def broke_off(run: Trajectory) -> bool:
    """Whether a run raised after the trainer server had answered in it."""
    return run.error is not None and answered(run)


def check_rewards(groups: Sequence[TrajectoryGroup]) -> None:
    """Raises RolloutsFailed when no run has a reward, and no completion has one of its own."""
    runs = runs_of(groups)
    if runs and not any(run.scored for run in runs):
        why = next((run.reward_error for run in runs if run.reward_error), "no reward function scored them")
        raise RolloutsFailed(f"{len(runs)} of {len(runs)} runs have no reward: {why}", trajectories=runs)


def warn_unscored(groups: Sequence[TrajectoryGroup]) -> None:
    """Warns when no run of some groups has a reward, with the first reason."""
    runs = [run for run in runs_of(groups) if run.error is None]
    if runs and not any(run.scored for run in runs):
        log.warning("%s", failures_of(runs))


def check_completions(
    groups: Sequence[TrajectoryGroup], *, policy: str, nodes: Sequence[str] | None, retry_credit: RetryCredit
) -> None:
    """Warns when no run has a completion in the nodes that are trained, though some have one elsewhere.

    Args:
        groups: The runs of a step.
        policy: Name of the policy that is trained.
        nodes: Patterns of the node paths to train; None: all.
        retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").

    Raises:
        RolloutsFailed: No run has a completion of the policy that a training step could take, in any node.
    """
    runs = runs_of(groups)

    def trainable(nodes: Sequence[str] | None) -> bool:
        references = group_refs(groups, policy=policy, nodes=nodes, retry_credit=retry_credit)
        return any(run.completions for group in references for run in group.trajectories)

    if not runs or trainable(nodes):
        return
    if nodes is not None and trainable(None):
        log.warning(
            "none of %d runs has a completion of policy %r in nodes=%r, so that they teach nothing: it answered in %s",
            len(runs),
            policy,
            list(nodes),
            _places(runs, policy),
        )
        return
    message = (
        f"none of {len(runs)} runs has a completion of policy {policy!r} to train: {_describe_calls(runs, policy)}"
    )
    raise RolloutsFailed(message, trajectories=runs)


def _describe_calls(runs: Sequence[Trajectory], policy: str) -> str:
    """Whom the runs asked in place of the policy, or why none of its completions counts, and the remedy."""
    calls = [call for run in runs for call in run.completions]
    patterns = {pattern for run in runs for pattern in run.node_rewards or {}}
    if patterns and (places := _places(runs, policy)):
        return f"it answered in {places}, and the NodeRewards name {', '.join(map(repr, sorted(patterns)))}"
    if models := sorted({call.model or "an unknown model" for call in calls}):
        return f"they asked {', '.join(models)}. Name the policy that the graph asks, or let the graph ask {policy!r}"
    return f"no chat model was heard; see {HELP}"


def _places(runs: Sequence[Trajectory], policy: str) -> str:
    """The nodes in which a policy answered, for a message. Empty: in none."""
    places = {"/".join(call.path) for run in runs for call in run.completions if call.policy == policy}
    return ", ".join(map(repr, sorted(places)))


def warn_unheard(trajectory: Trajectory, graph: str) -> None:
    """Warns of a scored run that has no completion of the gateway. Each cause is logged once per process.

    Args:
        trajectory: A run that has ended.
        graph: Name of the graph's class.
    """
    if trajectory.reward is None or trajectory.error is not None or trajectory.untrained:
        return
    if any(call.id is not None for call in trajectory.completions):
        return
    if graph == "RemoteGraph":
        cause = "a RemoteGraph runs in another process"
        remedy = "Record there, with art_langgraph.dev or install()"
    elif answers := [call for call in trajectory.completions if call.message is not None]:
        models = ", ".join(sorted({call.model or "an unknown model" for call in answers}))
        cause = f"its answers came from {models}, not from the trainer server"
        remedy = "Use ChatART, or the trainer server's address as base_url"
    elif trajectory.completions:
        cause = "none of its model calls has an answer: they failed, or the graph left their streams before the end"
        remedy = "`art-langgraph trajectories show RUN` has their errors. Read a stream to its end"
    elif graph == "function":
        cause = (
            "the function made no request that the trainer server knows as its own: it asked another server, or asked "
            "from a bare thread or a child process without the run's base URL"
        )
        remedy = (
            "Give the client base_url=current_run().base_url and api_key=current_run().api_key, or the child process "
            "current_run().environment (where OPENAI_API_KEY is set, OPENAI_BASE_URL is not changed)"
        )
    else:
        cause = (
            "no chat model was heard: its nodes came from a node cache, or it was called in a bare thread or by "
            "run_in_executor without the run's context, or by a client that is made with neither LangChain nor httpx"
        )
        remedy = (
            "Compile the graph that is trained without a cache, call the model by `await model.ainvoke(…)` or "
            "asyncio.to_thread, or give the client current_run().base_url"
        )
    warn_once(f"a run has a reward and no completion to train: {cause}", remedy)


def text_calls_of(runs: Sequence[Trajectory]) -> tuple[int, int]:
    """How many answers call a tool in their text, which the engine's parser did not take, and how many there are."""
    answers = [call for run in runs for call in run.completions if call.message is not None]
    return sum(call.text_call is not None for call in answers), len(answers)


def runs_of(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """The runs of all groups."""
    return [run for group in groups for run in group.trajectories]


def versions_of(runs: Sequence[Trajectory]) -> dict[str, list[int]]:
    """The versions that answered in some runs, by policy."""
    numbers: dict[str, set[int]] = {}
    for run in runs:
        for policy, versions in run.versions.items():
            numbers.setdefault(policy, set()).update(versions)
    return {policy: sorted(versions) for policy, versions in numbers.items()}
