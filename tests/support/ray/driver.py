"""The program that runs rollouts on a Ray cluster: `python -m tests.support.ray.driver PLACE STORE`.

It goes through stages, and prints a line of JSON about each. Between them it waits for the test where that has
something to do to the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray

from art_langgraph import ChatART, RayExecutor, Scenario, TrainerClient, Trajectory, TrajectoryStore, gather, rollout
from tests.support.patience import PATIENCE
from tests.support.ray.graphs import broken, two_calls
from trainer_server.wire import ConfigError

BEGAN = time.monotonic()
TOLD = os.fdopen(os.dup(1), "w")
"""The standard output that the program was given. Ray's threads print to standard error instead: between the pieces
of our lines they would spoil them."""
os.dup2(2, 1)


def said(stage: str, **facts: Any) -> None:
    """Tells the test of a stage."""
    print(json.dumps({"stage": stage, "after": time.monotonic() - BEGAN, **facts}), file=TOLD, flush=True)


def reward(run: Trajectory) -> dict[str, float]:
    """Of this process: `seen` counts what it was given."""
    seen.append(run.id)
    return {"calls": float(len(run.completions)), "text": float(run.final_text == "second")}


seen: list[str] = []


async def whole_rollouts(store: TrajectoryStore, place: Path) -> None:
    """The same scenarios here and on Ray: what two runs have in common must be equal."""
    go = place / "both"
    scenarios = [Scenario(input="x", metadata={"place": str(place / "first"), "until": str(go)}), Scenario(input="y")]
    executor = RayExecutor()

    async def release() -> None:
        """The first runs wait until both nodes work."""
        while len({path.name.partition(".ro-")[0] for path in (place / "first").iterdir()}) < 2:
            await asyncio.sleep(0.05)
        go.touch()

    releasing = asyncio.create_task(release())
    found = await gather(
        two_calls, scenarios, 4, reward, executor=executor, store=store, metadata={"mine": 1}, temperature=0.5,
        version=0, progress=False,
    )  # fmt: skip
    await releasing
    local = await rollout(two_calls, scenarios[0], reward, metadata={"mine": 1}, temperature=0.5, version=0)
    runs = [run.model_dump(mode="json") for group in found for run in group.trajectories]
    said("whole", runs=runs, local=local.model_dump(mode="json"), lost=executor.lost, scored=seen)


async def failures() -> None:
    fails = Scenario(input="x", metadata={"fails": True})
    remote, local = await rollout(two_calls, fails, executor="ray"), await rollout(two_calls, fails)
    errors = {}
    model = ChatART(policy="p")
    compiled = two_calls(fails)
    for name, graph in {"graph": compiled, "closure": lambda scenario: compiled, "model": lambda: model.invoke("x"),
                        "factory": broken}.items():  # fmt: skip
        try:
            await rollout(graph, "x", executor="ray")
            errors[name] = "none"
        except ConfigError as error:
            errors[name] = str(error)
    held = await rollout(holds_a_lock, "x", executor="ray")
    executor = RayExecutor(retries=0)
    dead = await rollout(dies, "x", reward, executor=executor, metadata={"mine": 2})
    said("failures", remote=remote.error, calls=len(remote.completions), local=local.error, errors=errors,
         held=held.output["text"], dead=dead.error, dead_metadata=dead.metadata, lost=executor.lost)  # fmt: skip


async def holds_a_lock() -> dict[str, Any]:
    """Its output cannot be pickled."""
    return {"text": "kept", "lock": threading.Lock()}


async def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def agents() -> None:
    """A function that is the agent, of the main program: its reward is its own."""

    async def agent(scenario: Scenario, run: Any) -> str:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=run.base_url, api_key=run.api_key)
        asked = [{"role": "user", "content": f"say {scenario.input}"}]
        answer = await client.chat.completions.create(model="p", messages=asked)  # type: ignore[arg-type]
        run.reward = 0.25
        return str(answer.choices[0].message.content)

    run = await rollout(agent, "hello", executor="ray")
    said("agent", output=run.output, reward=run.reward, calls=[call.id for call in run.completions], error=run.error)


async def cancelled(place: Path) -> None:
    """A gather that is cancelled while the program goes on."""
    total = ray.cluster_resources()["CPU"]
    scenario = Scenario(input="x", metadata={"place": str(place / "cancelled"), "sleeps": True})
    running = asyncio.create_task(gather(two_calls, [scenario], 6, executor="ray", progress=False))
    while len(list((place / "cancelled").iterdir())) < total:
        await asyncio.sleep(0.05)
    began = time.monotonic()
    running.cancel()
    await asyncio.wait([running])
    seconds = time.monotonic() - began
    until = time.monotonic() + PATIENCE
    while ray.available_resources().get("CPU") != total and time.monotonic() < until:
        await asyncio.sleep(0.05)
    free = ray.available_resources().get("CPU")
    said("cancelled", was=running.cancelled(), seconds=seconds, free=free, total=total,
         began=len(list((place / "cancelled").iterdir())))  # fmt: skip


async def lost(store: TrajectoryStore, place: Path) -> None:
    """The test kills a node while runs are on both."""
    executor = RayExecutor()
    scenario = Scenario(input="z", metadata={"place": str(place / "lost"), "until": str(place / "go")})
    found = await gather(two_calls, [scenario], 8, reward, executor=executor, store=store, progress=False)
    runs = [run.model_dump(mode="json") for group in found for run in group.trajectories]
    said("lost", runs=runs, lost=executor.lost)


async def interrupted(place: Path) -> None:
    """The test interrupts the program."""
    scenario = Scenario(input="x", metadata={"place": str(place / "interrupted"), "sleeps": True})
    await gather(two_calls, [scenario], 4, executor="ray", progress=False)


async def main() -> None:
    place, store = Path(sys.argv[1]), TrajectoryStore(sys.argv[2])
    for name in ("first", "cancelled", "lost", "interrupted"):
        (place / name).mkdir()
    async with TrainerClient() as trainer:
        await trainer.create_policy("p")
    ray.init(log_to_driver=False)
    while len([node for node in ray.nodes() if node["Alive"]]) < 2:
        await asyncio.sleep(0.1)
    said("connected")
    await whole_rollouts(store, place)
    await failures()
    await agents()
    await cancelled(place)
    await lost(store, place)
    await interrupted(place)


if __name__ == "__main__":
    asyncio.run(main())
