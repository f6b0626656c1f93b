"""Which engine gets a rollout: cached prompts, cold prefills and seconds of a step's rollouts, on simulated engines.

    python -m benchmarks.routing [--json] [--groups 16] [--n 8] [--slots 16]

No model runs and nothing is timed: the same arguments give the same figures. The gateway's own `Engines` chooses.
An engine batches as vLLM does: in each iteration, every request that decodes gets a token, and what is left of
`BUDGET` goes to prompts, first come, first served. An iteration takes `--iteration` seconds, `--sequence` seconds for
each token that it decodes, and the time of its prompt tokens at `--prefill` tokens per second. The prefix cache has
blocks of `BLOCK` tokens; of those that no request uses, the least recently used one goes first. A request whose whole
length does not fit waits, and those behind it too.

A step begins with empty caches, since its version is new. Its groups have `--n` rollouts each, of which `--slots` for
each engine run at once. A rollout begins with `--shared` tokens that all scenarios have (system message and tools) and
the context of its scenario, and has four to eight turns: an answer of 80 to 250 tokens, and a tool that takes 0.1 to 2
seconds and gives 50 to 400 tokens. Three sides see the same rollouts:

- least busy: a rollout goes to the engine with the fewest requests.
- affinity: it goes where its scenario's prompt is, however busy that engine is. This is no option of the gateway.
- with spill: what the gateway does where a prompt is long: the same, until that engine is much busier than others.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from unittest.mock import patch

from rich.console import Console
from rich.progress import track
from rich.table import Table

from trainer_server.engines import pool

BUDGET, BLOCK = 8192, 16
"""Tokens of an iteration, and of a block of the prefix cache: vLLM's defaults on an H100."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast an engine is, and how much it holds.

    Args:
        prefill: Prompt tokens per second.
        iteration: Seconds of an iteration, whatever it computes.
        sequence: Seconds that each token of an iteration adds which is decoded.
        cache: Tokens of the prefix cache, those of running requests included.
    """

    prefill: float
    iteration: float
    sequence: float
    cache: int


@dataclass(frozen=True, slots=True)
class Load:
    """The rollouts of a step.

    Args:
        engines: How many engines.
        groups: How many groups.
        n: Rollouts of a group.
        slots: Rollouts at once, for each engine.
        shared: Tokens that all scenarios begin with.
        context: Tokens after those that the rollouts of a scenario begin with.
    """

    engines: int
    groups: int
    n: int
    slots: int
    shared: int
    context: int


@dataclass(slots=True)
class Rollout:
    """A conversation: answers and tools take turns."""

    name: int
    group: int
    start: float
    """Seconds from its slot to its first call."""
    turns: list[tuple[int, int, float]]
    """Tokens of the answer, tokens and seconds of the tool after it."""


@dataclass(slots=True)
class Request:
    """One call of a rollout, at an engine."""

    rollout: Rollout
    turn: int
    prompt: int
    answer: int
    arrival: float
    route: ExitStack
    computed: int = 0
    blocks: list[Any] = field(default_factory=list)


class SimulatedEngine:
    """An engine, as far as `Engines` and the clock are concerned."""

    ready = True

    def __init__(self, load: Load, rates: Rates) -> None:
        self.load, self.rates = load, rates
        self.busy = self.hits = self.misses = 0
        self.waiting = deque[Request]()
        self.prefilling: Request | None = None
        self._decoding = list[tuple[int, int, Request]]()
        self._iteration, self._numbers = 0, itertools.count()
        self.in_iteration = False
        self._users = dict[Any, int]()
        self._free = OrderedDict[Any, None]()

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Counts a request."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    @property
    def active(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.waiting or self.prefilling or self._decoding)

    def iterate(self) -> tuple[float, list[Request]]:
        """Computes one iteration: its seconds, and the requests that get their last token in it."""
        self._iteration += 1
        decoding = len(self._decoding)
        left, prefilled = BUDGET - decoding, 0
        while left > 0 and self._prefills():
            request = self.prefilling
            count = min(left, request.prompt - request.computed)
            request.computed += count
            left, prefilled = left - count, prefilled + count
            if request.computed == request.prompt:
                last = self._iteration + request.answer - 1
                heapq.heappush(self._decoding, (last, next(self._numbers), request))
                self.prefilling = None
        ended = []
        while self._decoding and self._decoding[0][0] <= self._iteration:
            ended.append(heapq.heappop(self._decoding)[2])
        for request in ended:
            for block in reversed(request.blocks):  # the end of a prompt is of less use than its beginning
                self._users[block] -= 1
                if not self._users[block]:
                    del self._users[block]
                    self._free[block] = None
        return self.rates.iteration + decoding * self.rates.sequence + prefilled / self.rates.prefill, ended

    def _prefills(self) -> bool:
        if self.prefilling is None and self.waiting and self._admit(self.waiting[0]):
            self.prefilling = self.waiting.popleft()
        return self.prefilling is not None

    def _admit(self, request: Request) -> bool:
        """Takes blocks for a request. Those of its prompt are of use to the next request at once, as in vLLM."""
        blocks = [self._block(request, at) for at in range((request.prompt + request.answer) // BLOCK)]
        cold = (at for at, block in enumerate(blocks) if block not in self._users and block not in self._free)
        known = min(next(cold, len(blocks)), (request.prompt - 1) // BLOCK)  # the last token is always computed
        room = self.rates.cache // BLOCK - len(self._users)
        if sum(block not in self._users for block in blocks) > room:
            if not self._users:
                raise SystemExit(f"{request.prompt + request.answer} tokens do not fit --cache {self.rates.cache}")
            return False
        for block in blocks:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        while len(self._users) + len(self._free) > self.rates.cache // BLOCK:
            self._free.popitem(last=False)
        request.blocks, request.computed = blocks, known * BLOCK
        self.hits += known * BLOCK
        self.misses += request.prompt - known * BLOCK
        return True

    def _block(self, request: Request, at: int) -> tuple[str, int, int]:
        """What a block has in common with blocks of others: all, its scenario's, or its own tokens."""
        end = (at + 1) * BLOCK
        if end <= self.load.shared:
            return ("all", 0, at)
        if end <= self.load.shared + self.load.context:
            return ("scenario", request.rollout.group, at)
        return ("rollout", request.rollout.name, at)


