"""The trainer process: takes jobs off the board, one after another, and publishes the versions they make."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from trainer_server.jobs.board import JobBoard, JobFile, Trained
from trainer_server.ledger.sqlite import read_completions
from trainer_server.policies.store import OPTIMIZER, AdapterStore
from trainer_server.process import faults
from trainer_server.process.files import write_atomic
from trainer_server.training.checkpoint import load_state, make_optimizer, save_state
from trainer_server.training.grpo.batch import gather_batch
from trainer_server.training.grpo.step import optimise
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.ranks import ALONE, Ranks
from trainer_server.training.sft import warm_start
from trainer_server.wire import (
    ARTError,
    Fork,
    Home,
    PolicySpec,
    SFTRequest,
    StepRequest,
    StepResult,
    TrainingError,
    Version,
)

log = logging.getLogger("trainer")

_POLL = 0.02
_LOOK = 1.0
"""Seconds until a job is found that was accepted within the same tick of the file system's clock as the last look."""
_TELL = 0.5
"""Seconds between two notes of how far a job is."""
_RESEND = (
    "The policy stays at the version it had: see that there is space on the disk, and send the job again under another "
    "idempotency key."
)
_AGAIN = 1.0
"""Seconds until a report that could not be written is tried again."""


class Worker:
    """Does jobs on one base model. Holds no state between jobs that is not on disk.

    Of several ranks the first takes jobs and writes files; the others compute with it when it says so.
    """

    def __init__(
        self, home: Home, model: PolicyModel, *, base_model: str, tokenizer: str, ranks: Ranks = ALONE,
        takes_turns: bool = False,
    ) -> None:  # fmt: skip
        """takes_turns: with the engines, on the same GPUs. It computes when the server gives it the turn."""
        self.home, self.model, self.base_model, self.tokenizer = home, model, base_model, tokenizer
        self.ranks, self.takes_turns = ranks, takes_turns
        self.board = JobBoard(home.jobs)
        self.store = AdapterStore(home.policies)
        self._make = {"create": self._create, "step": self._step, "sft": self._sft}

    def run(self) -> None:
        """Works until the starter of this process is gone."""
        starter = os.getppid()
        self.store.clean()
        done: set[str] = set()
        fresh: list[str] = []
        seen, looked = -1.0, -math.inf
        while os.getppid() == starter:
            changed = self.board.changed()
            if changed != seen or time.monotonic() - looked >= _LOOK:
                seen, looked = changed, time.monotonic()
                fresh = [job_id for job_id in self.board.ids() if job_id not in done]
            # The order of a policy's versions is that of its jobs: later ones wait.
            while fresh and self._over(fresh[0]):
                done.add(fresh.pop(0))
            time.sleep(_POLL)

    def _over(self, job_id: str) -> bool:
        """Whether there is nothing left to do for a job; does it if its time has come."""
        if self.board.trained(job_id) is not None:
            return True
        try:
            if not self.board.ready(job_id):
                return False
            job = self.board.file(job_id)
        except TrainingError as error:  # damaged: said, and in no other job's way
            log.error("%s failed: %s", job_id, error)
            self._report(job_id, Trained(error=str(error)))
            return True
        if self.takes_turns and job.kind != "create" and not self.board.has_turn(job_id):
            return False
        self.do(job)
        return True

    def follow(self) -> None:
        """Computes with the first rank, until that is gone. An error that is not the job's ends this process, and so
        the others, which would wait for it."""
        while True:
            said = json.loads(self.ranks.tell(None) or "{}")
            try:
                self._compute(self.board.file(said["job"]), said["version"])
            except ARTError as error:  # the first one has met it too, and reports it
                log.info("%s: %s", said["job"], error)

    def do(self, job: JobFile) -> None:
        """One job, to its report. A job that cannot be done is reported as failed; this process lives on.
        Of several ranks it ends where others may wait for it; the server starts them again, and gives up a job that
        they die of again and again."""
        started = time.monotonic()
        try:
            self.board.start(job.id)
            faults.point("started")
            if self.takes_turns and job.kind != "create":
                self.model.wake()
            result = self._made(job) or self._make[job.kind](job)
            trained = Trained(result=result)
        except ARTError as error:
            log.error("%s failed: %s", job.id, error)
            trained = Trained(error=str(error))
        except OSError as error:
            log.error("%s failed: %s", job.id, error)
            trained = Trained(error=f"{error}. {_RESEND}")
        except Exception as error:  # the edge of a job: recorded, told to the client, and not fatal to the next one
            log.exception("%s failed", job.id)
            if self.ranks.count > 1:  # another rank may be gone, or wait in the middle of a step: all begin again
                raise
            trained = Trained(error=f"{type(error).__name__}: {error}")
        if self.takes_turns:  # not before the error is gone, whose traceback holds what was computed
            self.model.rest()
        trained.seconds = time.monotonic() - started
        self._report(job.id, trained)
        faults.point("trained")
        log.info("%s %s %s in %.2f s", job.id, job.kind, job.policy, trained.seconds)

    def _report(self, job_id: str, trained: Trained) -> None:
        """However full the disk is: without this report the job would never end, and doing it again would not help."""
        while True:
            try:
                faults.point("reporting")
                return self.board.report(job_id, trained)
            except OSError as error:
                log.error("%s is done, but that cannot be written down; free space on the disk: %s", job_id, error)
                time.sleep(_AGAIN)

    def _made(self, job: JobFile) -> StepResult | None:
        """What this job made before an earlier process was killed, if it came that far."""
        record = self.store.made_by(job.policy, job.id)
        if record is None:
            return None
        self.store.note_highest(job.policy, record.version)  # the last thing that a job does, and may not have come to
        return StepResult(version=record.version, metrics=record.metrics)

    def _create(self, job: JobFile) -> StepResult:
        if job.spec is None:
            raise TrainingError(f"{job.id} names no policy to create")
        if 0 in self.store.versions(job.policy):  # made for a request that was cut off and sent again
            return StepResult(version=0)
        if job.spec.fork_of:
            return self._fork(job, job.spec, job.spec.fork_of)
        self.model.initialise(job.spec)
        torch.manual_seed(job.spec.seed)
        return self._publish(job, 0, {}, lambda aside: self._write(aside, None))

    def _fork(self, job: JobFile, spec: PolicySpec, source: Fork) -> StepResult:
        """Version 0 as a copy of another policy's version."""
        name = f"{source.policy}@{source.version}"
        if problem := self.store.problem(source.policy, source.version):
            raise TrainingError(f"{name} cannot be forked: {problem}")
        directory = self.store.directory(source.policy, source.version)
        state = ("trainer.json", OPTIMIZER) if source.optimizer else ()
        if not all((directory / file).exists() for file in state):
            state = ()
            log.warning("%s has no optimizer state any more: %s begins with a fresh one", name, job.policy)

        def copy(aside: Path) -> None:
            for file in ("adapter_config.json", "adapter_model.safetensors", *state):
                shutil.copyfile(directory / file, aside / file)
            if not state:
                torch.manual_seed(spec.seed)
                save_state(aside, self.model, None)

        return self._publish(job, 0, {"fork_of": name, "optimizer": "copied" if state else "fresh"}, copy)

    def _step(self, job: JobFile) -> StepResult:
        _, version = self._newest(job.policy)
        if self.ranks.count > 1:
            self.ranks.tell(json.dumps({"job": job.id, "version": version}))
        metrics, optimizer = self._compute(job, version)
        if "skipped" in metrics:
            return StepResult(version=version, metrics=metrics)
        number = self.store.next_number(job.policy)
        return self._publish(job, number, metrics, lambda aside: self._write(aside, optimizer), version)

    def _compute(self, job: JobFile, version: int) -> tuple[dict[str, Any], torch.optim.AdamW]:
        """A step on top of a version, by all ranks; leaves the new weights in place."""
        request, spec = job.request, self.store.spec(job.policy)
        if not isinstance(request, StepRequest) or spec is None:
            raise TrainingError(f"{job.id} says nothing about a step")
        batch = gather_batch(
            request.groups, read_completions(self.home.ledger, job.completions), request.config, policy=job.policy,
            version=version, base_model=self.base_model, tokenizer=self.tokenizer,
        )  # fmt: skip
        directory = self.store.directory(job.policy, version)
        self.model.load(spec, directory)
        optimizer = make_optimizer(self.model, request.config)
        if fresh := load_state(directory, self.model, optimizer):
            torch.manual_seed(spec.seed + version)  # the same for all ranks, and however often the job is taken up

        @contextmanager
        def under(other: int) -> Iterator[bool]:
            path = self.store.directory(job.policy, other)
            if self.store.problem(job.policy, other):
                yield False
                return
            self.model.load(spec, path)
            try:
                yield True
            finally:
                self.model.load(spec, directory)

        faults.point("gathered")
        metrics = optimise(self.model, optimizer, batch, request.config, under, self.ranks)
        if fresh and "skipped" not in metrics:
            log.warning("%s: %s", job.policy, fresh)
            metrics["optimizer"] = fresh
        return metrics, optimizer

    def _sft(self, job: JobFile) -> StepResult:
        spec, version = self._newest(job.policy)
        given = self.board.rows(job.id)
        if given is None or not isinstance(job.request, SFTRequest):
            raise TrainingError(f"{job.id} says nothing about demonstrations")
        if self.ranks.sharded:
            raise TrainingError(
                "a warm start needs the whole base model in one process: serve without --trainer-shard for it"
            )
        self.model.load(spec, self.store.directory(job.policy, version))
        told = -math.inf

        def tell(done: int, updates: int) -> None:
            nonlocal told
            if time.monotonic() - told >= _TELL:
                self.board.progress(job.id, done / updates)
                told = time.monotonic()

        metrics = warm_start(self.model, given, job.request.config, self.home.jobs / job.id / "trl", tell)
        if "skipped" in metrics:
            return StepResult(version=version, metrics=metrics)
        number = self.store.next_number(job.policy)
        return self._publish(job, number, metrics, lambda aside: self._write(aside, None), version)

    def _newest(self, policy: str) -> tuple[PolicySpec, int]:
        """What a job goes on from. A newest version that was damaged or deleted by hand fails the job, once: the next
        one goes on from the version before, and its sender has been told."""
        if broken := self.store.broken_newest(policy):
            told = [self.store.quarantine(policy, number, why) for number, why in broken.items()]
            raise TrainingError(f"{' '.join(told)} This job changed nothing: send it again to go on from there.")
        spec, versions = self.store.spec(policy), self.store.versions(policy)
        if spec is None or not versions:
            raise TrainingError(f"there is no policy {policy!r} to train")
        return spec, versions[-1]

    def _write(self, aside: Path, optimizer: torch.optim.AdamW | None) -> None:
        """The weights that are in place, and the optimizer's state."""
        self.model.save(aside)
        faults.point("weights")
        save_state(aside, self.model, optimizer)
        faults.point("state")

    def _publish(
        self, job: JobFile, version: int, metrics: dict[str, object], write: Callable[[Path], None],
        made_from: int | None = None,
    ) -> StepResult:  # fmt: skip
        try:
            aside = self.store.staging(job.policy, version)
            write(aside)
            record = Version(policy=job.policy, version=version, created=time.time(), job_id=job.id,
                             made_from=made_from, metrics=metrics)  # fmt: skip
            self.store.publish(aside, record)
        except (OSError, SafetensorError) as error:
            self.store.clean()
            raise TrainingError(f"{job.policy}@{version} could not be written: {error}. {_RESEND}") from error
        return StepResult(version=version, metrics=metrics)


