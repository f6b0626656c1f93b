"""`art-langgraph evaluate`: how often a version solves scenarios, with one run of each or several."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from art_langgraph.cli.options import JsonOption, StoreOption, load_function, load_object
from art_langgraph.cli.printing import only_json, print_table
from trainer_server.common.options import with_flags

if TYPE_CHECKING:
    from art_langgraph.loop.evaluate import Evaluation


@dataclass(frozen=True, kw_only=True)
class EvaluationFlags:
    """An evaluation on the command line.

    Args:
        scenarios: Scenarios to run: JSONL, a scenario per line.
        graph_object: The graph that runs them, as module:graph.
        reward: Reward function, as module:function; a reward of at least 1 is a success.
        n: Runs of each scenario. With several, pass@k, best of k, the majority of the answers and what is chance are
            shown too: give a temperature then.
        version: Version of the policies that the graph asks. Default: what their names mean.
        temperature: Sampling temperature. At 0 all runs of a scenario are nearly equal.
        timeout: Seconds for a run.
        max_concurrency: Runs at once. Default: as many requests as the server's engines compute at once.
    """

    scenarios: Path
    graph_object: str
    reward: str
    n: int = field(default=1, metadata={"min": 1})
    version: int | None = field(default=None, metadata={"min": 0})
    temperature: float = field(default=0.0, metadata={"min": 0.0})
    timeout: float | None = None
    max_concurrency: int | None = field(default=None, metadata={"min": 1})


@with_flags
def evaluate_command(
    flags: Annotated[EvaluationFlags, None], as_json: JsonOption = False, store: StoreOption = None
) -> None:
    """Measure how often a version solves scenarios. The runs are never trained on, and are kept in the store.

    Example: art-langgraph evaluate --scenarios held_out.jsonl --graph-object my_agent:graph --reward my_agent:reward
    --n 8 --temperature 1
    """
    from art_langgraph.datasets import load_scenarios
    from art_langgraph.loop.evaluate import evaluate
    from art_langgraph.store import TrajectoryStore

    scenarios = load_scenarios(flags.scenarios)  # before the graph, whose module may look for a server
    graph, reward = load_object(flags.graph_object), load_function(flags.reward)
    with only_json(as_json) as notify:
        evaluation = asyncio.run(
            evaluate(
                graph,
                scenarios,
                reward,
                version=flags.version,
                n=flags.n,
                temperature=flags.temperature,
                timeout=flags.timeout,
                max_concurrency=flags.max_concurrency,
                store=TrajectoryStore(store),
                progress=sys.stderr.isatty(),
            )
        )
        notify({**evaluation.summary(), "by_scenario": [outcome.summary() for outcome in evaluation.by_scenario()]})
        print(evaluation)
        _print_repeats(evaluation)


def _print_repeats(evaluation: Evaluation) -> None:
    """Prints what several runs of each scenario tell."""
    if (repeats := evaluation.repeats) is None:
        return
    rows = [
        {"k": str(k), "one of k succeeds (pass@k)": value, "best of k": repeats.best_of.get(k)}
        for k, value in repeats.pass_at.items()
    ]
    print_table(rows, list(rows[0]))
    rates = [outcome.successes / outcome.runs for outcome in evaluation.by_scenario()]
    always, never = rates.count(1.0), rates.count(0.0)
    print(f"scenarios solved always: {always}, sometimes: {len(rates) - always - never}, never: {never}")
    print(f"variance within scenarios (chance): {repeats.within:.3f}, between them (difficulty): {repeats.between:.3f}")
    if repeats.majority is not None:
        print(f"the most frequent answer of a scenario succeeds: {repeats.majority:.3f}")