def rollouts_of(load: Load, seed: int) -> list[Rollout]:
    """The rollouts of a step, in the order in which they get slots."""
    rng = random.Random(seed)
    return [
        Rollout(
            name,
            name // load.n,
            rng.uniform(0, 0.2),
            [(rng.randint(80, 250), rng.randint(50, 400), rng.uniform(0.1, 2)) for _ in range(rng.randint(4, 8))],
        )
        for name in range(load.groups * load.n)
    ]


def simulate(load: Load, rates: Rates, side: str, seed: int) -> dict[str, float]:
    """One step's rollouts: the seconds until the last has ended, and what the prefix caches came to."""
    slack = SIDES[side]
    engines = [SimulatedEngine(load, rates) for _ in range(load.engines)]
    routes = pool.Engines(cast(Any, engines))
    events = list[tuple[float, int, Callable[[float], None]]]()
    numbers, line = itertools.count(), deque(rollouts_of(load, seed))
    first_answers, ends = list[float](), list[float]()

    def at(seconds: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(events, (seconds, next(numbers), happen))

    def begin(now: float) -> None:
        if line:
            rollout = line.popleft()
            at(now + rollout.start, partial(call, rollout, 0, load.shared + load.context))

    def call(rollout: Rollout, turn: int, prompt_tokens: int, now: float) -> None:
        prompt = None if slack is None else f"prompt {rollout.group}"
        route = ExitStack()
        with patch.object(pool, "_GROUP_SLACK", slack):
            engine = cast(Any, route.enter_context(routes.route(str(rollout.name), sticky=True, prompt=prompt)))
        request = Request(rollout, turn, prompt_tokens, rollout.turns[turn][0], now, route)
        engine.waiting.append(request)
        if not engine.in_iteration:
            iterate(engine, now)

    def iterate(engine: SimulatedEngine, now: float) -> None:
        engine.in_iteration = bool(engine.active)
        if engine.in_iteration:
            seconds, ended = engine.iterate()
            at(now + seconds, partial(complete, engine, ended))

    def complete(engine: SimulatedEngine, ended: list[Request], now: float) -> None:
        for request in ended:
            request.route.close()
            rollout, turn = request.rollout, request.turn
            if turn == 0:
                first_answers.append(now - request.arrival)
            answer, result, seconds = rollout.turns[turn]
            if turn + 1 < len(rollout.turns):
                at(now + seconds, partial(call, rollout, turn + 1, request.prompt + answer + result))
            else:
                ends.append(now)
                begin(now)
        iterate(engine, now)

    for _ in range(load.engines * load.slots):
        begin(0.0)
    while events:
        now, _, happen = heapq.heappop(events)
        happen(now)
    hits, misses = sum(engine.hits for engine in engines), sum(engine.misses for engine in engines)
    return {
        "seconds": max(ends),
        "first_answer": statistics.fmean(first_answers),
        "cold": misses,
        "hits": hits / (hits + misses),
    }


SIDES = {"least busy": None, "affinity": math.inf, "with spill": pool._GROUP_SLACK}
"""By how many requests the engine of a scenario's prompt may be busier; None: prompts do not count."""
CONTEXTS = (200, 1000, 4000)
"""Tokens of a scenario that are measured."""


def measure(load: Load, rates: Rates, seeds: int) -> dict[str, Any]:
    """All sides with the same rollouts: means over the seeds."""
    row: dict[str, Any] = {"engines": load.engines, "context": load.context}
    for side in SIDES:
        results = [simulate(load, rates, side, seed) for seed in range(seeds)]
        row[side] = {name: statistics.fmean(result[name] for result in results) for name in results[0]}
    return row


def main() -> None:
    """Prints all sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--engines", type=int, nargs="+", default=[2, 8], help="how many engines")
    parser.add_argument("--groups", type=int, default=16, help="groups of a step")
    parser.add_argument("--n", type=int, default=8, help="rollouts of a group")
    parser.add_argument("--slots", type=int, default=16, help="rollouts at once, for each engine")
    parser.add_argument("--shared", type=int, default=1500, help="tokens that all scenarios begin with")
    parser.add_argument("--prefill", type=float, default=25_000, help="prompt tokens per second of an engine")
    parser.add_argument("--iteration", type=float, default=0.01, help="seconds of an engine's iteration")
    parser.add_argument("--sequence", type=float, default=5e-5, help="seconds of each token decoded in an iteration")
    parser.add_argument("--cache", type=int, default=400_000, help="tokens that an engine's cache holds")
    parser.add_argument("--seeds", type=int, default=3, help="steps whose mean is shown")
    options = parser.parse_args()
    rates = Rates(options.prefill, options.iteration, options.sequence, options.cache)
    loads = [
        Load(engines, options.groups, options.n, options.slots, options.shared, context)
        for engines, context in itertools.product(options.engines, CONTEXTS)
    ]
    rows = [measure(load, rates, options.seeds) for load in track(loads, console=Console(stderr=True))]
    if options.json:
        print(json.dumps({**vars(options), "rows": rows}, indent=2))
        return
    table = Table("engines", "context", "side", "seconds", "first answer, s", "cold prompt tokens", "cache hits")
    for row in rows:
        for side in SIDES:
            figures = row[side]
            table.add_row(
                str(row["engines"]),
                str(row["context"]),
                side,
                f"{figures['seconds']:.1f}",
                f"{figures['first_answer']:.2f}",
                f"{figures['cold']:,.0f}",
                f"{figures['hits']:.3f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
