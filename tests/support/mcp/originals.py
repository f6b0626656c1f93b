"""What worlds are made of: a repository, a database in WAL mode, files; and a digest of all that must stay as it is."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
from pathlib import Path


def git(repository: Path, *words: str) -> str:
    """Runs git in a repository as somebody."""
    command = ["git", "-C", str(repository), "-c", "user.name=A", "-c", "user.email=a@example.com", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_repository(path: Path, branches: tuple[str, ...] = ("feature",)) -> Path:
    """A repository of two commits, with branches and an unstaged change."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    for text in ("one\n", "one\ntwo\n"):
        (path / "notes.txt").write_text(text)
        git(path, "add", ".")
        git(path, "commit", "-q", "-m", f"{text.count(chr(10))} lines")
    for branch in branches:
        git(path, "branch", branch)
    (path / "notes.txt").write_text("changed\n")
    return path


def make_database(path: Path) -> sqlite3.Connection:
    """A database in WAL mode whose rows are in the log still: as long as the connection is open."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma wal_autocheckpoint=0")
    database.execute("create table users (id integer primary key, name text, made text default current_timestamp)")
    database.execute("insert into users (name) values ('Ada'), ('Bob')")
    return database


def digest(path: Path) -> dict[str, tuple[str, int, int]]:
    """Content, mode and time of change of every file below a path, and of the directories. Of a database's `-shm`,
    which has the locks of its readers, only that it is there."""
    entries = [path, *path.rglob("*")] if path.is_dir() else [path]
    found = {}
    for entry in sorted(entries):
        status = os.lstat(entry)
        if entry.name.endswith("-shm"):
            found[str(entry)] = ("locks", 0, 0)
            continue
        data = os.readlink(entry).encode() if entry.is_symlink() else entry.read_bytes() if entry.is_file() else b""
        found[str(entry)] = (hashlib.sha256(data).hexdigest(), status.st_mode, status.st_mtime_ns)
    return found
