"""Groups that stream against whole batches that overlap: steps an hour where run times have a long tail.

    python -m benchmarks.stream [--json] [--steps 24] [--median 0.1]
    python -m benchmarks.stream --picture

Both sides train with `max_staleness=1` on the same stand-ins, which take real time by sleeping: an engine with
`SLOTS` slots, whose runs take log-normal times (each `RUNS` of them have the same times in another order, and the
slowest takes eight times the median), and a trainer that takes `TRAINER_SHARE` of the time that the engine needs for
the runs of a step. One side is `train`. The other is the loop that it replaced: the rollouts of step i + 1 begin when
step i is trained, all at once, when those of step i have ended. The first and the last steps are not counted, because
a training of hundreds of steps has as few of them.

The last line under --json is one JSON object: `steps_ratio` is steps an hour of the stream / of whole batches, and
`of_ideal` those of the stream / of a loop in which the busier one of engine and trainer is never idle; `ages` has how
many groups were so many versions old. `--picture` draws instead the first three steps of `train` with `max_staleness=0`
and with 1, on a smaller stand-in (`PICTURE`), into docs/images/stream.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import random
import statistics
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import GRPOConfig, TrainerClient, Trajectory, train
from art_langgraph.loop.batch import RolloutBatch
from art_langgraph.loop.executors.base import RolloutResult, RolloutTask
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.loop.sampling.curriculum import Curriculum
from art_langgraph.loop.step_rollouts import StepRollouts
from art_langgraph.loop.train_options import TrainOptions
from art_langgraph.loop.tuning import Slots
from art_langgraph.trajectory import CompletionCall, Scenario
from benchmarks.charts.chart import DOCS
from benchmarks.charts.timeline import Span, Timeline, draw
from trainer_server.common import Connection
from trainer_server.wire import StepResult

PICTURE = {"groups": 4, "runs": 16, "slots": 8}
"""Sizes of the trainings that are drawn."""
PICTURE_STEPS = 3
GROUPS, RUNS = 16, 64
"""Of a step."""
SLOTS = 24
TAIL = 8.0
"""The slowest of the runs of a step / the median."""
TRAINER_SHARE = 0.4
UNCOUNTED = 4
"""Steps at the beginning, and as many at the end, that are not counted."""
SCENARIOS = [f"task {number}" for number in range(256)]


def run_seconds(median: float, runs: int = RUNS) -> list[float]:
    """The times of the runs of a step: quantiles of a log-normal distribution, in seconds."""
    normal = statistics.NormalDist()
    levels = [normal.inv_cdf((at + 0.5) / runs) for at in range(runs)]
    return [median * math.exp(math.log(TAIL) / levels[-1] * level) for level in levels]


def durations(median: float, runs: int = RUNS, seed: int = 0) -> Iterator[float]:
    """The times of one run after another, without an end."""
    rng, times = random.Random(seed), run_seconds(median, runs)
    while True:
        yield from rng.sample(times, len(times))


class Trainer(TrainerClient):
    """Takes steps, each of which takes its time and makes a version."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.version = seconds, 0
        self.spans = list[Span]()
        self.connection = Connection("http://127.0.0.1:1", "key")

    async def health(self) -> dict[str, Any]:
        return {"ready": True}

    async def train_step(self, policy: str, groups: Sequence[Any], *_: Any, **__: Any) -> StepResult:
        start = time.monotonic()
        await asyncio.sleep(self.seconds)
        self.version += 1
        self.spans.append(Span(start, time.monotonic(), self.version))
        return StepResult(version=self.version, metrics={"job": {"seconds": {"train": self.seconds}}})


class Engine:
    """An executor whose runs take their time, and are answered by the newest version."""

    def __init__(self, trainer: Trainer, seconds: Iterator[float]) -> None:
        self._trainer, self._seconds = trainer, seconds
        self.spans = list[Span]()

    async def run(self, source: GraphSource, task: RolloutTask) -> RolloutResult:
        version, start = self._trainer.version, time.monotonic()
        call = CompletionCall(id=f"chatcmpl-{uuid.uuid4().hex}", model="agent", version=version, started=time.time())
        await asyncio.sleep(next(self._seconds))
        self.spans.append(Span(start, time.monotonic(), version))
        return RolloutResult(Trajectory(scenario=task.scenario, completions=[call], output="done"), "graph")


def options_of(
    median: float, steps: int, staleness: int = 1, groups: int = GROUPS, runs: int = RUNS, slots: int = SLOTS
) -> TrainOptions:
    """The same training for both sides."""
    step_seconds = sum(run_seconds(median, runs)) / slots
    trainer, rng = Trainer(TRAINER_SHARE * step_seconds), random.Random(1)

    def idle(state: MessagesState) -> dict[str, Any]:
        return {"messages": []}

    return TrainOptions(
        StateGraph(MessagesState).add_node("idle", idle).add_edge(START, "idle").compile(),
        SCENARIOS,
        policy="agent",
        client=trainer,
        reward=lambda _: rng.random(),
        config=GRPOConfig(),
        steps=steps,
        groups_per_step=groups,
        n=runs // groups,
        max_staleness=staleness,
        max_concurrency=slots,
        temperature=None,
        executor=Engine(trainer, durations(median, runs)),
        progress=False,
    )


