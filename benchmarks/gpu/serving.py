"""What engine, gateway and training loop do together: starts, rollouts, steps, changes of version, turns."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from art_examples.quickstart import quickstart
from art_examples.quickstart.agent import build_agent
from art_examples.quickstart.quickstart import LEARNING_RATE, MAX_TOKENS
from art_examples.quickstart.reward import reward, success
from art_examples.quickstart.scenarios import KINDS, held_out_scenarios, training_scenarios
from art_examples.quickstart.server_process import trainer_server

from art_langgraph import ChatART, Evaluation, GRPOConfig, Scenario, TrainerClient, evaluate, gather, train
from art_mcp import connect
from benchmarks.gpu.child import Rows
from benchmarks.gpu.parts import Options
from benchmarks.gpu.shapes import SHAPES, save_model
from benchmarks.rollouts import KEY, raw_line
from benchmarks.steps.overlap import graph
from testbed.running import running
from trainer_server.common import Connection, Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.engines.vllm.command import environment, free_port
from trainer_server.wire.headers import ROLLOUT

POLICY = "bench"
_WORDS = (
    "river",
    "stone",
    "lamp",
    "cloud",
    "garden",
    "paper",
    "winter",
    "signal",
    "harbor",
    "violin",
    "bridge",
    "copper",
)


class Load:
    """How much is asked for.

    Args:
        tiny: Whether it is a rehearsal.
    """

    def __init__(self, tiny: bool) -> None:
        self.tokens = 8 if tiny else 256
        """Sampled for each answer."""
        self.prompt_words = 20 if tiny else 420
        self.requests = (2, 4) if tiny else (64, 128, 256, 512)
        """At once."""
        self.groups, self.runs, self.steps = (2, 2, 2) if tiny else (16, 8, 3)


def base_model(options: Options) -> Path:
    """A directory with random weights, and with tokenizer and template of the embedded model."""
    cache = Home.find().cache
    embedded = Path(resolve("embedded", cache, lambda line: print(line, file=sys.stderr)).path)
    size = "tiny" if options.tiny else "0.6B"
    return Path(save_model(SHAPES[size], options.scratch / f"served-{size}", options.device, tokenizer=embedded))


@contextmanager
def server(options: Options, home: str, model: str, *flags: str) -> Iterator[tuple[Connection, float, list[str]]]:
    """A trainer server: its address, the seconds until it was ready, and what it said meanwhile."""
    lines: list[str] = []
    begin = time.monotonic()
    where = options.scratch / home
    arguments = ("--model", model, "--max-rank", "16", *flags)
    with trainer_server(where, options.scratch / f"{home}.log", lines.append, *arguments) as connection:
        yield connection, round(time.monotonic() - begin, 1), [line for line in lines if "vLLM" in line]


def text(seed: int, words: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) for _ in range(words))


async def ask(url: str, key: str, model: str, count: int, load: Load, *, ledger: bool) -> float:
    """Seconds of so many answers at once.

    Args:
        url: Of the server or of vLLM.
        key: Its token.
        model: Name of the model.
        count: How many.
        load: What is asked for.
        ledger: Whether each answer belongs to a rollout, so that its tokens are kept.
    """
    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=600,
        limits=httpx.Limits(max_connections=None),
    ) as http:

        async def answer(at: int) -> None:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": text(at, load.prompt_words)}],
                "max_tokens": load.tokens,
                "ignore_eos": True,
                "temperature": 1.0,
            }
            headers = {ROLLOUT: f"load-{count}-{at}"} if ledger else {}
            reply = await http.post("/v1/chat/completions", json=body, headers=headers)
            if reply.status_code != 200:
                raise RuntimeError(f"{url} answers {reply.status_code}: {reply.text[:500]}")

        begin = time.monotonic()
        await asyncio.gather(*map(answer, range(count)))
        return time.monotonic() - begin


def rate(count: int, seconds: float, load: Load) -> dict[str, Any]:
    return {
        "requests": count,
        "seconds": round(seconds, 2),
        "completions_per_s": round(count / seconds, 1),
        "tokens_per_s": round(count * load.tokens / seconds),
    }


def serving(options: Options, rows: Rows) -> None:
    """Two starts of vLLM; answers by vLLM alone, through the gateway, and to graphs; and steps of a training."""
    path, load = base_model(options), Load(options.tiny)
    with server(options, "first", str(path)) as (_, seconds, lines):
        rows.add("first start", {"ready_s": seconds, "lines": lines})
    with server(options, "second", str(path)) as (connection, seconds, lines):
        rows.add("second start", {"ready_s": seconds, "lines": lines})
        asyncio.run(rates(connection, load, rows))
        measure_loop(connection, load, rows, "loop")
    rows.measure("raw vLLM", lambda: raw_rates(options, path, load))


async def rates(connection: Connection, load: Load, rows: Rows) -> None:
    """Answers a second through the gateway, and to graphs whose calls are captured."""
    async with TrainerClient(connection.url, connection.api_key) as client:
        await client.create_policy(POLICY, rank=16)
        await ask(connection.url, connection.api_key, POLICY, load.requests[0], load, ledger=True)  # not counted
        for count in load.requests:
            seconds = await ask(connection.url, connection.api_key, POLICY, count, load, ledger=True)
            figures = rate(count, seconds, load)
            rows.add(f"gateway, {count}", figures)
            scenarios = [Scenario(input={"messages": [("user", text(at, load.prompt_words))]}) for at in range(count)]
            agent = graph(POLICY, connection, load.tokens)
            begin = time.monotonic()
            await gather(agent, scenarios, n=1, temperature=1.0, max_concurrency=count, progress=False)
            figures = rate(count, time.monotonic() - begin, load)
            rows.add(f"graphs, {count}", figures)


def raw_rates(options: Options, path: Path, load: Load) -> dict[str, Any]:
    """Answers a second of vLLM by itself: no adapter, no plugins, no log-probabilities."""
    cache, port = Home.find().cache, free_port()
    base = ServedModel(name=path.name, path=str(path))
    own = environment(EngineSettings(base=base, home=Home.find(), cpu=options.device == "cpu"), KEY)
    own |= {"ART_CPU_LORA": "0", "ART_PRECISION": "0", "PYTHONPATH": ""}
    url, begin = f"http://127.0.0.1:{port}", time.monotonic()
    line = [*raw_line(base, cache, port), *(["--enforce-eager"] if options.device == "cpu" else [])]
    with running(line, own, options.scratch / "raw.log", url):
        ready = time.monotonic() - begin

        async def all_counts() -> dict[str, Any]:
            await ask(url, KEY, base.name, load.requests[0], load, ledger=False)
            return {
                str(count): rate(count, await ask(url, KEY, base.name, count, load, ledger=False), load)
                for count in load.requests
            }

        return {"ready_s": round(ready, 1), "by_requests": asyncio.run(all_counts())}


def measure_loop(connection: Connection, load: Load, rows: Rows, name: str) -> None:
    """Steps of a training with random rewards, by phase: what is learnt does not matter."""
    scenarios = [
        Scenario(id=f"s{at}", input={"messages": [("user", text(1000 + at, load.prompt_words))]})
        for at in range(load.groups * load.steps)
    ]
    rng = random.Random(0)

    async def run() -> None:
        async with TrainerClient(connection.url, connection.api_key) as client:
            await client.create_policy(POLICY, rank=16)
            begin = time.monotonic()
            async for record in train(
                graph(POLICY, connection, load.tokens),
                scenarios,
                policy=POLICY,
                reward=lambda _: rng.random(),
                steps=load.steps,
                client=client,
                groups_per_step=load.groups,
                n=load.runs,
                config=GRPOConfig(lr=1e-5, max_logp_gap=None),
                temperature=1.0,
                progress=False,
            ):
                elapsed, begin = time.monotonic() - begin, time.monotonic()
                figures = {
                    "seconds": round(elapsed, 2),
                    "by_phase": {phase: round(seconds, 2) for phase, seconds in record.seconds.items()},
                    "logp_gap": record.result.metrics.get("logp_gap"),
                    "version": record.result.version,
                    "tokens_unique": record.result.metrics.get("tokens_unique"),
                }
                rows.add(f"{name}, step {record.step}", figures)

    asyncio.run(run())


def swap(options: Options, rows: Rows) -> None:
    """A change of the version under load, and rollouts beside training."""
    few = ("--steps", "4", "--turns", "1", "--rounds", "1" if options.tiny else "3")
    rows.measure("embedded model", lambda: program("benchmarks.steps.overlap", *few))


def learning(options: Options, rows: Rows) -> None:
    """The quickstart's agent on real weights: GRPO until success on held-out questions rises beyond its interval."""
    model = options.model or "embedded"
    with server(options, "learning", model) as (connection, seconds, lines):
        rows.add("start", {"model": Path(model).name, "ready_s": seconds, "lines": lines})
        rows.measure("GRPO", lambda: asyncio.run(learn(connection, 2 if options.tiny else 10, options.tiny)))


