"""A ledger that is defined outside the packages: lines of JSON.

It is taken by `--ledger tests.support.homes.other_ledger:open_lines`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer_server.common import Home
from trainer_server.common.jsonl import read_jsonl, to_json
from trainer_server.process.files import write_atomic
from trainer_server.wire import Completion


class LinesLedger:
    """Appends each completion as a line of a file, and reads the whole file to find one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = asyncio.Lock()

    async def add(self, *completions: Completion) -> None:
        async with self._turn:
            await asyncio.to_thread(self._append, "".join(f"{to_json(row)}\n" for row in completions))

    def read(self, ids: Sequence[str]) -> dict[str, Completion]:
        known = self._all()
        return {one: known[one] for one in ids if one in known}

    def rollout(self, rollout_id: str) -> list[Completion]:
        return sorted((row for row in self._all().values() if row.rollout == rollout_id), key=lambda row: row.created)

    def sampled_versions(self, ids: Sequence[str]) -> set[tuple[str, int]]:
        return {
            (row.policy, row.version)
            for row in self.read(ids).values()
            if row.policy is not None and row.version is not None
        }

    def purge(self, *, keep: Iterable[str] = (), days: float = 30.0, most_bytes: int | None = None) -> int:
        before, spared, known = time.time() - days * 86400, set(keep), self._all()
        kept, size = [], 0
        for row in sorted(known.values(), key=lambda row: -row.created):
            size += len(to_json(row))
            if row.id in spared or (row.created >= before and (most_bytes is None or size <= most_bytes)):
                kept.insert(0, row)
        if len(kept) < len(known):
            write_atomic(self.path, "".join(f"{to_json(row)}\n" for row in kept))
        return len(known) - len(kept)

    def close(self) -> None:
        pass

    def _append(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _all(self) -> dict[str, Completion]:
        if not self.path.exists():
            return {}
        return {row.id: row for row in read_jsonl(self.path, Completion.model_validate)}


def open_lines(home: Home) -> LinesLedger:
    return LinesLedger(home.root / "completions.jsonl")
