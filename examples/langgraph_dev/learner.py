"""How the app learns: people use it, say which answers were right, and a step trains on that; again and again."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from art_examples.langgraph_dev.app import langgraph_dev, train_from_store
from art_examples.langgraph_dev.messages import held_out, training
from art_examples.learning.learn import Learned
from art_examples.learning.runs import Run
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client

from art_langgraph import Evaluation, Scenario, Trajectory, TrajectoryStore, evaluate
from trainer_server.wire import ConfigError

STEPS, MESSAGES, TIMES, LR = 10, 8, 6, 4e-4
"""Steps of a whole run; messages of a step; how many people write each of them; the learning rate."""


async def from_feedback(run: Run) -> Learned:
    """Starts the app on a new policy, lets people use it, and trains it after each day of theirs."""
    options, learned = run.options, Learned("langgraph_dev", run.seed)
    if options.models or options.judge:
        raise ConfigError("--model and --judge: this example has the app and its users alone")
    await run.client.create_policy(run.policy, rank=8, seed=run.seed, temperature=1.0)
    server, rng = run.client.connection, random.Random(f"langgraph-dev-{run.seed}")
    with tempfile.TemporaryDirectory() as folder:
        art = {"ART_HOME": f"{folder}/home", "ART_BASE_URL": server.url, "ART_API_KEY": server.api_key}
        model = {"MODEL": run.policy, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": server.api_key}
        with langgraph_dev(Path(folder), art | model) as url:
            learned.before = await _measured(url, "before", run, learned)
            started = time.monotonic()
            for step in range(1, (options.steps or STEPS) + 1):
                await used(url, rng.sample(training(), MESSAGES))
                scores = await collected(url, TrajectoryStore(f"{folder}/home/trajectories.sqlite"))
                learned.rewards.append(sum(scores) / len(scores))
                trained = await asyncio.to_thread(train_from_store, run.policy, LR, art)
                learned.skipped += trained is None
                run.tell(f"step {step}: {sum(scores):.0f} of {len(scores)} answers were right")
            learned.seconds["training"] = time.monotonic() - started
            learned.after = await _measured(url, "after", run, learned)
    return learned


async def used(url: str, messages: Sequence[tuple[str, str]]) -> None:
    """Several people write each of the messages, and note in their thread whether the answer was right.

    The note is in the metadata of the thread: 1 in `score` for a right answer, else 0.

    Args:
        url: Address of the app.
        messages: Messages, and the desks that they are for.
    """
    client = get_client(url=url)

    async def person(message: str, desk: str) -> None:
        thread = (await client.threads.create())["thread_id"]
        state = await client.runs.wait(thread, "triage", input={"messages": [{"role": "user", "content": message}]})
        score = float(right(state["messages"][-1]["content"], desk))
        await client.threads.update(thread, metadata={"score": score})

    await asyncio.gather(*(person(*message) for message in messages for _ in range(TIMES)))


async def collected(url: str, store: TrajectoryStore) -> list[float]:
    """Reads what people noted in their threads, and gives it to the runs that have no reward yet.

    Args:
        url: Address of the app.
        store: Where the app's runs are recorded.

    Returns:
        The scores that are new.
    """
    async with httpx.AsyncClient(timeout=60) as http:
        (await http.post(f"{url}/art/flush")).raise_for_status()  # runs that have ended are in the store now
    client, scores = get_client(url=url), list[float]()
    fresh = {run.thread_id: run.id for run in store.list() if not run.scored and not run.evaluation}
    for thread_id, trajectory_id in fresh.items():
        score = (await client.threads.get(str(thread_id)))["metadata"].get("score")
        if score is not None:
            store.score(trajectory_id, score)
            scores.append(score)
    return scores


def right(answer: str, desk: str) -> bool:
    """Whether an answer names the desk and nothing else."""
    return answer.strip().rstrip(".").lower() == desk


async def _measured(url: str, stage: str, run: Run, learned: Learned) -> Evaluation:
    """The newest version on messages that nobody has written yet, at temperature 0, asked over the app's API."""
    started = time.monotonic()
    scenarios = [
        Scenario(input={"messages": [{"role": "user", "content": message}]}, metadata={"desk": desk})
        for message, desk in held_out()[: run.options.held_out]
    ]

    def reward(trajectory: Trajectory) -> float:
        return float(right(trajectory.final_text, trajectory.scenario.metadata["desk"]))

    version = (await run.client.policy(run.policy)).latest
    evaluation = await evaluate(
        RemoteGraph("triage", url=url), scenarios, reward, version={run.policy: version}, progress=False
    )
    learned.seconds[stage] = time.monotonic() - started
    run.tell(f"{stage}: {evaluation}")
    return evaluation
