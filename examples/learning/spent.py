"""What a run of an agent takes: turns, tokens, seconds, dollars."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from art_langgraph import Evaluation, Trajectory
from art_langgraph.costs import Tokens


def run_costs(
    evaluation: Evaluation, usd: float | None, wrong: Callable[[Trajectory], bool] | None = None
) -> dict[str, float | None]:
    """Means over the runs of a measurement.

    Args:
        evaluation: The runs.
        usd: What all of them cost. None: it is not known.
        wrong: As that of a task. None: no answers are told apart from silence.

    Returns:
        By name: `turns` (answers of the model), `tokens` (of prompts and answers; None where an answer does not say
        them), `seconds` (of wall time, while other runs went on beside it), `usd`, and with `wrong` the share `wrong`.
    """
    runs = evaluation.trajectories
    tokens = [_tokens(run) for run in runs]
    known = [count for count in tokens if count is not None]
    return {
        "turns": fmean(sum(call.message is not None for call in run.completions) for run in runs),
        "tokens": fmean(known) if len(known) == len(runs) else None,
        "seconds": fmean(run.seconds for run in runs),
        "usd": None if usd is None else usd / len(runs),
        **({} if wrong is None else {"wrong": fmean(map(wrong, runs))}),
    }


def _tokens(run: Trajectory) -> int | None:
    """Tokens of prompts and answers of a run, whoever answered. None: an answer does not say them."""
    total = sum(map(Tokens.of_call, run.completions), Tokens())
    return None if total.uncounted else total.prompt + total.sampled
