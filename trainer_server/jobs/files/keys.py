"""Idempotency keys: which job a key made, so that a request that is sent again makes no second one."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from trainer_server.jobs.files.job_file import JobFile
from trainer_server.process.files import write_atomic
from trainer_server.wire import SFTRequest, StepRequest

log = logging.getLogger("trainer_server")

_WITHOUT_JOB = 3600.0
"""Seconds for which a key may be there without its job, which is written after it."""


class KeyFile(BaseModel):
    """Content of keys/<digest>.json.

    Attributes:
        job: Id of the job that was accepted under the key.
        request: Digest of its request.
    """

    job: str
    request: str


class IdempotencyKeys:
    """The directory `jobs/keys/`.

    Args:
        jobs: The directory `jobs/`.
    """

    def __init__(self, jobs: Path) -> None:
        self._jobs = jobs

    def write(self, file: JobFile) -> None:
        """Writes which job a key makes; does nothing for a job without a key. Call it before the job is written."""
        if file.request and file.key:
            known = KeyFile(job=file.id, request=digest(file.request))
            write_atomic(self._path(file.policy, file.key), known.model_dump_json())

    def find(self, policy: str, key: str) -> KeyFile | None:
        """The job that was accepted under a key; None: there is none, or it was deleted."""
        try:
            known = KeyFile.model_validate_json(self._path(policy, key).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            log.error("a damaged file in jobs/keys is left out, for key %r of %s: %s", key, policy, error)
            return None
        return known if (self._jobs / known.job / "job.json").exists() else None

    def prune(self) -> None:
        """Deletes the keys of jobs that are gone, or were never written."""
        for path in (self._jobs / "keys").glob("*.json"):
            with suppress(OSError, ValueError):
                known = KeyFile.model_validate_json(path.read_text())
                if path.stat().st_mtime < time.time() - _WITHOUT_JOB and not (self._jobs / known.job).is_dir():
                    path.unlink()

    def _path(self, policy: str, key: str) -> Path:
        name = hashlib.sha256(json.dumps([policy, key]).encode()).hexdigest()
        return self._jobs / "keys" / f"{name}.json"


def digest(request: StepRequest | SFTRequest) -> str:
    """Digest of a request: two requests with one idempotency key must be equal."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()
