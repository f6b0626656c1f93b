"""Observes any file: its content, and whether it can be executed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from art_mcp.worlds.observers.observer import Show

LARGE = 16 * 1024 * 1024
"""Bytes from which on a file is known by its digest alone."""


class FileObserver:
    """The observer of all files that no other one claims. It is asked last."""

    def claims(self, path: Path) -> bool:
        return path.is_file()

    def files(self, path: Path) -> Iterable[Path]:
        return [path]

    def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
        status = os.stat(path)
        executable = {"mode": "executable"} if status.st_mode & 0o100 else {}
        if status.st_size <= LARGE:
            return {"content": show(path.read_bytes()), **executable}
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"content": f"{status.st_size:,} bytes, sha256 {digest[:32]}", **executable}
