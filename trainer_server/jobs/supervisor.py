"""The trainer process: started, kept alive, and kept from dying of one job for ever."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

from trainer_server.engines.served_model import ServedModel
from trainer_server.jobs.board import JobBoard, Trained
from trainer_server.policies.store import AdapterStore
from trainer_server.process.child import Child
from trainer_server.process.hardware import flavour
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError

log = logging.getLogger("trainer_server")

_DEATHS = 3
"""Of the trainer in one job, until that job is given up."""


class TrainerProcess:
    """Runs the trainer and starts it again when it ends. open_ids: jobs without a final word, oldest first, as they
    stand at any time."""

    def __init__(
        self, config: ServerConfig, base: ServedModel, tokenizer: str, board: JobBoard, store: AdapterStore,
        open_ids: Sequence[str],
    ) -> None:  # fmt: skip
        self._board, self._store, self._open = board, store, open_ids
        self._deaths: Counter[str] = Counter()
        line = command(config, base, tokenizer)
        if config.accelerate_config:
            log.info("the trainer is started by %s; other machines of it by the same line", shlex.join(line))
        variables = base.process_environment(config.trainer_gpus)
        # On cores that the engine uses too, answers come first: when both compute, each waits for the other's threads.
        self._child = Child("trainer", line, config.home.logs, variables, low_priority=flavour() == "cpu")
        self._watch: asyncio.Task[None] | None = None
        self.restarts = 0
        self.in_vain = 0
        """Restarts since a job was done: the wait until the next one grows with them."""

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def command(self) -> list[str]:
        """The line that starts it."""
        return self._child.command

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> None:
        await self._child.start()
        self._watch = asyncio.create_task(self._supervise(), name="trainer-supervisor")

    async def stop(self) -> None:
        """Ends it. What it was working on stays queued on disk."""
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._child.stop()

    async def _supervise(self) -> None:
        while True:
            status = await self._child.wait()
            self.restarts += 1
            log.warning("the trainer ended with status %s (restart %d); its log is %s", status, self.restarts,
                        self._child.log)  # fmt: skip
            await self._child.stop()
            try:
                await asyncio.to_thread(self._blame, status)
                self.in_vain += 1
                await asyncio.sleep(min(30.0, 0.5 * self.in_vain))
                await self._child.start()
            except Exception:  # of any kind: without a trainer no job would ever end
                log.exception("the trainer could not be started again")
                await asyncio.sleep(1.0)

    def _blame(self, status: int) -> None:
        """Gives a job up that the trainer died of again and again: those behind it would never have their turn."""
        job_id = next((one for one in self._open if self._board.trained(one) is None), None)
        if job_id is None or not self._board.started(job_id):
            return
        self._deaths[job_id] += 1
        if self._deaths[job_id] < _DEATHS or self._store.made_by(self._board.file(job_id).policy, job_id):
            return
        error = (
            f"the trainer process died {_DEATHS} times while it did this job, last with status {status}. If that is "
            "137, memory may have run out: send smaller batches or a smaller token_budget. Its log is "
            f"{self._child.log}"
        )
        self._board.report(job_id, Trained(error=error))


def command(config: ServerConfig, base: ServedModel, tokenizer: str) -> list[str]:
    """The command line of the trainer: one process, several here, or what accelerate's configuration says. Raises
    ConfigError for one that accelerate would not follow."""
    launcher: list[str] = []
    if config.accelerate_config:
        _check(config.accelerate_config)
        launcher = ["accelerate.commands.launch", "--config_file", str(config.accelerate_config), "-m"]
    elif config.trainer_processes > 1:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={config.trainer_processes}", "-m"]
    return [
        sys.executable, "-m", *launcher, "trainer_server.training.worker", "--home", str(config.home.root),
        "--model", base.path, "--base-model", base.name, "--tokenizer", tokenizer,
        *(["--shard"] if config.trainer_shard else []), *(["--take-turns"] if config.share_gpu else []),
        *config.trainer_args,
    ]  # fmt: skip


def _check(path: Path) -> None:
    """accelerate starts a single process, and does not say so, where it should start several on CPUs without MPI."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--accelerate-config {path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("distributed_type") in (None, "NO", "MULTI_CPU"):
        kind = found.get("distributed_type") if isinstance(found, dict) else None
        raise ConfigError(
            f"--accelerate-config {path} has distributed_type {kind}, with which accelerate starts one process: take "
            "MULTI_GPU (where there is no GPU, the processes meet over gloo), or FSDP to divide the base model too"
        )
