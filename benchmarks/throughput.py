"""Completions at a GPU's rate: what a server spends on each, and whether its ledger has their exact tokens.

    python -m benchmarks.throughput [--json] [--requests 256,1024] [--rounds 2] [--engines 2] [--tokens 256]
                                    [--prompt 512] [--step 0.01] [--answers whole,streamed] [--gateways 1]

Starts the trainer server with a ledger on disk over ENGINES engines (`testbed.engine_replay`), each a process of its
own, which send ready-made answers of TOKENS tokens with their log-probabilities in vLLM's form: a token every STEP
seconds, for all requests at once. So REQUESTS clients, each of which asks one question after another, get at most
REQUESTS / (TOKENS × STEP) answers a second: 100 for 256 of them, and 400 for 1,024. Each answer belongs to a rollout.

With --gateways N above 1 two servers are measured, one after the other: of one process, and of N gateway processes with
their parent.

For each number of requests, whole and streamed: `completions_per_s`; `cpu_ms`, the processor time of the server's
processes for a completion (user and system), and the shares of its parts: those of the server's own process
(`testbed.processor_time`, which itself takes about a hundredth), and all gateway processes together; `p99_added_ms`,
the 99th percentile of the answers' times less that of the same clients at the engines themselves. Clients, server and
engines share the machine's processors: judge by processor time, and by rates only where processors are idle. When the
server has stopped, its ledger is compared with what the engines sent, row by row: `lost` answers are not in it,
`differing` ones have other tokens, log-probabilities, prompts or texts. The program ends with status 1 if there are
any, or if a request failed. The last line under --json is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.stress.books import rows_of
from benchmarks.stress.clients import HEADERS
from benchmarks.stress.training import Training
from testbed.engine_replay import VARIANTS, ReadyAnswer, answer_of
from testbed.processor_time import parts_of
from testbed.server_process import EngineProcess, ServerProcess
from testbed.tiny_model import tiny_base
from trainer_server.common import Home
from trainer_server.wire import Completion, CompletionStatus
from trainer_server.wire.headers import COMPLETION, ROLLOUT

POLICY = "agent"
_EXACT = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
"""What engines are asked for directly, as the gateway asks them."""
_FILLER = "The sea is wide and the day is long. " * 40
"""Before the question: a prompt of some hundred tokens has as much text."""


@dataclass(slots=True)
class Clients:
    """Clients that ask one question after another.

    Args:
        urls: Whom they ask, in turns.
        model: What it calls the model.
        fields: Fields of each request.
        tokens: Sampled tokens of an answer.
        prompt: Tokens of a prompt.

    Attributes:
        numbers: By completion: the number that was asked for. Empty where engines are asked.
        failures: By what was wrong.
    """

    urls: Sequence[str]
    model: str
    fields: Mapping[str, Any]
    tokens: int
    prompt: int
    numbers: dict[str, int] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    async def ask(self, count: int, rounds: int, spread: float) -> list[float]:
        """Asks; returns the seconds of each answer.

        Args:
            count: Clients.
            rounds: Questions of each.
            spread: Seconds within which they begin, so that answers do not all end at once.
        """
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            headers=HEADERS, connector=connector, timeout=aiohttp.ClientTimeout(total=600)
        ) as http:

            async def work(client: int) -> list[float]:
                await asyncio.sleep(spread * client / count)
                url = self.urls[client % len(self.urls)]
                return [await self._answer(http, url, client, at) for at in range(rounds)]

            return list(itertools.chain.from_iterable(await asyncio.gather(*map(work, range(count)))))

    async def _answer(self, http: aiohttp.ClientSession, url: str, client: int, at: int) -> float:
        number = (client + at) % VARIANTS
        question = {"role": "user", "content": f"{_FILLER}Client {client} asks for {number}"}
        body = {"model": self.model, "messages": [question], "max_tokens": self.tokens, **self.fields}
        begin = time.monotonic()
        try:
            async with http.post(
                f"{url}/v1/chat/completions", json=body, headers={ROLLOUT: f"client-{client}"}
            ) as answer:
                raw = await answer.read()
        except aiohttp.ClientError as error:
            self.failures[repr(error)[:200]] += 1
            return time.monotonic() - begin
        seconds = time.monotonic() - begin
        if answer.status != 200:
            self.failures[f"{answer.status}: {raw[:200]!r}"] += 1
        else:
            if (completion := answer.headers.get(COMPLETION)) is not None:
                self.numbers[completion] = number
            if client % 16 == 0 and text_of(raw, bool(body.get("stream"))) != self._text(number):
                self.failures["the client got another text"] += 1
        return seconds

    def _text(self, number: int) -> str:
        return answer_of(number, self.tokens, self.prompt).text


def text_of(raw: bytes, is_stream: bool) -> str:
    """The text of an answer, as a client reads it; of a stream that has ended as it should."""
    if not is_stream:
        return str(json.loads(raw)["choices"][0]["message"]["content"])
    *lines, last = [line.removeprefix(b"data: ") for line in raw.split(b"\n") if line.startswith(b"data: ")]
    if last != b"[DONE]":
        return ""
    choices = itertools.chain.from_iterable(json.loads(line)["choices"] for line in lines)
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def differs(row: Completion, answer: ReadyAnswer) -> bool:
    """Whether a row of the ledger has anything else than what the engine sent."""
    seen = (row.status, row.prompt_token_ids, row.token_ids, row.logprobs, (row.message or {}).get("content"))
    sent = (CompletionStatus.complete, answer.prompt_token_ids, answer.token_ids, answer.logprobs, answer.text)
    return seen != sent or row.untrainable is not None


@contextmanager
def processes(
    scratch: Path, options: argparse.Namespace, output: Path, gateways: int
) -> Iterator[tuple[list[EngineProcess], ServerProcess]]:
    """A server over its engines, once it is ready. gateways: its processes that answer."""
    base = tiny_base(scratch)
    flags = ("--tokens", str(options.tokens), "--prompt", str(options.prompt), "--step", str(options.step))
    engines = [
        EngineProcess(scratch / f"engine-{at}.log", base.name, module="testbed.engine_replay", options=flags)
        for at in range(options.engines)
    ]
    server = ServerProcess(
        scratch / "home",
        base,
        options=[
            *itertools.chain.from_iterable(("--engine-url", engine.url) for engine in engines),
            *("--gateways", str(gateways)),
        ],
        prefix=(sys.executable, "-m", "testbed.processor_time", str(output)),
    )
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.until_ready()
        server.start()
        server.until_ready()
        yield engines, server
    finally:
        server.stop()
        for engine in engines:
            engine.stop()


async def measure_case(
    engines: Sequence[EngineProcess],
    server: ServerProcess,
    output: Path,
    options: argparse.Namespace,
    *,
    requests: int,
    stream: bool,
    numbers: dict[str, int],
) -> dict[str, Any]:
    """The figures of one number of requests. numbers: gets what was asked for, by completion."""
    fields = {"stream": True} if stream else {}
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    sizes = (options.tokens, options.prompt)
    direct = Clients([engine.url for engine in engines], engines[0].base, {**fields, **_EXACT, **usage}, *sizes)
    gateway = Clients([server.url], POLICY, fields, *sizes)
    spread = options.tokens * options.step
    await gateway.ask(requests, 1, spread)  # connections are made, and code is loaded
    gc.collect()
    process = psutil.Process(server.pid)
    children = [child for child in process.children() if "trainer_server.server.gateways" in child.cmdline()]
    parts = await asyncio.to_thread(parts_of, server.pid, output)
    used, used_there, begin = _processor_seconds(process), _processor_seconds(*children), time.monotonic()
    seconds = await gateway.ask(requests, options.rounds, spread)
    elapsed, used = time.monotonic() - begin, _processor_seconds(process) - used
    used_there = _processor_seconds(*children) - used_there
    later = await asyncio.to_thread(parts_of, server.pid, output)
    direct_seconds = await direct.ask(requests, options.rounds, spread)
    numbers |= gateway.numbers
    spent = {part: seconds - parts.get(part, 0.0) for part, seconds in later.items()}
    count, p99_direct, p99 = len(seconds), _p99(direct_seconds), _p99(seconds)
    by_part = {
        part: 1000 * used / count * value / sum(spent.values())
        for part, value in sorted(spent.items(), key=lambda item: -item[1])
    }
    if children:
        by_part["gateway processes"] = 1000 * used_there / count
    return {
        "gateways": len(children) or 1,
        "requests": requests,
        "answers": "streamed" if stream else "whole",
        "completions": count,
        "completions_per_s": count / (elapsed - spread / 2),  # they begin within `spread`
        "cpu_ms": 1000 * (used + used_there) / count,
        "cpu_ms_by_part": by_part,
        "p99_direct_ms": p99_direct,
        "p99_added_ms": p99 - p99_direct,
        "failures": dict((gateway.failures + direct.failures).most_common(5)),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    sides = [measure_server(options, gateways) for gateways in sorted({1, options.gateways})]
    totals = {name: sum(side[name] for side in sides) for name in ("rows", "lost", "differing")}
    return {"cases": [case for side in sides for case in side["cases"]], **totals}


def measure_server(options: argparse.Namespace, gateways: int) -> dict[str, Any]:
    """The figures of one server. gateways: its processes that answer."""
    numbers: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "parts.json"
        with processes(Path(scratch), options, output, gateways) as (engines, server):

            async def run() -> list[dict[str, Any]]:
                await Training(server.url, POLICY).create()
                return [
                    await measure_case(
                        engines, server, output, options, requests=requests, stream=stream, numbers=numbers
                    )
                    for requests in options.requests
                    for stream in options.answers
                ]

            cases = asyncio.run(run())
        rows = differing = 0
        lost = set(numbers)
        for row in rows_of(Home(server.home).ledger):
            rows += 1
            lost.discard(row.id)
            if (number := numbers.get(row.id)) is not None:
                differing += differs(row, answer_of(number, options.tokens, options.prompt))
    return {"cases": cases, "rows": rows, "lost": len(lost), "differing": differing}


def _processor_seconds(*processes: psutil.Process) -> float:
    """User and system time of processes, until now."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _p99(seconds: Sequence[float]) -> float:
    """In milliseconds."""
    return 1000 * statistics.quantiles(seconds, n=100)[98]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _kinds(text: str) -> list[bool]:
    return [{"whole": False, "streamed": True}[name] for name in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--requests", type=_numbers, default=[256, 1024], help="requests at once (256,1024)")
    parser.add_argument("--answers", type=_kinds, default=[False, True], help="whole, streamed (whole,streamed)")
    parser.add_argument("--rounds", type=int, default=2, help="questions of each client (2)")
    parser.add_argument("--engines", type=int, default=2, help="engines (2)")
    parser.add_argument("--tokens", type=int, default=256, help="sampled tokens of an answer (256)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt (512)")
    parser.add_argument("--step", type=float, default=0.01, help="seconds in which an engine samples a token (0.01)")
    parser.add_argument("--gateways", type=int, default=1, help="gateway processes, measured beside one process (1)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end with this program
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    result = measure(options)
    table = Table("figure", *(f"{case['requests']} {case['answers']}, {case['gateways']}" for case in result["cases"]))
    for name in ("completions_per_s", "p99_direct_ms", "p99_added_ms", "cpu_ms"):
        table.add_row(name, *(f"{case[name]:.1f}" for case in result["cases"]))
    for part in dict.fromkeys(part for case in result["cases"] for part in case["cpu_ms_by_part"]):
        table.add_row(f"  {part}", *(f"{case['cpu_ms_by_part'].get(part, 0.0):.2f}" for case in result["cases"]))
    console = Console(stderr=options.json)
    console.print(table)
    console.print(f"ledger: {result['rows']} rows, {result['lost']} lost, {result['differing']} differing")
    if options.json:
        print(json.dumps({"benchmark": "throughput", **result}))
    if result["lost"] or result["differing"] or any(case["failures"] for case in result["cases"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
