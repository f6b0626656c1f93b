"""The server's side of training without a server: what the trainer process would do, the tests do."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.homes.versions import slots_over
from trainer_server.common import Home
from trainer_server.engines.base import Engine
from trainer_server.engines.pool import Engines
from trainer_server.engines.served_model import resolve
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.service import JobOptions, JobService
from trainer_server.jobs.trainer_process import TrainerSettings
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.policies.deployment import Deployment
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Conversation, GroupRef, SFTRequest, StepRequest

STEP = StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[])])
_LINES = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
WARM_START = SFTRequest(conversations=[Conversation(messages=_LINES)])


def service_of(board: JobQueue, home: Home, base: Path, *engine: Engine, **options: Any) -> JobService:
    """A job service, without engines unless they are given."""
    store, engines = AdapterStore(home.policies), Engines(engine)
    names = PolicyNames(store)
    return JobService(
        TrainerSettings(home=home, base=resolve(str(base), home.cache, print), tokenizer="t"),
        board,
        Deployment(store, names, slots_over(store, names, engines), engines),
        SQLiteLedger(home.ledger),
        JobOptions(**options),
    )


def sleeping_trainer(home: Home) -> list[str]:
    """The command of a trainer that says that it is ready, and then does nothing."""
    about = json.dumps({"pid": 0, "ready": time.time() + 3600, "losses": []})
    code = f"import time; open({str(home.root / 'trainer.json')!r}, 'w').write({about!r}); time.sleep(600)"
    return [sys.executable, "-c", code]
