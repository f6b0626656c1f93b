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
from art_examples.langgraph_dev.messages import demonstrations, drawn, grade, reward, scenarios
from art_examples.learning.learn import Learned
from art_examples.learning.openai_server import litellm_server
from art_examples.learning.runs import Run
from art_examples.learning.stage import mean_score, measure_stage
from art_examples.learning.task import BRIEF_IMITATION
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client

from art_langgraph import TrajectoryStore
from trainer_server.wire import ConfigError

STEPS, MESSAGES, TIMES, LR = 10, 12, 6, 2e-4
"""Steps of a whole run; messages of a step, of all desks in turn; how many people write each of them; the learning rate
of the first step, from which it falls to 0."""
SHOWN, SHOTS = 40, 4
"""Messages of the warm start, and of the prompted baseline. Without them no answer is right, and nobody says so."""


async def from_feedback(run: Run) -> Learned:
    """Starts the app on a new policy, lets people use it, and trains it after each day of theirs."""
    options, learned = run.options, Learned("langgraph_dev", run.seed)
    if options.judge:
        raise ConfigError("--judge: this example has the app and its users alone")
    await run.client.create_policy(run.policy, rank=8, seed=run.seed, temperature=1.0)
    server, rng = run.client.connection, random.Random(f"langgraph-dev-{run.seed}")
    shown = demonstrations(SHOWN, run.seed)
    prompt = [message for one in shown[:SHOTS] for message in one.messages[1:]]
    for name in options.models:
        async with litellm_server(name) as address:
            other = {"MODEL": name, "OPENAI_API_BASE": address, "OPENAI_API_KEY": "none"}
            with tempfile.TemporaryDirectory() as home, langgraph_dev(Path(home), {"ART_HOME": home, **other}) as url:
                await _measure(url, name, run, learned, prompt)
    with tempfile.TemporaryDirectory() as folder:
        art = {"ART_HOME": f"{folder}/home", "ART_BASE_URL": server.url, "ART_API_KEY": server.api_key}
        model = {"MODEL": run.policy, "OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": server.api_key}
        with langgraph_dev(Path(folder), art | model) as url:
            await _measure(url, "before", run, learned)
            if options.prompted:
                await _measure(url, "prompted", run, learned, prompt)
            started = time.monotonic()
            imitated = await run.client.sft(run.policy, shown, BRIEF_IMITATION, progress=False)
            learned.tokens["warm_start"] = imitated.metrics["tokens_trained"] * BRIEF_IMITATION.num_train_epochs
            learned.seconds["warm_start"] = time.monotonic() - started
            await _measure(url, "warm", run, learned)
            started = time.monotonic()
            step, share = 0, 0.0
            while share < 1:
                await used(url, drawn(MESSAGES, rng))
                scores = await collected(url, TrajectoryStore(f"{folder}/home/trajectories.sqlite"))
                learned.rewards.append(mean_score(scores))
                trained = await asyncio.to_thread(train_from_store, run.policy, LR * (1 - share), art)
                learned.skipped += trained is None
                run.tell(f"step {step + 1}: {scores.count(1.0)} of {len(scores)} answers were right")
                step += 1
                minutes = (time.monotonic() - started) / 60
                share = minutes / options.minutes if options.minutes else step / (options.steps or STEPS)
            learned.seconds["training"] = time.monotonic() - started
            await _measure(url, "after", run, learned)
    return learned


async def used(url: str, messages: Sequence[tuple[str, str]]) -> None:
    """Several people write each of the messages, and note in their thread how right the answer was.

    The note is `score` in the metadata of the thread: see `grade`.

    Args:
        url: Address of the app.
        messages: Messages, and the desks that they are for.
    """
    client = get_client(url=url)

    async def person(message: str, desk: str) -> None:
        thread = (await client.threads.create())["thread_id"]
        state = await client.runs.wait(thread, "triage", input={"messages": [{"role": "user", "content": message}]})
        await client.threads.update(thread, metadata={"score": grade(state["messages"][-1]["content"], desk)})

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


async def _measure(url: str, stage: str, run: Run, learned: Learned, shown: Sequence[dict[str, str]] = ()) -> None:
    """Measures the app at an address over its API. shown: messages before that of the user."""
    app, asked = RemoteGraph("triage", url=url), scenarios(shown)
    await measure_stage(stage, app, asked, reward, lambda made: made.reward == 1, run, learned)
