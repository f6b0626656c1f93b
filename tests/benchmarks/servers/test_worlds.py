"""The worlds of the benchmark: the same seed makes the same world."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.servers.database import make_database
from benchmarks.servers.files import make_files
from benchmarks.servers.graph import make_graph
from benchmarks.servers.registry import SERVERS, MakeWorld
from benchmarks.servers.repository import AUTHORS, BRANCHES, COMMITS, make_repository


def content(root: Path) -> str:
    """Digest of all files below a directory, that of Git aside, and of the commits of a repository."""
    digest = hashlib.sha256()
    for path in sorted(one for one in root.rglob("*") if one.is_file() and ".git" not in one.parts):
        digest.update(f"{path.relative_to(root)}".encode() + path.read_bytes())
    for git in sorted(root.rglob(".git")):
        said = subprocess.run(["git", "-C", str(git.parent), "for-each-ref"], capture_output=True, check=True)
        digest.update(said.stdout)
    return digest.hexdigest()


@pytest.mark.parametrize("make", [make_repository, make_files, make_graph], ids=lambda make: make.__name__)
def test_a_seed_makes_the_same_world(make: MakeWorld, tmp_path: Path) -> None:
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        made = make(tmp_path / name, seed)
        assert made.exists()
        assert made.parent == tmp_path / name
        digests.append(content(tmp_path / name))
    assert digests[0] == digests[1] != digests[2]


INSTALLED = ("mcp-server-duckdb", "tackit")
"""Servers whose worlds are made with their own packages."""

EMPTY = ("calc-mcp", "clinical-calc-mcp", "mcp-gnu-units")
"""Servers that keep nothing, so that their world is an empty directory."""

WORLDS = [name for name, server in SERVERS.items() if server.world and name not in (*INSTALLED, *EMPTY)]


@pytest.mark.parametrize("name", WORLDS)
def test_each_server_has_a_world_that_its_seed_makes(name: str, tmp_path: Path) -> None:
    make = SERVERS[name].world
    assert make is not None
    digests = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / folder).mkdir()
        assert make(tmp_path / folder, seed).parent == tmp_path / folder
        files = [path for path in (tmp_path / folder).rglob("*") if path.is_file() and path.stat().st_size]
        assert files
        digests.append(content(tmp_path / folder))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", EMPTY)
def test_a_server_that_keeps_nothing_has_an_empty_world(name: str, tmp_path: Path) -> None:
    make = SERVERS[name].world
    assert make is not None
    assert list(make(tmp_path, 0).iterdir()) == []


def test_a_database_has_rows_that_fit_together(tmp_path: Path) -> None:
    with closing(sqlite3.connect(make_database(tmp_path, 0))) as database:
        joined = "customers c ON c.id = customer_id JOIN products p ON p.id = product_id"
        assert database.execute(f"SELECT count(*) FROM orders JOIN {joined}").fetchone() == (30,)


def test_a_repository_has_authors_branches_and_changes(tmp_path: Path) -> None:
    made = make_repository(tmp_path, 0)

    def git(*words: str) -> list[str]:
        return subprocess.run(["git", "-C", str(made), *words], capture_output=True, text=True).stdout.splitlines()

    assert len(git("log", "--format=%h")) == COMMITS
    assert 1 < len(set(git("log", "--format=%an"))) <= AUTHORS
    assert len(git("branch")) == BRANCHES + 1
    assert len(git("tag")) == 2
    assert len(git("status", "--porcelain")) == 2
