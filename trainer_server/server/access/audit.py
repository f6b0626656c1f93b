"""The audit log: who did what, to what, when, and how it ended. Lines are only ever added; nothing of a body is in it.

`audit/audit.jsonl` in the home is written; `audit.1.jsonl` and so on are older, `audit.1.jsonl` the newest of them.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from trainer_server.common import Home
from trainer_server.common.home import create_private
from trainer_server.common.jsonl import append_jsonl, read_jsonl
from trainer_server.process.files import flush
from trainer_server.wire.text import writable

log = logging.getLogger("trainer_server")

_MOST_BYTES = 16 * 2**20
"""Size of a file after which another one is begun."""
_OLDER_FILES = 10
"""Files beside the one that is written."""
_MOST_TEXT = 300
"""Characters of a name or a target."""


class AuditEntry(BaseModel):
    """A line of the audit log."""

    time: datetime
    """In UTC."""
    who: str
    """Name of the token, `server-key`, or `cli:` and the user of the machine; `-`: somebody without a token."""
    owner: str | None = None
    """Owner of the token; None: it has none."""
    action: str
    """What was asked for, such as `policy.promote`."""
    target: str
    """What it was done to, such as `agent@3`."""
    result: Literal["ok", "refused", "failed"]
    """refused: the request had no right to it, or could not be done as things are. failed: the server failed."""
    status: int | None = None
    """HTTP status; None: a command of this machine, or its client left before the answer."""
    address: str | None = None
    """Of the client; None: a command of this machine."""


class AuditLog:
    """The files of the log. Several processes may add to it.

    Args:
        home: Where the files are.
        most_bytes: Size of a file after which another one is begun.
        kept_files: Number of files beside the one that is written.
    """

    def __init__(self, home: Home, most_bytes: int = _MOST_BYTES, kept_files: int = _OLDER_FILES) -> None:
        self.directory = home.audit
        self._most_bytes, self._older_files = most_bytes, kept_files

    def add(
        self,
        who: str,
        action: str,
        target: str,
        result: Literal["ok", "refused", "failed"],
        *,
        owner: str | None = None,
        status: int | None = None,
        address: str | None = None,
    ) -> None:
        """Adds a line, whole or not at all. When this returns, it survives a crash.

        Args:
            who: As `AuditEntry` has it; so are the others.
            action: Name of the action, such as `policy.promote`.
            target: What it was done to.
            result: How it ended.
            owner: Of the token.
            status: HTTP status.
            address: Of the client.

        Raises:
            OSError: The line could not be written.
        """
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "who": writable(who[:_MOST_TEXT]),
            "owner": owner,
            "action": action,
            "target": writable(target[:_MOST_TEXT]),
            "result": result,
            "status": status,
            "address": address,
        }
        line = {name: value for name, value in entry.items() if value is not None}
        lock = self.directory / "lock"
        create_private(lock)
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._rotate()
            append_jsonl(self._file(0), [line])
            flush(self._file(0))

    def entries(self, since: float | None = None, skip: Callable[[str], None] = log.warning) -> Iterator[AuditEntry]:
        """The lines, oldest first.

        Args:
            since: Leaves out those before this Unix time.
            skip: Called with what is wrong with a line that is no entry: a crash or a full disk broke it off, or
                somebody changed it. The others are read.

        Raises:
            ConfigError: A file cannot be read.
        """
        for number in range(self._older_files, -1, -1):
            if not self._file(number).exists():
                continue
            what = "entry of the audit log"
            for entry in read_jsonl(self._file(number), AuditEntry.model_validate, what=what, skip=skip):
                if since is None or entry.time.timestamp() >= since:
                    yield entry

    def _rotate(self) -> None:
        current = self._file(0)
        if not current.exists() or current.stat().st_size < self._most_bytes:
            return
        for number in range(self._older_files - 1, -1, -1):
            if self._file(number).exists():
                os.replace(self._file(number), self._file(number + 1))

    def _file(self, number: int) -> Path:
        return self.directory / (f"audit.{number}.jsonl" if number else "audit.jsonl")
