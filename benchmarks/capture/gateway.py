"""The gateway against vLLM itself."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from pathlib import Path
from typing import Any

import httpx

from benchmarks.capture.running import running, timed, wait_for
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import resolve
from trainer_server.engines.vllm import install as engine_install
from trainer_server.engines.vllm.command import free_port
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.process.hardware import flavour


async def measure_gateway(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The gateway against vLLM itself. Requests never repeat, so that no prefix cache helps one side alone."""
    cache = Home.find().cache
    engine_install.install(cache, lambda line: print(line, file=sys.stderr))
    base = resolve("embedded", cache)
    cpu = flavour() == "cpu"
    settings = EngineSettings(base=base, home=Home(scratch / "vllm"), cpu=cpu, adapter_slots=2, max_rank=8)
    engine = VLLMEngine.with_child(settings)
    port, key = free_port(), "benchmark"
    try:
        await engine.start(lambda line: print(f"  {line}", file=sys.stderr, flush=True))
        engine_key = engine.client.api_key or ""
        command = [
            "-m",
            "trainer_server",
            "--home",
            str(scratch / "gateway"),
            "--port",
            str(port),
            "--model",
            "embedded",
        ]
        environment = {"ART_API_KEY": key, "ART_ENGINE_API_KEY": engine_key}
        with running(sys.executable, *command, "--engine-url", engine.url, env=environment):
            url = f"http://127.0.0.1:{port}"
            await asyncio.to_thread(wait_for, f"{url}/health", lambda answer: bool(answer.json()["ready"]), 120)
            socket = httpx.AsyncHTTPTransport(uds=engine.url.removeprefix("unix:"))
            async with (
                httpx.AsyncClient(base_url=url, headers=bearer(key), timeout=None) as gateway,
                httpx.AsyncClient(
                    transport=socket, base_url="http://engine", headers=bearer(engine_key), timeout=None
                ) as direct,
            ):
                return await gateway_rounds(direct, gateway, base.name, options)
    finally:
        await engine.stop()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def gateway_rounds(
    direct: httpx.AsyncClient, gateway: httpx.AsyncClient, model: str, options: argparse.Namespace
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"direct": [], "gateway": []}
    clients = {"direct": direct, "gateway": gateway}
    for round_number in range(options.rounds + 1):
        for side in ("direct", "gateway") if round_number % 2 else ("gateway", "direct"):

            async def ask(number: int, side: str = side, at: int = round_number) -> None:
                text = f"{side} {at}-{number}: tell me of the sea. " + "The sea is wide and the day is long. " * 12
                body = {
                    "model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 32, "min_tokens": 32,
                    "logprobs": True, "top_logprobs": 0, "return_token_ids": True,
                }  # fmt: skip
                (await clients[side].post("/v1/chat/completions", json=body)).raise_for_status()

            spent = await timed(ask, options.concurrency, options.concurrency)
            if round_number:
                seconds[side].append(spent)
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    return {"seconds": seconds, "median_s": medians, "gateway_ratio": medians["direct"] / medians["gateway"]}
