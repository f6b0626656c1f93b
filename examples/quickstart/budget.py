"""What a run spends: seconds by phase, what requests and processes did during the steps, and the most memory.

It looks at the processes below this one in /proc. Without /proc, processor seconds and memory are missing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from art_langgraph.client.proxies import get
from trainer_server.common import Connection
from trainer_server.common.processors import processor_count

INTERVAL = 3.0
"""Seconds between two looks at the processes. A look takes some 50 ms of a processor: the kernel walks through all
pages of the engine and the trainer."""
ROLES = (
    ("city_server.py", "MCP server"),
    ("-m trainer_server.training", "trainer"),
    ("-m vllm.entrypoints", "engine"),
    ("-m trainer_server ", "gateway"),
)
"""Words of a command line, and what the process is then. A process without such words is what its parent is, and the
first one the client."""
IN_ROLLOUTS = ("engine", "gateway", "client", "MCP server")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
Spent = dict[str, dict[str, float]]
"""Of a step: `processors` (seconds by role) and `requests` (seconds by phase, sums over requests, which overlap)."""


class Meter:
    """Counts what this process and all below it take, until the context is left.

    `peak_memory` is the largest sum of their memory, in bytes, by role: PSS, in which a page that several processes
    share counts once, or RSS where PSS may not be read.
    """

    def __init__(self) -> None:
        self.peak_memory: dict[str, int] = {}
        self._processors: dict[tuple[str, int], float] = {}  # by role and pid, of processes that have ended too
        self._told: Spent = {}
        self._looking, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def lap(self, connection: Connection) -> Spent:
        """What was spent since the last call, or since the beginning. connection: the trainer server."""
        with self._looking:
            self._look()
            requests = _request_seconds(connection) or self._told.get("requests", {})
            total: Spent = {"processors": _sums(self._processors.items()), "requests": requests}
        before, self._told = self._told, total
        return {
            what: {name: max(0.0, spent - before.get(what, {}).get(name, 0.0)) for name, spent in by_name.items()}
            for what, by_name in total.items()
        }

    def _watch(self) -> None:
        while not self._end.wait(INTERVAL):
            with self._looking:
                self._look()

    def _look(self) -> None:
        memory: dict[str, int] = {}
        for process in _processes():
            self._processors[process.role, process.pid] = process.seconds
            memory[process.role] = memory.get(process.role, 0) + process.memory
        if sum(memory.values()) > sum(self.peak_memory.values()):
            self.peak_memory = memory


@dataclass(frozen=True, slots=True)
class _Process:
    """A process below this one, or this one itself. seconds: of the processor; memory: bytes."""

    pid: int
    role: str
    seconds: float
    memory: int


def _processes() -> list[_Process]:
    """This process and all below it."""
    children: dict[int, list[tuple[int, float]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append((int(entry.name), sum(map(int, fields[11:13])) / _TICKS))
    mine = next((seconds for pid, seconds in children.get(os.getppid(), ()) if pid == os.getpid()), None)
    found, waiting = list[_Process](), [] if mine is None else [(os.getpid(), mine, "client")]
    while waiting:
        pid, seconds, role = waiting.pop()
        try:
            found.append(_Process(pid, role, seconds, _memory(Path(f"/proc/{pid}"))))
            waiting += [(child, spent, _role(child, role)) for child, spent in children.get(pid, ())]
        except OSError:
            continue
    return found


def _role(pid: int, parent: str) -> str:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    return next((role for words, role in ROLES if words in line), parent)


def _memory(process: Path) -> int:
    """PSS in bytes, or else RSS."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return int((process / "statm").read_text().split()[1]) * _PAGE


