"""Jobs of which some fail on one rank only, by all ranks that a launcher has started: `… DIRECTORY [--shard]`.

The directory is that of `make_worker`. Rank 1 cannot read the ledger for the first job, and the first rank runs out of
disk within the second one. With `--shard` the base model is divided, and rank 1 fails within the forward pass of the
only job. The first rank writes `reports.json`, what came of the jobs, and `sockets.json`, on what the launcher and its
ranks listen.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from tests.support.sockets import listening
from tests.support.training.worker import groups, step
from trainer_server.common import Home
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.training.grpo.batch import Origin
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.ranks import Ranks
from trainer_server.training.worker import Worker
from trainer_server.wire import Completion


class AwayOnce(SQLiteLedger):
    """Cannot be read the first time."""

    away = True

    def read(self, ids: Sequence[str]) -> dict[str, Completion]:
        if self.away:
            self.away = False
            raise LedgerError("the database is away")
        return super().read(ids)


class FullOnce(PolicyModel):
    """Computes nothing the first time: the disk is full, as when a kernel is compiled."""

    full = True

    def logprobs(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.full:
            self.full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().logprobs(*args, **kwargs)


def main(where: Path, shard: bool) -> None:
    ranks = Ranks.join(shard=shard)
    torch.set_num_threads(1)
    home = Home(where / "home")
    ledger = SQLiteLedger(home.ledger) if ranks.first or shard else AwayOnce(home.ledger)
    kind = FullOnce if ranks.first != shard else PolicyModel
    model = kind(str(where / "model"), dtype=torch.float32, device="cpu", ranks=ranks)
    worker = Worker(home, model, ledger=ledger, origin=Origin("tiny", "tok"), ranks=ranks)
    if not ranks.first:
        worker.follow()
    reports = [step(worker, groups(1.0, 0.0)).model_dump() for _ in range(3)]
    (where / "sockets.json").write_text(json.dumps(listening(psutil.Process(os.getppid()))))
    (where / "reports.json").write_text(json.dumps(reports))
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--shard" in sys.argv)
