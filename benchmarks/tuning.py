"""Does `train(tune=True)` find how many runs at once are best? Steps an hour on simulated machines.

    python -m benchmarks.tuning [--json] [--steps 30] [--seeds 3]

Engine and trainer are stand-ins, and their time is virtual (`testbed.virtual_time`): `train` itself runs, and nobody
sleeps. The runs of an engine share it: `a` of them together have the speed `FULL_SPEED · a / (a + HALF_SPEED)`, times
`memory / a` where the engine has room for `memory` runs and computes the others again and again. The lengths of runs
are those of `benchmarks.stream`, with its long tail. `MACHINES` has the sizes.

Each machine trains with the default, with `tune=True`, and with each number of a sweep by factors of two up to what it
holds. The last line under --json is one JSON object: for each machine and seed the steps an hour of the last third of
the steps, by number of runs at once (`sweep`), those of the default and of the tuned training, what it found, and after
how many steps.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import logging
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import GRPOConfig, StepRecord, Trajectory, train
from art_langgraph.loop.executors.base import RolloutResult, RolloutTask
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.trajectory import CompletionCall
from benchmarks.stream import SCENARIOS, Trainer, durations
from testbed.virtual_time import simulate

FULL_SPEED, HALF_SPEED = 64.0, 32.0
"""What the engine computes in a second at most, in seconds of a run that is alone on a fast engine; and with how many
runs at once it computes half of that."""
MEDIAN = 10.0
"""Seconds of a run."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is simulated.

    Args:
        memory: Runs for which the engine has room.
        concurrency: Requests at once that the server says its engines compute; None: it does not say.
        group_seconds: Seconds that the trainer takes for a group.
        staleness: `max_staleness` of the training.
        groups: Of a step.
        n: Runs of a group.
    """

    memory: int
    concurrency: int | None
    group_seconds: float
    staleness: int = 1
    groups: int = 8
    n: int = 8

    @property
    def sweep(self) -> list[int]:
        """Runs at once, by factors of two, up to what the engines compute, or to all that a training can have."""
        most = self.concurrency or self.groups * self.n * (1 + self.staleness)
        return [2**power for power in range(2, most.bit_length())]


MACHINES = {
    "engines_short_of_memory": Machine(memory=24, concurrency=256, group_seconds=0.5),
    "engines_that_do_not_say": Machine(memory=1000, concurrency=None, group_seconds=0.5, staleness=3),
    "slow_trainer": Machine(memory=1000, concurrency=64, group_seconds=10.0),
    "by_turns_short_of_memory": Machine(memory=24, concurrency=64, group_seconds=2.0, staleness=0),
}


class SharedEngine:
    """An executor whose runs share an engine.

    Args:
        trainer: Has the newest version, which answers.
        memory: Runs for which there is room.
        lengths: Of the runs, in seconds of a run that is alone on a fast engine.
    """

    def __init__(self, trainer: Trainer, memory: int, lengths: Iterator[float]) -> None:
        self._trainer, self._memory, self._lengths = trainer, memory, lengths
        self._done = self._time = 0.0
        """What each run would have got that was there from the beginning; when that was computed."""
        self._runs = list[tuple[float, int, asyncio.Future[None]]]()
        """The runs that go on: what `_done` is when they end."""
        self._numbers, self._change = count(), asyncio.Event()
        self._computing: asyncio.Task[None] | None = None
        self.most = 0
        """The most runs at once until now."""

    async def run(self, source: GraphSource, task: RolloutTask) -> RolloutResult:
        version, start = self._trainer.version, time.monotonic()
        call = CompletionCall(id=f"chatcmpl-{uuid.uuid4().hex}", model="agent", version=version, started=time.time())
        if self._computing is None:
            self._time, self._computing = time.monotonic(), asyncio.create_task(self._compute())
        self._advance()
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._runs, (self._done + next(self._lengths), next(self._numbers), end))
        self.most = max(self.most, len(self._runs))
        self._change.set()
        await end
        seconds = time.monotonic() - start
        run = Trajectory(scenario=task.scenario, completions=[call], output="done", seconds=seconds)
        return RolloutResult(run, "graph")

    def _speed(self) -> float:
        """Of one run."""
        runs = len(self._runs)
        return FULL_SPEED / (runs + HALF_SPEED) * min(1.0, self._memory / max(1, runs))

    def _advance(self) -> None:
        now = time.monotonic()
        self._done, self._time = self._done + self._speed() * (now - self._time), now

    async def _compute(self) -> None:
        """Ends the runs when they are done."""
        while True:
            self._advance()
            while self._runs and self._runs[0][0] <= self._done + 1e-9:
                heapq.heappop(self._runs)[2].set_result(None)
            self._change.clear()
            wait = (self._runs[0][0] - self._done) / self._speed() if self._runs else None
            try:
                async with asyncio.timeout(wait):
                    await self._change.wait()
            except TimeoutError:
                pass


class MachineTrainer(Trainer):
    """The trainer of a machine, which says how many requests its engines compute at once."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.group_seconds * machine.groups)
        self._concurrency = machine.concurrency

    async def health(self) -> dict[str, Any]:
        return {"ready": True, "concurrency": self._concurrency}


