"""Two jobs by all ranks that a launcher has started; rank 1 cannot read the ledger for the first: `… DIRECTORY`.

The directory is that of `make_worker`. The first rank writes `reports.json`, what came of the jobs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.support.training.worker import groups, step
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.ranks import Ranks
from trainer_server.training.worker import Worker
from trainer_server.wire import Completion, Home


class AwayOnce(SQLiteLedger):
    """Cannot be read the first time."""

    away = True

    def read(self, ids: Sequence[str]) -> dict[str, Completion]:
        if self.away:
            self.away = False
            raise LedgerError("the database is away")
        return super().read(ids)


def main(where: Path) -> None:
    ranks = Ranks.join()
    torch.set_num_threads(1)
    home = Home(where / "home")
    ledger = SQLiteLedger(home.ledger) if ranks.first else AwayOnce(home.ledger)
    model = PolicyModel(str(where / "model"), dtype=torch.float32, device="cpu", ranks=ranks)
    worker = Worker(home, model, ledger=ledger, base_model="tiny", tokenizer="tok", ranks=ranks)
    if ranks.first:
        reports = [step(worker, groups(1.0, 0.0)).model_dump() for _ in range(2)]
        (where / "reports.json").write_text(json.dumps(reports))
        ranks.leave()
        return
    try:
        worker.follow()
    except RuntimeError as error:  # the first rank is gone
        print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
