"""The trainer process: starts it, restarts it, and fails a job during which it dies repeatedly."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer_server.common import Home
from trainer_server.engines.served_model import ServedModel
from trainer_server.jobs.job_files import TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.registry import ADDRESS, is_address
from trainer_server.policies.store import AdapterStore
from trainer_server.process.child import Child, inherited_environment
from trainer_server.process.hardware import flavour
from trainer_server.process.tasks import PeriodicTask
from trainer_server.wire import ConfigError

log = logging.getLogger("trainer_server")

_DEATHS = 3
"""Deaths of the trainer in one job, after which the job fails."""

_ERROR = re.compile(r"(error|Error|Exception): \S")
"""A line that says what went wrong. Launchers of several processes write other lines after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How the trainer process is started.

    Args:
        home: The server's home directory, with jobs, policies and logs.
        base: The base model.
        tokenizer: Fingerprint of its tokenizer; completions of other tokenizers are refused.
        ledger: The ledger that the trainer reads, as `serve --ledger` names it.
        gpus: GPUs of the trainer, as in CUDA_VISIBLE_DEVICES; None: all.
        processes: Processes that share each step.
        shard: Whether they divide the base model among them (FSDP2).
        accelerate_config: Configuration for `accelerate launch`, which then starts the processes.
        share_gpu: Whether engines and trainer use the same GPUs by turns.
        low_priority: Whether the trainer gets only what others leave of the processor; None: where there is no GPU.
            On cores that the engine uses too, answers then come first.
        on_demand: Whether the process is started with the first job, not before.
        losses: Losses that the trainer registers besides its own, `NAME=MODULE:ATTRIBUTE`.
        args: Further arguments of the trainer process.
        env: Environment variables that it gets besides those that every child gets.
    """

    home: Home
    base: ServedModel
    tokenizer: str
    ledger: str = field(default="sqlite", repr=False)
    gpus: str | None = None
    processes: int = 1
    shard: bool = False
    accelerate_config: Path | None = None
    share_gpu: bool = False
    low_priority: bool | None = None
    on_demand: bool = False
    losses: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
"""Variables that say how OpenMP's threads wait for one another. Where the trainer has the cores that others leave, its
threads soon sleep, unless one of these is set: by default they spin, for as long as the other process has a core that
one of them needs."""
_SPINS = "10000"
"""Microseconds that a thread spins before it sleeps. Threads that sleep at once took 1.24 times as long for an
update of a warm start on two idle cores; with this they took as long as those that spin."""

KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(1 << 28), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
"""Lets the C library keep freed memory for the next update, up to 4 GiB, if none of these is set. By default each large
tensor is given back to the kernel, which clears its pages anew: 6 to 11 % of an update of a warm start on two cores."""


def environment(settings: TrainerSettings, *, low_priority: bool) -> dict[str, str]:
    """All environment variables of the trainer.

    Args:
        settings: How the process is started.
        low_priority: Whether the trainer has the cores that others leave.
    """
    variables = {**inherited_environment(settings.env), **settings.base.process_environment(settings.gpus)}
    if is_address(settings.ledger):
        variables |= {**inherited_environment(patterns=("PG*",)), ADDRESS: settings.ledger}
    if low_priority and not WAITING & variables.keys():
        variables |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": _SPINS}
    if not KEEPING.keys() & variables.keys():
        variables |= KEEPING
    # What torch compiles on a GPU, for the next start: by default it is in a directory that a reboot empties.
    return {"TORCHINDUCTOR_CACHE_DIR": str(settings.home.cache / "torch"), **variables}


class TrainerProcess:
    """Runs the trainer, and starts it again when it ends.

    Args:
        settings: How the process is started.
        queue: The queue of jobs.
        store: Where the trainer publishes versions.
        open_ids: Jobs without a final status, oldest first. They are read again whenever they are needed.

    Attributes:
        restarts: How often the trainer was started again since the server started.
        consecutive_restarts: Restarts since a job was last done. The wait before the next restart grows with them.
    """

    def __init__(
        self, settings: TrainerSettings, *, queue: JobQueue, store: AdapterStore, open_ids: Iterable[str]
    ) -> None:
        self._queue, self._store, self._open = queue, store, open_ids
        self._base, self._on_demand = settings.base, settings.on_demand
        self._deaths: Counter[str] = Counter()
        line = command(settings)
        if settings.accelerate_config:
            log.warning(
                "the trainer is started by %s; other machines of it by the same line. Its ports ask for no key: use it "
                "in a network that you trust",
                shlex.join(line),
            )
        low_priority = flavour() == "cpu" if settings.low_priority is None else settings.low_priority
        variables = environment(settings, low_priority=low_priority)
        self._child = Child("trainer", line, settings.home.logs, variables, low_priority=low_priority)
        self._watch = PeriodicTask("supervision of the trainer", self._supervise)
        self._ending = asyncio.Lock()
        """Held while the process is started, and while a job is broken off: the two must not overlap."""
        self._breaking_off = False
        self._last_reaped_pid: int | None = None
        """Id of the last process whose death was counted."""
        self._file = settings.home.root / "trainer.json"
        """The trainer writes it when it is ready. It is deleted before each start."""
        self._losses: list[str] = []
        self._failure: str | None = None
        self.restarts = 0
        self.consecutive_restarts = 0

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._child.running

    @property
    def asleep(self) -> bool:
        """Whether no process was started yet, because no job has needed one."""
        return self._on_demand and self.pid is None

    @property
    def command(self) -> list[str]:
        """The command line of the trainer, without the guard."""
        return self._child.command

    @property
    def pid(self) -> int | None:
        """Id of the process that was started last, which guards the trainer; None before the first start."""
        return self._child.pid

    def losses(self) -> list[str]:
        """Names that `loss_type` may have, which the trainer writes to disk when it is ready; empty before that."""
        return [str(name) for name in self._about().get("losses", self._losses)]

    @property
    def failure(self) -> str | None:
        """Why the trainer ended before it was ready, with a line of its log, or why it cannot be started again; None
        when it did not, or is ready by now."""
        not_started = None if self.running else self._watch.failure
        return not_started or (None if self.ready else self._failure)

    @property
    def ready(self) -> bool:
        """Whether the process that was started last has loaded its model."""
        return bool(self._about())

    def _about(self) -> dict[str, Any]:
        """The content of trainer.json; empty before the trainer is ready."""
        try:
            return dict(json.loads(self._file.read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    async def start(self) -> None:
        """Starts the trainer, and restarts it until `stop`. On demand, nothing is started while no job is open."""
        self._file.unlink(missing_ok=True)  # of an earlier server's trainer
        if not self._on_demand:
            await self._start()
            self._watch.start()
        elif next(iter(self._open), None) is not None:
            self.wake()

    def wake(self) -> None:
        """Has a trainer started that waits for the first job. Does nothing to any other one."""
        if self._on_demand and not self._watch.begun:
            self._watch.start()

    async def stop(self) -> None:
        """Ends the trainer. The job that it was working on stays queued on disk."""
        await self._watch.stop()
        await self._child.stop()

    async def break_off(self, job_id: str, outcome: TrainingOutcome) -> None:
        """Ends the trainer while it works on a job, and reports an outcome for the job. Does nothing to a job that has
        an outcome, or has published its version: the trainer may be at the next job.

        A computation cannot be stopped in between: its kernels run for as long as they take, and with several processes
        each waits for the others. What the trainer wrote is whole or in a staging directory, whenever it is ended.
        Another trainer is started then, which loads the model anew.

        Args:
            job_id: A job that was started.
            outcome: What to report.

        Raises:
            OSError: The outcome could not be written down. The trainer starts the job again.
        """
        async with self._ending:
            if await asyncio.to_thread(self._has_ended, job_id):
                return
            self._breaking_off = self._child.running
            await self._child.stop()
            if not await asyncio.to_thread(self._has_ended, job_id):  # the trainer may have come to its end meanwhile
                await asyncio.to_thread(self._queue.report, job_id, outcome)
                log.warning("%s was broken off: %s", job_id, outcome.error)

    def _has_ended(self, job_id: str) -> bool:
        """Whether a job has an outcome, or its version is there, which makes one."""
        if self._queue.training_outcome(job_id) is not None:
            return True
        return self._store.made_by(self._queue.file(job_id).policy, job_id) is not None

    async def _start(self) -> None:
        async with self._ending:
            self._losses = self.losses()
            self._file.unlink(missing_ok=True)
            await self._child.start()

    async def _supervise(self) -> None:
        """Waits until the trainer ends, and starts it again. The first one of a trainer on demand is started here."""
        if self.pid is None:
            return await self._start()
        status = await self._child.wait()
        async with self._ending:
            broken_off, self._breaking_off = self._breaking_off, False
        await self._child.stop()
        if self._child.pid != self._last_reaped_pid:  # else the attempt to start another one failed
            self._last_reaped_pid = self._child.pid
            if broken_off:
                log.info("the trainer was ended to break off its job; it is started again")
            else:
                await self._count_restart(status)
        await self._start()

    async def _count_restart(self, status: int) -> None:
        """Counts a death, and returns when it is time to start the trainer again."""
        self.restarts += 1
        log.warning("the trainer ended with status %s (restart %d); see %s", status, self.restarts, self._child.log)
        self._failure = None if self.ready else self._crash_reason(status)
        try:
            await asyncio.to_thread(self._count_death, status)
        except Exception:  # of any kind: without a trainer no job would ever end
            log.exception("the death of the trainer could not be counted")
        self.consecutive_restarts += 1
        await asyncio.sleep(min(30.0, 0.5 * self.consecutive_restarts))

    def _crash_reason(self, status: int) -> str:
        tail = self._child.tail()
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if _ERROR.search(line)), lines[-1] if lines else "no words")
        return (
            f"the trainer ended with status {status} before it was ready: {reason} (see {self._child.log})"
            + self._base.code_hint(tail)
        )

    def _count_death(self, status: int) -> None:
        """Fails the current job if the trainer died during it several times, so that later jobs can run."""
        job_id = next((open_id for open_id in self._open if self._queue.training_outcome(open_id) is None), None)
        if job_id is None or not self._queue.started(job_id) or not self.ready:
            return  # it died while it loaded its model: the job is not what it died of
        self._deaths[job_id] += 1
        if self._deaths[job_id] < _DEATHS or self._store.made_by(self._queue.file(job_id).policy, job_id):
            return
        error = (
            f"the trainer process died {_DEATHS} times while it did this job, last with status {status}. If that is "
            "137, memory may have run out: send smaller batches or a smaller token_budget. Its log is "
            f"{self._child.log}"
        )
        self._queue.report(job_id, TrainingOutcome(error=error))


def command(settings: TrainerSettings) -> list[str]:
    """The command line of the trainer: one process, several on this machine, or as accelerate's configuration says.

    Raises:
        ConfigError: accelerate's configuration cannot be read, or accelerate would not follow it.
    """
    launcher: list[str] = []
    if settings.accelerate_config:
        _check(settings.accelerate_config)
        launcher = ["accelerate.commands.launch", "--config_file", str(settings.accelerate_config), "-m"]
    elif settings.processes > 1:
        launcher = ["trainer_server.training.launch", str(settings.processes)]
    options = {
        "--home": str(settings.home.root),
        "--model": settings.base.path,
        "--base-model": settings.base.name,
        "--tokenizer": settings.tokenizer,
    }
    if not is_address(settings.ledger):  # that may have a password, and others can read command lines
        options["--ledger"] = settings.ledger
    return [
        *(sys.executable, "-m", *launcher, "trainer_server.training"),
        *(word for option in options.items() for word in option),
        *(["--shard"] if settings.shard else []),
        *(["--take-turns"] if settings.share_gpu else []),
        *(["--trust-remote-code"] if settings.base.trust_remote_code else []),
        *(word for definition in settings.losses for word in ("--loss", definition)),
        *(["--revision", settings.base.revision] if settings.base.revision else []),
        *settings.args,
    ]


def _check(path: Path) -> None:
    """Refuses a configuration with which accelerate would start one process instead of several, without a warning.

    accelerate does that for several processes on CPUs without MPI.
    """
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--accelerate-config {path} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("distributed_type") in (None, "NO", "MULTI_CPU"):
        kind = config.get("distributed_type") if isinstance(config, dict) else None
        raise ConfigError(
            f"--accelerate-config {path} has distributed_type {kind}, with which accelerate starts one process: take "
            "MULTI_GPU (where there is no GPU, the processes meet over gloo), or FSDP to divide the base model too"
        )