def rate(ends: Sequence[float]) -> float:
    """Steps a second, from the times at which they ended, without those that are not counted."""
    first, last = UNCOUNTED - 1, len(ends) - 1 - UNCOUNTED
    return (last - first) / (ends[last] - ends[first])


async def overlap(
    steps: Sequence[int], roll: Callable[[int], Awaitable[RolloutBatch]], staleness: int
) -> AsyncIterator[RolloutBatch]:
    """The loop before groups streamed: no two steps make rollouts at once."""
    alone, tasks = asyncio.Lock(), deque[asyncio.Task[RolloutBatch]]()

    async def roll_alone(step: int) -> RolloutBatch:
        async with alone:
            return await roll(step)

    for step in steps:
        tasks.append(asyncio.create_task(roll_alone(step)))
        if len(tasks) > staleness:
            yield await tasks.popleft()
    while tasks:
        yield await tasks.popleft()


async def batches_rate(options: TrainOptions) -> float:
    """Steps a second of whole batches that overlap."""
    scenarios = Scenario.each(options.scenarios)
    curriculum = Curriculum(options.make_sampler(), scenarios, options.temperature)
    rollouts = StepRollouts(options, GraphSource.of(options.graph), curriculum, Slots(options.max_concurrency or 1))
    ends = []
    async for batch in overlap(range(1, options.steps + 1), rollouts.roll, options.max_staleness):
        await options.client.train_step(options.policy, batch.groups)
        ends.append(time.monotonic())
    return rate(ends)


async def stream_rate(options: TrainOptions) -> tuple[float, Counter[int]]:
    """Steps a second of `train`, and the ages of the groups."""
    ends, ages = [], Counter[int]()
    async for record in train(**{name: getattr(options, name) for name in options.__dataclass_fields__}):
        ends.append(time.monotonic())
        ages.update(record.ages)
    return rate(ends), ages


def measure(steps: int, median: float) -> dict[str, Any]:
    """Both sides, one after the other."""
    batches = asyncio.run(batches_rate(options_of(median, steps)))
    stream, ages = asyncio.run(stream_rate(options_of(median, steps)))
    engine = SLOTS / sum(run_seconds(median))
    ideal = min(engine, engine / TRAINER_SHARE)
    return {
        "benchmark": "stream", "steps_ratio": stream / batches, "of_ideal": stream / ideal,
        "steps_an_hour": {"stream": 3600 * stream, "batches": 3600 * batches, "ideal": 3600 * ideal},
        "ages": {str(age): count for age, count in sorted(ages.items())}, "steps": steps, "median_seconds": median,
    }  # fmt: skip


async def timeline(name: str, staleness: int, median: float) -> Timeline:
    """The first steps of a training. It goes on for some more, so that there are later groups beside them."""
    options = options_of(median, 2 * PICTURE_STEPS, staleness, **PICTURE)
    async for _ in train(**{name: getattr(options, name) for name in options.__dataclass_fields__}):
        pass
    assert isinstance(options.client, Trainer)
    assert isinstance(options.executor, Engine)
    return Timeline(name, PICTURE["slots"], options.executor.spans, options.client.spans[:PICTURE_STEPS])


async def picture(median: float) -> str:
    """Three steps that take turns with their rollouts, and three whose groups stream."""
    timelines = [
        await timeline("max_staleness=0: rollouts and training take turns", 0, median),
        await timeline("max_staleness=1: groups stream", 1, median),
    ]
    return draw(timelines, "Three steps, before and after")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--picture", action="store_true", help="draw the timelines of three steps for the docs")
    parser.add_argument("--steps", type=int, default=24, help=f"of each side, above {2 * UNCOUNTED} (24)")
    parser.add_argument("--median", type=float, default=0.1, help="seconds of a run (0.1)")
    options = parser.parse_args()
    if options.steps <= 2 * UNCOUNTED:
        parser.error(f"--steps={options.steps} must be above {2 * UNCOUNTED}, which are not counted")
    logging.getLogger("art_langgraph").setLevel(logging.ERROR)  # how old groups are is in the result
    if options.picture:
        path = DOCS / "images" / "stream.svg"
        path.write_text(asyncio.run(picture(options.median)))
        print(path)
        return
    result = measure(options.steps, options.median)
    print(
        f"steps an hour: {result['steps_ratio']:.2f} × those of whole batches, {result['of_ideal']:.2f} of the ideal; "
        f"ages of groups: {result['ages']}", file=sys.stderr,
    )  # fmt: skip
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
