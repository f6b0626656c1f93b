"""The trainer process: takes jobs from the queue, one after another, and reports how each ended."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import threading
import time
from pathlib import Path
from typing import get_args

import torch

from trainer_server.common import Home
from trainer_server.common.processors import processor_count
from trainer_server.jobs.job_files import CANCELLED, JobFile, TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.base import Ledger
from trainer_server.ledger.registry import ADDRESS, LEDGERS, open_ledger
from trainer_server.policies.store import AdapterStore
from trainer_server.process import faults
from trainer_server.process.files import server_id, write_atomic
from trainer_server.process.hardware import DType, cpu_dtype, release_memory
from trainer_server.training.grpo.batch import Origin
from trainer_server.training.grpo.loss import LOSSES, register_loss
from trainer_server.training.job_runner import JobRunner, remedy
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.ranks import ALONE, RankFailed, RankLost, Ranks
from trainer_server.wire import ARTError, ConfigError, TrainingError

log = logging.getLogger("trainer")

_POLL = 0.02
"""Seconds between two reads of the queue."""
_LIST_EVERY = 1.0
"""Seconds between two lists of the queue at most: a job may be accepted within the same tick of the file system's clock
as the last list."""
_REPORT_EVERY = 1.0
"""Seconds until a report that could not be written is tried again."""


class Worker:
    """Does jobs on one base model. Holds no state between jobs that is not on disk.

    Of several ranks, the first takes jobs and writes files; the others compute with it when it asks them to.

    Args:
        home: State directory of the server.
        model: The base model with room for a LoRA.
        ledger: Where completions are read.
        origin: Completions of others are skipped; versions carry its revision.
        ranks: The processes that compute a step together.
        takes_turns: The engines use the same GPUs. This process computes when the server gives it the turn.
    """

    def __init__(
        self,
        home: Home,
        model: PolicyModel,
        *,
        ledger: Ledger,
        origin: Origin,
        ranks: Ranks = ALONE,
        takes_turns: bool = False,
    ) -> None:
        self.home, self.model, self.ledger = home, model, ledger
        self.ranks, self.takes_turns = ranks, takes_turns
        self.queue = JobQueue(home.jobs)
        self.store = AdapterStore(home.policies)
        self._runner = JobRunner(self.queue, self.store, ledger, model, origin, ranks)

    def run(self) -> None:
        """Works until the process that started this one is gone."""
        starter = os.getppid()
        self.store.clean()
        finished_ids: set[str] = set()
        job_ids: list[str] = []
        last_change, last_list = -1.0, -math.inf
        while os.getppid() == starter:
            change = self.queue.changed_at()
            if change != last_change or time.monotonic() - last_list >= _LIST_EVERY:
                last_change, last_list = change, time.monotonic()
                job_ids = [job_id for job_id in self.queue.open_ids() if job_id not in finished_ids]
            # The order of a policy's versions is that of its jobs: later ones wait.
            while job_ids and self._finish(job_ids[0]):
                finished_ids.add(job_ids.pop(0))
            time.sleep(_POLL)

    def _finish(self, job_id: str) -> bool:
        """Does a job if its time has come. Returns whether there is nothing left to do for it."""
        if self.queue.training_outcome(job_id) is not None:
            return True
        try:
            if not self.queue.ready(job_id):
                return False
            job = self.queue.file(job_id)
        except TrainingError as error:  # a damaged record: reported, and in no other job's way
            log.error("%s failed: %s", job_id, error)
            self._report(job_id, TrainingOutcome(error=str(error)))
            return True
        if self.takes_turns and job.kind != "create" and not self.queue.has_turn(job_id):
            return False
        self.do(job)
        return True

    def follow(self) -> None:
        """Computes steps and warm starts with the first rank, until that is gone. An error that not all ranks raise
        fails the job and ends this process, and with it the others, which would wait for it."""
        while True:
            order = json.loads(self.ranks.next_order())
            try:
                self._runner.compute(order["job"], order["version"])
            except ARTError as error:  # raised by all ranks: the first reports it
                log.info("%s: %s", order["job"], error)
            except RankFailed as error:  # the first rank cannot know why
                self._report(order["job"], TrainingOutcome(error=str(error)))
                raise

    def do(self, job: JobFile) -> None:
        """Does one job and reports how it ended. A job that cannot be done is reported as failed; the next one runs.

        With several ranks, an error in the middle of a step ends this process too, because others may wait for it. The
        server starts all of them again. A step during which another rank was killed is taken again; the server gives up
        a job that the ranks die of again and again.
        """
        start = time.monotonic()
        try:
            if not self.queue.start(job.id):
                return self._report(job.id, CANCELLED)
            faults.point("started")
            if self.takes_turns and job.kind != "create":
                self.model.wake()
            outcome = TrainingOutcome(result=self._runner.do(job))
        except ARTError as error:
            log.error("%s failed: %s", job.id, error)
            outcome = TrainingOutcome(error=str(error))
        except OSError as error:
            log.error("%s failed: %s", job.id, error)
            outcome = TrainingOutcome(error=f"{error}. {remedy(error)}")
        except RankLost:  # not reported: the rank that failed has reported why, or the job is done again
            raise
        except RankFailed as error:
            self._report(job.id, TrainingOutcome(error=str(error)))
            raise
        except Exception as error:  # the edge of a job: recorded, and not fatal to the next one
            log.exception("%s failed", job.id)
            outcome = TrainingOutcome(error=f"{type(error).__name__}: {error}")
        if self.takes_turns:  # not before the error is gone, whose traceback holds what was computed
            self.model.rest()
        release_memory()
        outcome.seconds = time.monotonic() - start
        self._report(job.id, outcome)
        faults.point("trained")
        log.info("%s %s %s in %.2f s", job.id, job.kind, job.policy, outcome.seconds)

    def _report(self, job_id: str, outcome: TrainingOutcome) -> None:
        """Writes the report, however long that cannot be done: without it the job would never end."""
        while True:
            try:
                faults.point("reporting")
                return self.queue.report(job_id, outcome)
            except OSError as error:
                log.error("%s is done, but that cannot be written down; it is tried again: %s", job_id, error)
                time.sleep(_REPORT_EVERY)


def _end_with(starter: int) -> None:
    """Ends this process at once when its starter is gone: another trainer may be at its job already."""
    while os.getppid() == starter:
        time.sleep(0.2)
    os._exit(1)


def main() -> None:
    """Runs the trainer process; see `--help`."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="state directory of the server")
    parser.add_argument("--model", required=True, help="directory of the base model")
    parser.add_argument("--base-model", required=True, help="its name; completions of other base models are refused")
    parser.add_argument("--tokenizer", required=True, help="fingerprint; completions of other tokenizers are refused")
    parser.add_argument("--revision", help="commit of a base model from the hub; versions carry it")
    parser.add_argument(
        "--ledger",
        default=os.environ.get(ADDRESS, "sqlite"),
        help=f"{', '.join(LEDGERS)}, or module:factory; the address of a PostgreSQL database in {ADDRESS}",
    )
    dtype = "bfloat16" if torch.cuda.is_available() else cpu_dtype()
    parser.add_argument(
        "--dtype", default=dtype, choices=get_args(DType), help=f"of the base model (on this machine {dtype})"
    )
    parser.add_argument("--quantization", choices=["4bit", "8bit"], help="of the base model, by bitsandbytes; on GPUs")
    parser.add_argument("--shard", action="store_true", help="divide the base model among the ranks (FSDP2)")
    parser.add_argument("--take-turns", action="store_true", help="with engines, on the same GPUs (serve --share-gpu)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code in the model's directory")
    parser.add_argument("--loss", action="append", default=[], help="NAME=MODULE:ATTRIBUTE of another loss; repeatable")
    args = parser.parse_args()
    if args.take_turns and args.quantization:
        parser.error("a base model in fewer bits cannot leave its GPU: take --share-gpu or --quantization, not both")
    try:
        for definition in args.loss:
            register_loss(definition)
    except ConfigError as error:
        parser.error(str(error))
    ranks = Ranks.join(shard=args.shard)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {ranks.label}%(message)s")
    by_accelerate = "TORCHELASTIC_RUN_ID" in os.environ  # which sets OMP_NUM_THREADS to 1, without a reason
    if by_accelerate or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, processor_count() // ranks.local_count))
    start = time.monotonic()
    home = Home.find(args.home)
    model = PolicyModel(
        args.model,
        dtype=getattr(torch, args.dtype),
        quantization=args.quantization,
        ranks=ranks,
        rest=args.take_turns,
        trust_remote_code=args.trust_remote_code,
        cache=home.cache / "layers",
    )
    log.info("base model loaded in %.1f s", time.monotonic() - start)
    worker = Worker(
        home,
        model,
        ledger=open_ledger(args.ledger, home),
        origin=Origin(args.base_model, args.tokenizer, server_id(home), args.revision),
        ranks=ranks,
        takes_turns=args.take_turns,
    )
    if ranks.first:
        about = {"pid": os.getpid(), "ready": time.time(), "losses": list(LOSSES), "model": args.model, **model.sharing}
        write_atomic(home.root / "trainer.json", json.dumps(about))
        worker.run()
    else:
        worker.follow()


if __name__ == "__main__":
    main()