def _end_with(starter: int) -> None:
    """Ends this process at once when its starter is gone: another trainer may be at its job already."""
    while os.getppid() == starter:
        time.sleep(0.2)
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="state directory of the server")
    parser.add_argument("--model", required=True, help="directory or hub id of the base model")
    parser.add_argument("--base-model", required=True, help="its name; completions of other base models are refused")
    parser.add_argument("--tokenizer", required=True, help="fingerprint; completions of other tokenizers are refused")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="of the base model")
    parser.add_argument("--quantization", choices=["4bit", "8bit"], help="of the base model, by bitsandbytes; on GPUs")
    parser.add_argument("--shard", action="store_true", help="divide the base model among the ranks (FSDP2)")
    parser.add_argument("--take-turns", action="store_true", help="with engines, on the same GPUs (serve --share-gpu)")
    args = parser.parse_args()
    if args.take_turns and args.quantization:
        parser.error("a base model in fewer bits cannot leave its GPU: take --share-gpu or --quantization, not both")
    ranks = Ranks.join(shard=args.shard)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {ranks.label}%(message)s")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks.here))
    started = time.monotonic()
    model = PolicyModel(args.model, dtype=getattr(torch, args.dtype), quantization=args.quantization, ranks=ranks,
                        rest=args.take_turns)  # fmt: skip
    log.info("base model loaded in %.1f s", time.monotonic() - started)
    home = Home.find(args.home)
    worker = Worker(home, model, base_model=args.base_model, tokenizer=args.tokenizer, ranks=ranks,
                    takes_turns=args.take_turns)  # fmt: skip
    if ranks.first:
        write_atomic(home.root / "trainer.json", json.dumps({"pid": os.getpid(), "ready": time.time()}))
        worker.run()
    else:
        worker.follow()


if __name__ == "__main__":
    main()
