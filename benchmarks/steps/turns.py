"""Agents of eight turns: what a training step computes when prompts are rendered, and when they are spliced.

    python -m benchmarks.steps.turns --scripted [--json] [--tokenizer qwen3=DIR] [--tokenizer llama3_1=DIR]
    python -m benchmarks.steps.turns [--json] [--model embedded] [--modes off,exact,thoughts] [--rollouts 4]
        [--rounds 1]

With --scripted, no model runs: a script says what the policy writes in each turn, on the embedded model's template and
tokenizer, and on those that are named: TRL's file of the template, and the directory of a `tokenizer.json`. The figures
are of one rollout.

Without it, one vLLM serves the model. For each mode of `serve --splice` a trainer server stands over it, with a policy
of its own. The rounds alternate between the servers. In a round, all rollouts of an agent run at once, and one step
trains on them. Before the first round, each server answers one turn and takes a step on it, which are not counted. Each
round prints a line to standard error.

- `calls`: a grammar makes the policy call a tool in each turn, in JSON without spaces, which no template writes. Where
  the model thinks, it thinks first. LangChain writes the calls anew and sends no thoughts.
- `chat`: free text at temperature 1. Its tokens are often not those that the tokenizer would choose.

`packed`: tokens of the step's prefix tree, `separate`: of the same completions one by one. `tokens/s` counts sampled
tokens by the wall time of the rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from art_langgraph import ChatART, GRPOConfig, TrainerClient, gather
from testbed.running import running
from testbed.scripted_turns import HERMES, LLAMA, FileVocabulary, RealTemplate, trl_template
from testbed.scripted_turns import agent as scripted_agent
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import resolve
from trainer_server.engines.vllm.command import command, environment, free_port
from trainer_server.engines.vllm.parsers import parsers_of

KEY = "benchmark"
TURNS = 8
_ARGUMENTS = r'\{"page":[1-9][0-9]?,"word":"[a-z]{3,10}"\}'
CALLS = {
    "hermes": r'<tool_call>\n\{"name":"lookup","arguments":' + _ARGUMENTS + r"\}\n</tool_call>",
    "llama": r'\{"name":"lookup","parameters":' + _ARGUMENTS + r"\}",
}
"""Grammars of calls, by family."""
THOUGHT = r"<think>\n[a-z ]{20,60}\n</think>\n\n"
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks a word up in a book.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "page": {"type": "integer"}},
            "required": ["word", "page"],
        },
    },
}


def agent(model: Runnable[Any, Any], turns: int) -> Any:
    """A graph that asks its model as many times as there are turns."""

    async def ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def go_on(state: MessagesState) -> dict[str, list[AnyMessage]]:
        said = state["messages"][-1]
        results: list[AnyMessage] = [
            ToolMessage(f'"{call["args"]["word"]}" is not there.', tool_call_id=str(call["id"]))
            for call in getattr(said, "tool_calls", ())
        ]
        return {"messages": results or [HumanMessage("Go on.")]}

    def more(state: MessagesState) -> str:
        return END if sum(isinstance(one, AIMessage) for one in state["messages"]) >= turns else "go_on"

    graph = StateGraph(MessagesState).add_node("ask", ask).add_node("go_on", go_on)
    graph.add_edge(START, "ask").add_edge("go_on", "ask").add_conditional_edges("ask", more)
    return graph.compile()


@dataclass(slots=True)
class Side:
    """A trainer server with one mode of `--splice`, and what was measured there."""

    mode: str
    url: str
    seconds: float = 0.0
    sampled: int = 0
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Totals over the rounds."""
        total: defaultdict[str, float] = defaultdict(float)
        continuations: Counter[str] = Counter()
        for metrics in self.metrics:
            for name in ("tokens_total", "tokens_unique", "tokens_trained"):
                total[name] += metrics[name]
            total["compute"] += metrics["seconds"]["forward"] + metrics["seconds"]["backward"]
            continuations.update(metrics["continuations"])
        drifts = [metrics["prefix_drift"] for metrics in self.metrics]
        return {
            "splice": self.mode,
            "prefix_drift": sum(drifts) / len(drifts),
            "packed": int(total["tokens_unique"] / len(drifts)),
            "separate": int(total["tokens_total"] / len(drifts)),
            "trained": int(total["tokens_trained"] / len(drifts)),
            "compute_seconds": total["compute"] / len(drifts),
            "tokens_per_second": self.sampled / self.seconds,
            "continuations": dict(continuations),
        }


