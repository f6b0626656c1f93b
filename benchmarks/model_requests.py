"""Takes the requests that a base model wrote out of a set of scenarios, as a set of foreign wordings.

`art-langgraph scenarios … --model policy -o set.jsonl` writes and checks them; then
`python -m benchmarks.model_requests set.jsonl NAME.model.jsonl [-n 15]`. Each line has `task` and `calls`; `asks` and
`facts` where the answer must have something; `by_result`; and `reply`, `about`, `answer` where the task cannot be done.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from art_mcp import MCPScenario, ScenarioSet
from art_mcp.scenarios.scenario_set import balance_scenarios
from art_mcp.scenarios.writing.manners import MANNERS
from trainer_server.common.jsonl import write_jsonl
from trainer_server.wire import ConfigError


def requests_of(scenarios: Iterable[MCPScenario], n: int) -> list[dict[str, Any]]:
    """The requests that a model wrote, tools by turns: those that stand alone, and need a call.

    Args:
        scenarios: The scenarios. Those in the grammar's words are left out.
        n: How many, at most.
    """
    able = [
        scenario
        for scenario in scenarios
        if scenario.tools and len(scenario.messages) == 1 and scenario.plan.phrasing.rpartition(" ")[2] in MANNERS
    ]
    return [_request_of(scenario) for scenario in balance_scenarios(able)[:n]]


def _request_of(scenario: MCPScenario) -> dict[str, Any]:
    plan = scenario.plan
    parts: dict[str, Any] = {
        "asks": [{"call": reading.step, "path": reading.path} for reading in plan.readings],
        "facts": plan.facts,
        "by_result": any(step.by_result for step in plan.reference),
    }
    if plan.reply == "refusal":
        parts = {"reply": plan.reply, "about": plan.about, "answer": plan.answer}
    calls = [{"tool": step.tool, "arguments": step.arguments} for step in plan.reference]
    return {"task": scenario.task, "calls": calls, **{name: value for name, value in parts.items() if value}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", type=Path, help="JSONL file of `art-langgraph scenarios --model policy`")
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument("-n", type=int, default=15, help="how many requests, at most")
    options = parser.parse_args()
    requests = requests_of(ScenarioSet.load(options.scenarios).scenarios, options.n)
    if not requests:
        raise ConfigError(
            f"{options.scenarios} has no request that a model wrote: make it with --model policy and a capable model"
        )
    write_jsonl(options.output, requests)
    print(f"{len(requests)} requests written to {options.output}")


if __name__ == "__main__":
    main()