async def training(machine: Machine, steps: int, seed: int, **options: Any) -> tuple[list[StepRecord], int]:
    """A training on a machine: its records, without their runs, and how many runs there were at once at most."""
    trainer, rewards = MachineTrainer(machine), count()
    engine = SharedEngine(trainer, machine.memory, durations(MEDIAN, machine.groups * machine.n, seed))

    def idle(state: MessagesState) -> dict[str, Any]:
        return {"messages": []}

    records = [
        replace(record, groups=[])
        async for record in train(
            StateGraph(MessagesState).add_node("idle", idle).add_edge(START, "idle").compile(),
            SCENARIOS,
            policy="agent",
            client=trainer,
            reward=lambda _: float(next(rewards) % 2),
            config=GRPOConfig(),
            steps=steps,
            groups_per_step=machine.groups,
            n=machine.n,
            max_staleness=machine.staleness,
            temperature=None,
            executor=engine,
            progress=False,
            **options,
        )
    ]
    return records, engine.most


def steps_an_hour(records: Sequence[StepRecord]) -> float:
    """Of the last third of the steps."""
    last = records[-(len(records) // 3) - 1 :]
    return 3600 * (len(last) - 1) / (last[-1].elapsed - last[0].elapsed)


def measure(machine: Machine, steps: int, seed: int) -> dict[str, Any]:
    """The default, the tuned training and the sweep on a machine."""
    sweep = {}
    for slots in machine.sweep:
        records, _ = simulate(training(machine, steps, seed, max_concurrency=slots))
        sweep[slots] = steps_an_hour(records)
    records, _ = simulate(training(machine, steps, seed, max_concurrency=machine.concurrency or 32))
    default = steps_an_hour(records)
    records, most = simulate(training(machine, steps, seed, tune=True))
    tuning = next((record.tuning for record in records if record.tuning is not None), None)
    return {
        "sweep": sweep,
        "best": max(sweep, key=lambda slots: sweep[slots]),
        "default": default,
        "tuned": steps_an_hour(records),
        "tuning": None if tuning is None else tuning.summary(),
        "sentence": str(tuning),
        "most_runs_at_once": most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--steps", type=int, default=30, help="of each training (30)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the lengths of runs, from 0 (3)")
    options = parser.parse_args()
    if options.steps < 6 or options.seeds < 1:
        parser.error(f"--steps={options.steps} must be at least 6, and --seeds={options.seeds} at least 1")
    logging.getLogger("art_langgraph").setLevel(logging.ERROR)
    rows = []
    for name, machine in MACHINES.items():
        for seed in range(options.seeds):
            row = {"machine": name, "seed": seed, **measure(machine, options.steps, seed)}
            best = row["sweep"][row["best"]]
            print(
                f"{name}, seed {seed}: {row['tuned'] / best:.2f} of the best of the sweep ({row['best']}), "
                f"the default {row['default'] / best:.2f}; {row['sentence']}", file=sys.stderr,
            )  # fmt: skip
            rows.append(row)
    if options.json:
        print(json.dumps({"benchmark": "tuning", "steps": options.steps, "rows": rows}))


if __name__ == "__main__":
    main()