@contextmanager
def servers(model: str, modes: list[str], scratch: Path, extra: list[str]) -> Iterator[list[Side]]:
    """A vLLM, and a trainer server over it for each mode."""
    home = Home.find()
    base = resolve(model, home.cache)
    port, sides = free_port(), []
    flags = ["--structured-outputs-config", '{"enable_in_reasoning": true}', *extra]
    parsers = parsers_of(base.path, home.cache, tools="auto", reasoning="auto", args=flags)
    settings = EngineSettings(base=base, home=home, cpu=True, max_rank=8, args=tuple(flags))
    line = command(settings, port, parsers=parsers)
    with ExitStack() as stack:
        engine = f"http://127.0.0.1:{port}"
        stack.enter_context(running(line, environment(settings, KEY), scratch / "vllm.log", engine))
        for mode in modes:
            own = free_port()
            words = ["--model", model, "--home", str(scratch / mode), "--port", str(own), "--engine-url", engine]
            env = {"ART_API_KEY": KEY, "ART_ENGINE_API_KEY": KEY}
            url = f"http://127.0.0.1:{own}"
            serve = [sys.executable, "-m", "trainer_server", *words, "--max-rank", "8", "--splice", mode]
            stack.enter_context(running(serve, env, scratch / f"{mode}.log", url))
            sides.append(Side(mode, url))
        yield sides


