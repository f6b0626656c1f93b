"""Families of models, each with its real tokenizer and chat template: what the whole loop does with them.

    python -m benchmarks.families [--json] [--family NAME]...

For each family, a model of its architecture with random weights and two layers is served by the real vLLM. A warm start
teaches it to think, where its format has thoughts, and to call a tool. A LangGraph agent then runs on it; its runs are
captured, one GRPO step is taken, and the new version answers. The tokenizers come from npm, once.

It then tries adapters of every kind of linear layer alone, and one of all, in the trainer and in vLLM.

`tool call` and `reasoning` are the shares of the first answers whose call or thought vLLM's parser read. `gap` is the
mean difference between the log-probabilities of trainer and sampler, in nats per token. `rows` are those that the step
computed, of as many as there are completions; `tokens` likewise, and under --json `shared` is the share of the tokens
that were not computed again. `applied` are the kinds of layers of which vLLM applies an adapter as the trainer does, of
those that get one (`targets`). `exact` is the largest error of a step in fp32 against transformers and PEFT, one
sequence at a time: of a log-probability in nats, or of the gradient, relative. The last line under --json is one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.families.layers import Moves, measure_moves, step_error
from testbed.families.models import FAMILIES, Family, FamilyUnavailable, family_model
from testbed.families.trial import FamilyServer, Trial, family_server, run_trial
from trainer_server.engines.model_files import ModelFiles
from trainer_server.wire import ARTError


def measure(family: Family, scratch: Path) -> dict[str, Any]:
    """The figures of a family, or `not_here`: why there are none."""
    home = scratch / family.name
    try:
        model = family_model(family)
        with family_server(family, home, lambda line: print(f"{family.name}: {line}", file=sys.stderr)) as server:
            trial = asyncio.run(run_trial(family, server.connection, home))
        moves = measure_moves(model, home / "adapters", family.dtype)
        exact = step_error(model, home / "adapters" / "all")
    except (ARTError, FamilyUnavailable, RuntimeError) as error:
        return {"family": family.name, "not_here": f"{error}{_cause(home / 'logs' / 'engine.log')}"}
    return {"class": ModelFiles(model).architectures[0]} | row(family.name, server, trial, moves, exact)


def row(family: str, server: FamilyServer, trial: Trial, moves: Mapping[str, Moves], exact: float) -> dict[str, Any]:
    """The figures of a family, by name.

    Args:
        family: Its name.
        server: What served it.
        trial: What it did there.
        moves: As `measure_moves` returns them.
        exact: As `step_error` returns it.
    """
    targets = [target for target in moves if target != "all"]
    return {
        **dataclasses.asdict(trial),
        "family": family,
        "startup": server.seconds,
        "tool_parser": server.tool_parser,
        "reasoning_parser": server.reasoning_parser,
        "targets": targets,
        "applied": [target for target in targets if moves[target].applies],
        "errors": {target: moved.error for target, moved in moves.items()},
        "gap": trial.logp_gap,
        "exact": exact,
        "shared": 1 - trial.tokens / trial.tokens_separate if trial.shared else 0.0,
    }


def _cause(log: Path) -> str:
    """The first error in vLLM's log, in brackets; the others follow from it."""
    errors = re.findall(r"(?<!`)\b\w*Error: .+", log.read_text(errors="replace")) if log.exists() else []
    return f" ({errors[0]})" if errors else ""


def table(results: list[dict[str, Any]]) -> Table:
    """The results, a row a family."""
    columns = ("family", "tool parser", "tool call", "reasoning parser", "reasoning", "gap", "rows", "tokens")
    drawn = Table(*columns, "applied", "exact", "s")
    for result in results:
        if "not_here" in result:
            drawn.add_row(result["family"], f"not here: {result['not_here']}")
            continue
        drawn.add_row(
            result["family"],
            result["tool_parser"],
            f"{result['called']:.0%}",
            result["reasoning_parser"] or "none",
            "-" if result["thought"] is None else f"{result['thought']:.0%}",
            f"{result['logp_gap']:.4f}",
            f"{result['rows']} for {result['completions']}",
            f"{result['tokens']} for {result['tokens_separate']}",
            f"{len(result['applied'])} of {len(result['targets'])}",
            f"{result['exact']:.0e}",
            f"{result['startup']:.0f} + {result['seconds']:.0f}",
        )
    return drawn


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="only this one; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = [measure(FAMILIES[name], Path(scratch)) for name in options.family or FAMILIES]
    if options.json:
        print(json.dumps({"families": results}))
    else:
        Console().print(table(results))


if __name__ == "__main__":
    main()
