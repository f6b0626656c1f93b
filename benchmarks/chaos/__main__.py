"""Processes that are killed and stopped, a full disk, a clock that jumps, clients that vanish, and too many clients.

    python -m benchmarks.chaos [--json] [--minutes 3] [--every 5] [--stop 30] [--cut 60] [--connections 10000] [--vllm]
                               [--ledger sqlite|postgres|postgresql://…] [--seed 0]

Starts the trainer server under `ulimit -n 1024`, with its trainer process, over a small engine that it launches where
vLLM would be, or over vLLM itself with --vllm. Server and clients are in two network namespaces, where the machine can
have such. While clients roll out and a training takes its steps:

1. every few seconds a process of server, engine or trainer is killed by SIGKILL; a server that has ended is started
   again, as a service manager would;
2. server, engine and trainer are stopped by SIGSTOP, for STOP seconds each;
3. the disk that has the server's home is full for ten seconds;
4. the wall clock of server and trainer jumps an hour on, two back, and is right again;
5. for STOP seconds each packet between clients and server takes 80 ms, in each direction, and one of a hundred is lost;
6. the line between them is cut for CUT seconds;
7. clients connect and vanish in the middle of their request;
8. CONNECTIONS clients ask at once.

After each, an answer and a step must come within five minutes. At the end the server is stopped, and its ledger and
its versions are compared with what clients and training saw. The last line under --json is one JSON object; the program
ends with status 1 if something did not come back, or if the books do not balance.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.chaos.clock import Clock
from benchmarks.chaos.connections import Flood, half_open
from benchmarks.chaos.disk import Disk
from benchmarks.chaos.line import Line
from benchmarks.chaos.world import BACK, POLICY, ROLES, World
from benchmarks.stress.books import Receipt, balance, rows_of
from benchmarks.stress.clients import Clients, Speech
from benchmarks.stress.ledgers import ChosenLedger, add_option, chosen_ledger
from benchmarks.stress.training import Training
from testbed.engine_stand_in import install_stand_in
from testbed.server_process import ServerProcess
from testbed.tiny_model import tiny_base
from trainer_server.policies.store import AdapterStore

FILES = 1024
"""Files that the server may have open."""
FULL = 10.0
"""Seconds for which the disk is full."""
STEPS = (3600, -3600, 0)
"""By how much the clock is off, in seconds, one after another."""
DELAY, LOSS = 0.08, 0.01
"""Of a bad line: seconds that a packet takes in each direction, and the share of packets that is lost."""
HALVES = 100
"""Connections of each kind that vanish."""
HELD = 45.0
"""Seconds for which they are kept open."""
VLLM = ("--engine-args=--max-model-len 1024 --max-num-seqs 16", "--max-rank", "8")
"""Options of `serve` for a real vLLM on two cores."""


@dataclass(slots=True)
class Chaos:
    """What is done to a world.

    Args:
        world: The world.
        disk: That has its home.
        clock: Of its processes.
        line: Between clients and server.
        options: Of the command line.
    """

    world: World
    disk: Disk
    clock: Clock
    line: Line
    options: argparse.Namespace

    async def kills(self) -> dict[str, Any]:
        """Kills a process every few seconds."""
        rng = random.Random(self.options.seed)
        kills: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.minutes * 60
        while loop.time() < end:
            await asyncio.sleep(rng.uniform(0.5, 1.5) * self.options.every)
            if role := self.world.kill(rng):
                kills[role] += 1
        return dict(kills)

    async def stops(self) -> dict[str, Any]:
        """Stops the processes of each role for a while."""
        stopped: dict[str, Any] = {}
        for role in ROLES:
            found = self.world.processes(role)[0 if role == "server" else 1 :]
            before = self.world.clients.answered
            for process in found:
                process.suspend()
            try:
                await asyncio.sleep(self.options.stop)
            finally:
                for process in found:
                    try:
                        process.resume()
                    except psutil.NoSuchProcess:  # it was given up and ended
                        pass
            stopped[role] = f"{self.world.clients.answered - before} answered meanwhile"
            await self.world.comes_back()
        return stopped

    async def full_disk(self) -> dict[str, Any]:
        """Fills the disk for a while."""
        if self.disk.unavailable_reason:
            return {"left out": self.disk.unavailable_reason}
        before = Counter(self.world.clients.errors)
        answered = self.world.clients.answered
        with self.disk.full():
            await asyncio.sleep(FULL)
        refused = self.world.clients.errors - before
        return {
            "answered": self.world.clients.answered - answered,
            "refused_507": sum(count for why, count in refused.items() if why.startswith("507")),
        }

    async def clock_steps(self) -> dict[str, Any]:
        """Steps the clock."""
        if self.clock.unavailable_reason:
            return {"left out": self.clock.unavailable_reason}
        errors, answered = self.world.clients.errors.total(), self.world.clients.answered
        for step in STEPS:
            self.clock.step(step)
            await self.world.comes_back()
        return {
            "answered": self.world.clients.answered - answered,
            "errors": self.world.clients.errors.total() - errors,
        }

    async def bad_line(self) -> dict[str, Any]:
        """Delays packets and loses some."""
        return await self._line(self.options.stop, delay=DELAY, loss=LOSS)

    async def cut(self) -> dict[str, Any]:
        """Cuts the line."""
        return await self._line(self.options.cut, cut=True)

    async def _line(self, seconds: float, **bad: Any) -> dict[str, Any]:
        if self.line.unavailable_reason:
            return {"left out": self.line.unavailable_reason}
        errors, answered = self.world.clients.errors.total(), self.world.clients.answered
        with self.line.bad(**bad):
            await asyncio.sleep(seconds)
        return {
            "answered": self.world.clients.answered - answered,
            "errors": self.world.clients.errors.total() - errors,
            "packets_lost": self.line.lost,
        }

    async def half_open(self) -> dict[str, Any]:
        """Opens connections that say nothing more."""
        before = self.world.clients.answered
        closed = await half_open(self.world.server.url, HALVES, HELD)
        return {"closed": closed, "of_each": HALVES, "answered": self.world.clients.answered - before}

    async def flood(self) -> dict[str, Any]:
        """Opens more connections than the server may have files."""
        before = await self.world.restarts()
        flood = await Flood.at(self.world.server.url, POLICY, self.options.connections, 120.0)
        self.world.receipts += flood.receipts
        after = await self.world.restarts()
        return {
            "statuses": dict(flood.statuses),
            "closed": flood.closed,
            "silent": flood.silent,
            "restarts": sum(after) - sum(before),
        }


async def endure(chaos: Chaos) -> dict[str, Any]:
    """Does everything, one after another."""
    world, options = chaos.world, chaos.options
    await world.training.create()
    beside = [
        asyncio.create_task(work)
        for work in (world.keep_running(), world.training.every(0.5), world.clients.run(options.rollouts))
    ]
    phases: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "kills": chaos.kills,
        "stops": chaos.stops,
        "full disk": chaos.full_disk,
        "clock": chaos.clock_steps,
        "bad line": chaos.bad_line,
        "cut": chaos.cut,
        "half-open": chaos.half_open,
        "flood": chaos.flood,
    }
    happened: dict[str, Any] = {}
    try:
        await world.comes_back()
    except TimeoutError:
        raise SystemExit(
            f"nothing was answered, or no step was made, in the first {BACK:.0f} s: ask for fewer --rollouts than "
            f"{options.rollouts}, or end what runs beside this"
        ) from None
    for name, phase in phases.items():
        try:
            happened[name] = {**await phase(), "back_after_seconds": await world.comes_back()}
        except TimeoutError:
            happened[name] = {"back_after_seconds": None}
            break
        print(f"{name}: {happened[name]}", file=sys.stderr, flush=True)
    world.clients.stop()
    beside[1].cancel()
    await asyncio.wait([beside[2]], timeout=180)
    for task in beside:
        task.cancel()
    for ended in await asyncio.gather(*beside, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    return happened


@contextmanager
def worlds(options: argparse.Namespace, scratch: Path, ledger: ChosenLedger) -> Iterator[Chaos]:
    """A world that runs, on a disk and by a clock of its own."""
    with ExitStack() as stack:
        disk, clock, line = Disk(scratch / "home"), Clock(scratch), stack.enter_context(Line())
        stack.callback(disk.unmount)
        variables = {**clock.environment, **ledger.environment}
        if not options.vllm:
            install_stand_in(scratch / "cache")
            variables["ART_CACHE"] = str(scratch / "cache")
        server = ServerProcess(
            scratch / "home",
            "embedded" if options.vllm else tiny_base(scratch),
            options=("--no-trainer-low-priority", *clock.options, *(VLLM if options.vllm else ())),
            files=FILES,
            environment=variables,
            host=line.host,
            prefix=line.prefix,
        )
        stack.callback(server.stop)
        server.start()
        line.run(lambda: server.until_ready(600))
        clients = Clients(server.url, POLICY, patience=60, speech=Speech(tokens=24) if options.vllm else None)
        training = Training(server.url, POLICY, patience=300)
        yield Chaos(World(server, clients, training), disk, clock, line, options)


def books(world: World, ledger: ChosenLedger) -> dict[str, Any]:
    """What ledger and versions say after the end, and what clients and training saw."""
    receipts: list[Receipt] = [*world.clients.receipts, *world.training.receipts, *world.receipts]
    found = balance(receipts, rows_of(ledger.place(world.home)))
    store = AdapterStore(world.home.policies)
    versions = store.versions(POLICY)
    broken = [problem for number in versions if (problem := store.problem(POLICY, number))]
    return {
        **asdict(found),
        "steps": len(world.training.steps),
        "steps_failed": world.training.errors,
        "versions": len(versions) - 1,
        "versions_broken": broken,
        "even": found.even and not broken and versions == list(range(len(versions))),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All that happened, and the books."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        chosen_ledger(options.ledger) as ledger,
        worlds(options, Path(scratch), ledger) as chaos,
    ):
        happened = chaos.line.run(lambda: asyncio.run(endure(chaos)))
        chaos.world.server.stop()
        clients = chaos.world.clients
        return {
            "engine": "vllm" if options.vllm else "small",
            "ledger": "sqlite" if ledger.url is None else "postgres",
            "happened": happened,
            "requests": clients.sent,
            "answered": clients.answered,
            "left": clients.left,
            "refused": clients.refused,
            "cut_off": clients.errors.total(),
            "starts": chaos.world.started,
            **books(chaos.world, ledger),
            "back": all(one["back_after_seconds"] is not None for one in happened.values()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of kills (3)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds from one kill to the next, about (5)")
    parser.add_argument("--stop", type=float, default=30.0, help="seconds of each SIGSTOP (30)")
    parser.add_argument("--cut", type=float, default=60.0, help="seconds without a line (60)")
    parser.add_argument("--rollouts", type=int, default=32, help="rollouts at once (32)")
    parser.add_argument("--connections", type=int, default=10_000, help="clients that ask at once (10000)")
    parser.add_argument("--vllm", action="store_true", help="the real vLLM on the embedded model")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed, and when (0)")
    add_option(parser)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end with this program
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # of the clients
    result = measure(options)
    table = Table("what", "outcome", title=f"engine: {result['engine']}")
    others = {name: value for name, value in result.items() if name != "happened"}
    for name, value in {**result["happened"], **others}.items():
        table.add_row(name, json.dumps(value))
    Console(stderr=options.json).print(table)
    if options.json:
        print(json.dumps({"benchmark": "chaos", **result}))
    if not (result["even"] and result["back"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