async def learn(connection: Connection, steps: int, tiny: bool) -> dict[str, Any]:
    """Success before and after, and the seconds between.

    Args:
        connection: The server.
        steps: At most.
        tiny: Whether it is a rehearsal.
    """
    held_out, runs = held_out_scenarios(6 if tiny else 120), 2 if tiny else 8
    served: dict[str, Any] = {"base_url": connection.url, "api_key": connection.api_key}
    model = ChatART(policy="cities", max_tokens=MAX_TOKENS, **served)
    command = [sys.executable, str(Path(quickstart.__file__).with_name("city_server.py"))]
    async with connect(command) as cities, TrainerClient(connection.url, connection.api_key) as client:
        await client.create_policy("cities", rank=8)
        agent = build_agent(model, await cities.tools())

        async def measure(version: int) -> Evaluation:
            return await evaluate(agent, held_out, reward, version=version, success=success, progress=False)

        evaluations = [await measure(0)]
        begin, done = time.monotonic(), 0
        async for record in train(
            agent,
            training_scenarios(0),
            policy="cities",
            reward=reward,
            steps=steps,
            client=client,
            groups_per_step=len(KINDS),
            n=runs,
            config=GRPOConfig(lr=LEARNING_RATE),
            temperature=1.0,
            shuffle=False,
            progress=False,
        ):
            done = record.step
            if done % 2 and done < steps:
                continue
            evaluations.append(await measure(record.result.version))
            if evaluations[-1].success_interval[0] > evaluations[0].success_interval[1]:
                break
        before, after = evaluations[0], evaluations[-1]
        return {
            "steps": done,
            "seconds": round(time.monotonic() - begin, 1),
            "before": before.success_rate,
            "before_interval": list(before.success_interval),
            "after": after.success_rate,
            "after_interval": list(after.success_interval),
            "n": len(held_out),
        }


def turns(options: Options, rows: Rows) -> None:
    """Engine and trainer on one GPU by turns, vLLM asleep while a step is computed."""
    path, load = base_model(options), Load(options.tiny)
    with server(options, "turns", str(path), "--share-gpu") as (connection, seconds, lines):
        rows.add("start", {"ready_s": seconds, "lines": lines})
        measure_loop(connection, load, rows, "by turns")


def several(options: Options, rows: Rows) -> None:
    """Two trainer processes on two GPUs."""
    path, load = base_model(options), Load(options.tiny)
    flags = ("--trainer-gpus", "0,1", "--trainer-processes", "2", "--engine-gpus", "0")
    flags += ("--engine-args", "--gpu-memory-utilization 0.4")
    with server(options, "several", str(path), *flags) as (connection, seconds, lines):
        rows.add("start", {"ready_s": seconds, "lines": lines})
        measure_loop(connection, load, rows, "two trainers")


def program(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a program prints last.

    Raises:
        RuntimeError: It failed.
    """
    command = [sys.executable, "-m", module, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} failed: {' | '.join(done.stderr.strip().splitlines()[-8:])}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