async def measure(kind: str, side: Side, grammar: str, *, rollouts: int, turns: int, seed: int, counted: bool) -> None:
    """One round of one side.

    Args:
        kind: `calls` or `chat`.
        side: The server; gets the figures if they are counted.
        grammar: What the model must write in each turn of `calls`.
        rollouts: How many, in two groups.
        turns: Of each rollout.
        seed: Of prompts and rewards.
        counted: Whether the figures count.
    """
    policy, rng = f"{kind}-{side.mode}", random.Random(seed)
    async with TrainerClient(side.url, KEY) as trainer:
        if policy not in {known.name for known in await trainer.policies()}:
            await trainer.create_policy(policy, rank=8)
        model: Any = ChatART(
            policy=policy, max_tokens=160 if kind == "calls" else 32, base_url=side.url, api_key=SecretStr(KEY)
        )
        if kind == "calls":
            model = model.bind(tools=[TOOL], extra_body={"structured_outputs": {"regex": grammar}})
        prompts = [f"{seed}.{number}: look some words up." for number in range(2)]
        asked = [{"messages": [SystemMessage("You answer in few words."), HumanMessage(prompt)]} for prompt in prompts]
        began = time.perf_counter()
        graph = agent(model, turns)
        groups = await gather(graph, asked, n=rollouts // 2, reward=lambda _: rng.random(), progress=False)
        seconds = time.perf_counter() - began
        runs = [run for group in groups for run in group.trajectories]
        if errors := [run.error for run in runs if run.error]:
            raise RuntimeError(f"{len(errors)} of {len(runs)} rollouts failed: {errors[0]}")
        result = await trainer.train_step(policy, groups, GRPOConfig(lr=1e-6))
        if counted:
            spent = result.metrics["seconds"]
            said = (
                f"{policy}, round {seed}: rollouts {seconds:.1f} s, step {spent['forward'] + spent['backward']:.1f} s, "
                f"{result.metrics['tokens_unique']} packed tokens, drift {result.metrics['prefix_drift']:.3f}"
            )
            print(said, file=sys.stderr, flush=True)
            side.seconds += seconds
            answers = [message for run in runs for message in run.messages if isinstance(message, AIMessage)]
            side.sampled += sum(answer.usage_metadata["output_tokens"] for answer in answers if answer.usage_metadata)
            side.metrics.append(result.metrics)


async def main(options: argparse.Namespace) -> dict[str, Any]:
    """All agents on all sides."""
    found: dict[str, Any] = {"model": options.model}
    with (
        tempfile.TemporaryDirectory(prefix="art-turns-") as scratch,
        servers(options.model, options.modes.split(","), Path(scratch), options.engine_args.split()) as sides,
    ):
        grammar = THOUGHT * options.thinks + CALLS[options.calls]
        for kind in ("calls", "chat"):
            fresh = [Side(side.mode, side.url) for side in sides]
            for side in fresh:
                await measure(kind, side, grammar, rollouts=4, turns=1, seed=0, counted=False)
            for seed in range(1, options.rounds + 1):
                for side in fresh:
                    await measure(kind, side, grammar, rollouts=options.rollouts, turns=TURNS, seed=seed, counted=True)
            found[kind] = [side.row() for side in fresh]
    return found


def scripted(tokenizers: list[str]) -> list[dict[str, Any]]:
    """The scripted agent on each template, in each mode.

    Args:
        tokenizers: `NAME=DIRECTORY`.
    """
    embedded = Path(resolve("embedded", Home.find().cache).path)
    hermes, llama = ("<|im_end|>", HERMES), ("<|eot_id|>", LLAMA)
    cases = [("SmolLM2", (embedded / "chat_template.jinja").read_text(), embedded, hermes, False)]
    for words in tokenizers:
        name, _, directory = words.partition("=")
        style, text = llama if name.startswith("llama") else hermes, trl_template(name).read_text()
        cases.append((name, text, Path(directory), style, False))
        if "<think>" in text:
            cases.append((f"{name}, thinks", text, Path(directory), style, True))
    rows = []
    for name, text, directory, (end, call), thinks in cases:
        template = RealTemplate(text, end, call, FileVocabulary(directory / "tokenizer.json"), thinks=thinks)
        for mode in ("off", "exact", *(["thoughts"] if thinks else [])):
            run = scripted_agent(template, mode)
            ways = dict(Counter(map(str, run.ways)))
            figures = {"prefix_drift": run.drift, "packed": run.packed, "separate": run.separate, "prompts": ways}
            rows.append({"template": name, "splice": mode, **figures})
    return rows


def show_scripted(rows: list[dict[str, Any]]) -> None:
    """Prints a table."""
    table = Table(title=f"a rollout of {TURNS} turns, scripted")
    for name in rows[0]:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


def show(found: dict[str, Any]) -> None:
    """Prints a table."""
    table = Table(title=f"{found['model']}, per step")
    names = ("agent", "splice", "prefix drift", "packed", "separate", "trained", "step s", "tokens/s", "prompts")
    for name in names:
        table.add_column(name)
    for kind in ("calls", "chat"):
        for row in found[kind]:
            prompts = ", ".join(f"{count} {how}" for how, count in row["continuations"].items())
            figures = [f"{row['prefix_drift']:.3f}", *(str(row[name]) for name in ("packed", "separate", "trained"))]
            speed = [f"{row['compute_seconds']:.1f}", f"{row['tokens_per_second']:.0f}"]
            table.add_row(kind, row["splice"], *figures, *speed, prompts)
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", default="embedded", help="as `serve` has it")
    parser.add_argument("--modes", default="off,exact,thoughts", help="values of `serve --splice`")
    parser.add_argument("--calls", default="hermes", choices=CALLS, help="how the model writes calls of tools")
    parser.add_argument("--thinks", action="store_true", help="the model thinks first, in <think>…</think>")
    parser.add_argument("--rollouts", type=int, default=4, help="rollouts of a round, in two groups")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each server and agent")
    parser.add_argument("--engine-args", default="", help="more flags for vLLM")
    parser.add_argument("--scripted", action="store_true", help="run no model")
    parser.add_argument("--tokenizer", action="append", default=[], help="NAME=DIRECTORY, with --scripted; repeatable")
    chosen = parser.parse_args()
    if chosen.scripted:
        rows = scripted(chosen.tokenizer)
        print(json.dumps(rows)) if chosen.json else show_scripted(rows)
    else:
        result = asyncio.run(main(chosen))
        print(json.dumps(result)) if chosen.json else show(result)
