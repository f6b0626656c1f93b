"""Processor time of the client for a completion: recorded rollouts against the same agent without this project.

The agent, LangChain's `create_agent` with a tool, asks a stand-in for the trainer server, a process of its own
(`testbed.gateway_replay`), so that only the client's time counts. `bare` has LangChain's ChatOpenAI and `ainvoke`;
`recorded` has ChatART and `gather`, which records, scores nothing, and reports each run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from art_langgraph import ChatART, gather
from art_langgraph.background import reports
from benchmarks.capture.running import running, timed, wait_for
from testbed.processor_time import ProcessorTime
from trainer_server.engines.vllm.command import free_port

CALLS = 4
"""Completions of one run."""
SECONDS = 1.0
"""Of an answer."""
PARTS = {
    "art_langgraph/capture/": "capture",
    "art_langgraph/": "rollouts",
    "trainer_server/": "rollouts",
    "/langgraph/": "LangGraph",
    "/langchain": "LangChain",
    "/langsmith/": "LangChain",
    "/openai/": "OpenAI's client",
    "/httpx": "HTTP",
    "/httpcore": "HTTP",
    "/anyio/": "HTTP",
    "/h11/": "HTTP",
}
"""As those of `testbed.processor_time`."""
_KEY = "benchmark"
_PROMPT = "You look things up before you answer, and you say where you found them. " * 10
_QUESTION = "What do you know of the sea? " * 20


@tool
async def look_up(name: str) -> str:
    """Looks a name up."""
    return f"{name} is wide, and the day is long"


def sides(url: str, rollouts: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What runs so many rollouts at once, by side."""
    bare = create_agent(ChatOpenAI(model="agent", base_url=f"{url}/v1", api_key=_KEY), [look_up], system_prompt=_PROMPT)
    model = ChatART(policy="agent", base_url=url, api_key=_KEY)
    agent = create_agent(model, [look_up], system_prompt=_PROMPT)

    async def recorded() -> None:
        (group,) = await gather(agent, [_QUESTION], n=rollouts, max_concurrency=rollouts, progress=False)
        captured = sum(len(run.completion_ids) for run in group.trajectories)
        if captured != rollouts * CALLS:
            raise AssertionError(f"{captured} completions were captured, not {rollouts * CALLS}")
        await asyncio.to_thread(reports.flush, 60)

    question = {"messages": [("user", _QUESTION)]}
    return {"bare": lambda: timed(lambda _: bare.ainvoke(question), rollouts, rollouts), "recorded": recorded}


async def _measure(url: str, options: argparse.Namespace, processor: ProcessorTime) -> list[dict[str, Any]]:
    cases = []
    for rollouts in options.client:
        runs = sides(url, rollouts)
        cpu_ms: defaultdict[str, list[float]] = defaultdict(list)
        parts: dict[str, defaultdict[str, float]] = {side: defaultdict(float) for side in runs}
        for round_number in range(options.client_rounds + 1):
            for side, run in runs.items():
                before, used = processor.totals(), time.process_time()
                await run()
                used = time.process_time() - used
                if not round_number:  # the first one makes connections, and loads code
                    continue
                cpu_ms[side].append(1000 * used / (rollouts * CALLS))
                for part, seconds in processor.totals().items():
                    parts[side][part] += seconds - before.get(part, 0.0)
        for side in runs:
            median, whole = statistics.median(cpu_ms[side]), sum(parts[side].values())
            shares = sorted(parts[side].items(), key=lambda item: -item[1])
            cases.append(
                {
                    "rollouts": rollouts, "side": side, "cpu_ms": median, "cpu_ms_rounds": cpu_ms[side],
                    "cpu_ms_by_part": {part: median * seconds / whole for part, seconds in shares},
                }
            )  # fmt: skip
    return cases


def measure_client(scratch: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of the client's processor a completion, by rollouts at once and side."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    line = ["-m", "testbed.gateway_replay", str(port), "--calls", str(CALLS), "--seconds", str(SECONDS)]
    processor = ProcessorTime(scratch / "parts.json", PARTS)
    with running(sys.executable, *line):
        wait_for(f"{url}/health", lambda answer: answer.status_code == 200)
        processor.start()
        try:
            return asyncio.run(_measure(url, options, processor))
        finally:
            processor.stop()