def _sums(spent: Iterable[tuple[tuple[str, int], float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (role, _), seconds in spent:
        sums[role] = sums.get(role, 0.0) + seconds
    return sums


def _request_seconds(connection: Connection) -> dict[str, float]:
    """What finished requests have spent in vLLM. Empty: it does not say."""
    headers = {"Authorization": f"Bearer {connection.api_key}"}
    url = f"{connection.url}/api/engines?request_seconds=true"
    try:
        (engine,) = get(url, headers=headers, timeout=30).raise_for_status().json()["engines"]
    except httpx.HTTPError:
        return {}
    return engine["request_seconds"] or {}


def budget(
    steps: Sequence[Mapping[str, Any]], seconds: Mapping[str, float], peak_memory: Mapping[str, int]
) -> dict[str, Any]:
    """What a run spent.

    Args:
        steps: Rows of metrics.jsonl.
        seconds: Seconds until the server was ready (`ready`), of both evaluations (`measuring`), and of the whole run
            (`total`).
        peak_memory: As that of `Meter`.

    Returns:
        - `seconds`: Wall time by phase. They sum to the whole, unless the run was resumed: then the steps that were
          taken before are in it as well, and the rest is 0.
        - `rollouts`: What happened in the seconds of the rollouts. `requests` are seconds that requests spent in vLLM
          by phase: they overlap, so that their sum over the wall time is the mean number of requests in vLLM.
          `processors` are seconds of processors by process. What no process took is `waiting, or other programs`.
        - `peak_memory`: Bytes, by process and their sum (`total`).
    """
    known = _seconds(steps, seconds)
    processors = _total(row.get("spent", {}).get("processors", {}) for row in steps)
    taken = {role: processors[role] for role in IN_ROLLOUTS if role in processors}
    idle = known["rollouts"] * processor_count() - sum(taken.values())
    return {
        "seconds": known,
        "rollouts": {
            "requests": _total(row.get("spent", {}).get("requests", {}) for row in steps),
            "processors": {**taken, "waiting, or other programs": max(0.0, idle)} if taken else {},
        },
        "peak_memory": {**peak_memory, "total": sum(peak_memory.values())},
    }


def _seconds(steps: Sequence[Mapping[str, Any]], seconds: Mapping[str, float]) -> dict[str, float]:
    def of_steps(phase: str) -> float:
        return sum(row["seconds"][phase] for row in steps)

    def of_trainer(phase: str) -> float:
        return sum(row["metrics"].get("seconds", {}).get(phase, 0.0) for row in steps)

    trainer = {
        "trainer: packing": of_trainer("pack"),
        "trainer: look-ups": of_trainer("old_logprobs"),
        "trainer: forward": of_trainer("forward"),
        "trainer: backward, update": of_trainer("backward"),
    }
    known = {
        "start of vLLM and trainer": seconds["ready"],
        "measuring, before and after": seconds["measuring"],
        "rollouts": of_steps("rollout"),
        **trainer,
        "trainer: start, queue, files": max(0.0, of_steps("train") - sum(trainer.values())),
        "swap to the new version": of_steps("swap"),
    }
    return {**known, "rest: report, export, between steps": max(0.0, seconds["total"] - sum(known.values()))}


def _total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def show_budget(console: Console, spent: Mapping[str, Any], total: float) -> None:
    """Shows what a run spent.

    Args:
        console: Where to show it.
        spent: As `budget` gives it.
        total: Seconds of the whole run.
    """
    table = Table("", "seconds", "share")
    for name, value in [*spent["seconds"].items(), ("whole run", total)]:
        table.add_row(name, f"{value:.1f}", f"{100 * value / total:.0f} %")
    console.print(table)
    table = Table("in the rollouts", "seconds", "share of these")
    for what, by_name in spent["rollouts"].items():
        whole = sum(by_name.values())
        for name, value in by_name.items():
            table.add_row(f"{what}: {name}", f"{value:.1f}", f"{100 * value / whole:.0f} %" if whole else "-")
    if table.row_count:
        console.print(table)
    memory = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in spent["peak_memory"].items())
    console.print(f"largest memory of all processes at once, MiB: {memory}", highlight=False)
