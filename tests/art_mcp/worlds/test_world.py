"""A world and its copies: alike, apart, observed, removed; the originals stay as they are."""

from __future__ import annotations

import inspect
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from art_mcp.worlds.change import Change
from art_mcp.worlds.copying import Copier
from art_mcp.worlds.files import remove_tree
from art_mcp.worlds.observers.observer import Show
from art_mcp.worlds.world import Copy, World
from tests.support.mcp.originals import digest, git, make_database, make_repository
from trainer_server.wire import ConfigError


@contextmanager
def opened(world: World) -> Iterator[World]:
    world.open()
    try:
        yield world
    finally:
        world.close()


def texts(copy: Copy) -> list[str]:
    return [str(change) for change in copy.changes()]


@pytest.mark.slow
def test_copies_are_alike_and_apart_and_the_originals_stay_as_they_are(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a")
    with closing(make_database(tmp_path / "files" / "shop.db")):
        before = digest(tmp_path)
        with opened(World([repository, tmp_path / "files"], scratch=tmp_path.with_name("w"))) as world:
            first, second = world.copy(), world.copy()
            (first.directory / "files" / "a.txt").write_text("b")
            with closing(sqlite3.connect(first.directory / "files" / "shop.db", isolation_level=None)) as database:
                assert database.execute("select name from users").fetchall() == [("Ada",), ("Bob",)]
                database.execute("update users set name = 'Eve' where id = 2")
            git(first.directory / "repo", "checkout", "-q", "-f", "-b", "new")
            assert texts(first) == [
                "/world/files/a.txt: content was a and is now b",
                '/world/files/shop.db: users[id=2].name was "Bob" and is now "Eve"',
                *[line for line in texts(first) if line.startswith("/world/repo")],
            ]
            assert second.changes() == []
            assert world.in_use == 2
            world.remove(first)
            assert (world.made, world.removed, world.in_use) == (2, 1, 1)
            assert not first.root.exists()
        assert not second.root.exists()
        assert digest(tmp_path) == before


@pytest.mark.slow
def test_a_command_gets_the_paths_of_a_copy(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo")
    with opened(World(repository, scratch=tmp_path / "w")) as world:
        copy = world.copy()
        assert copy.home == copy.directory / "repo"
        assert copy.path("--repository={world}") == f"--repository={copy.home}"
        assert copy.path(f"{repository}/notes.txt") == f"{copy.home}/notes.txt"
        assert copy.from_copy({"text": [f"{copy.home}/notes.txt"]}) == {"text": ["/world/repo/notes.txt"]}
        with pytest.raises(ConfigError, match="world:other"):
            copy.path("{world:other}")


def test_links_into_an_original_lead_into_the_copy_and_others_are_named(tmp_path: Path) -> None:
    for name in ("one", "two", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    (tmp_path / "one" / "own").symlink_to(tmp_path / "one" / "f")
    (tmp_path / "one" / "other").symlink_to(tmp_path / "two" / "f")
    (tmp_path / "one" / "near").symlink_to("f")
    (tmp_path / "one" / "far").symlink_to("../out/f")
    before = digest(tmp_path / "two")
    with opened(World([tmp_path / "one", tmp_path / "two"], scratch=tmp_path / "w")) as world:
        one = world.copy().directory / "one"
        for name in ("own", "other", "near"):
            (one / name).write_text("written")
        assert (one / "far").read_text() == "out"
        (note,) = world.notes
        assert "far leads to" in note
        assert "out of the world" in note
    assert digest(tmp_path / "two") == before
    assert (tmp_path / "one" / "f").read_text() == "one"


def test_what_a_server_does_when_it_starts_is_no_change_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        (copy.home / "log").write_text("started")
        copy.begin()
        assert copy.changes() == []
        (copy.home / "log").write_text("started\ncalled")
        (copy.home / "new").mkdir()
        assert texts(copy) == [
            "/world/data/log: content was started and is now started\ncalled",
            "/world/data/new: directory is new: there",
        ]


def test_a_path_in_what_was_written_is_the_same_in_every_copy(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        values = []
        for copy in (world.copy(), world.copy()):
            (copy.home / "a").write_text(f"see {copy.home}/b")
            values.append(copy.changes())
        assert values[0] == values[1] == [Change(where="/world/data/a", what="content", after="see /world/data/b")]


def test_names_and_contents_that_are_no_unicode_can_be_stored(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        name = os.fsencode(copy.home) + b"/\xff"
        Path(os.fsdecode(name)).write_bytes(b"\xff")
        os.symlink(b"\xfe", name + b"-link")
        found = [change.model_dump_json() for change in copy.changes()]
        assert len(found) == 2
        assert "�-link" in found[1]


def test_what_was_not_written_is_not_read_again(tmp_path: Path) -> None:
    read = []

    class Lines:
        """Observes text files by their lines."""

        def claims(self, path: Path) -> bool:
            return path.suffix == ".txt"

        def files(self, path: Path) -> list[Path]:
            return [path]

        def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
            read.append(path.name)
            return {f"line {number}": show(line) for number, line in enumerate(path.read_text().splitlines(), 1)}

    (tmp_path / "data").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "data" / name).write_text("x\ny\n")
    with opened(World(tmp_path / "data", observers=[Lines()], scratch=tmp_path / "w")) as world:
        read.clear()
        copy = world.copy()
        (copy.home / "a.txt").write_text("x\nz\n")
        assert texts(copy) == ["/world/data/a.txt: line 2 was y and is now z"]
        assert read == ["a.txt"]


@pytest.mark.slow
def test_what_a_run_broke_is_a_change(tmp_path: Path) -> None:
    make_database(tmp_path / "shop.db").close()
    repository = make_repository(tmp_path / "repo")
    with opened(World([tmp_path / "shop.db", repository], scratch=tmp_path / "w")) as world:
        copy = world.copy()
        with (copy.directory / "shop.db").open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 4000)
        (copy.directory / "repo" / ".git" / "HEAD").write_text("nothing")
        found = {change.where: change for change in copy.changes() if change.what == "unreadable"}
        assert set(found) == {"/world/shop.db", "/world/repo"}


@pytest.mark.slow
def test_no_object_of_a_repository_is_shared_by_copies(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo")
    with opened(World(repository, scratch=tmp_path / "w")) as world:
        first, second = world.copy(), world.copy()
        objects = [path for path in (first.home / ".git" / "objects").rglob("*") if path.is_file()]
        assert objects
        assert all(path.stat().st_nlink == 1 for path in objects)
        before = digest(second.root)
        git(first.home, "commit", "-q", "-a", "-m", "more")
        git(first.home, "gc", "-q", "--prune=now", "--aggressive")
        git(first.home, "branch", "-D", "feature")
        assert digest(second.root) == before
        assert git(second.home, "fsck", "--strict") == ""
        assert world.copy().changes() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["worktree", "submodule", "bare", "configured", "linked", "of-bare"])
def test_nothing_in_a_copy_of_a_repository_leads_back(how: str, tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    original = main
    if how == "worktree":
        git(main, "worktree", "add", "-q", str(tmp_path / "linked"), "feature")
        original = tmp_path / "linked"
    elif how == "submodule":
        original = make_repository(tmp_path / "outer")
        git(original, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(main), "inner")
    elif how == "bare":
        git(tmp_path, "clone", "-q", "--bare", str(main), "bare")
        original = tmp_path / "bare"
    elif how == "of-bare":
        git(tmp_path, "clone", "-q", "--bare", str(main), "project/.bare")
        git(tmp_path / "project" / ".bare", "worktree", "add", "-q", str(tmp_path / "project" / "main"), "main")
        original = tmp_path / "project" / "main"
    elif how == "linked":
        (main / ".git").rename(tmp_path / "real")
        (main / ".git").symlink_to("../real")
    else:
        git(main, "config", "core.worktree", str(main))
        git(main, "worktree", "add", "-q", str(tmp_path / "linked"), "feature")
    before = digest(tmp_path)
    with opened(World(original, scratch=tmp_path.with_name("scratch"))) as world:
        for copy in (world.copy(), world.copy()):
            assert git(copy.home, "for-each-ref") == git(original, "for-each-ref")
            at = copy.home / "inner" if how == "submodule" else copy.home
            if how != "bare":
                (at / "notes.txt").write_text("in the copy\n")
                git(at, "add", ".")
                git(at, "commit", "-q", "-m", "in the copy")
                git(at, "worktree", "prune")
            git(at, "branch", "made")
            git(at, "tag", "marked")
            assert {"branch made", "tag marked"} <= {change.what for change in copy.changes()}
    assert digest(tmp_path) == before


def test_a_repository_that_git_works_on_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = make_repository(tmp_path / "repo")
    monkeypatch.setattr("art_mcp.worlds.repository.LOCK_TIMEOUT", 0.1)
    (repository / ".git" / "index.lock").touch()
    with pytest.raises(ConfigError, match=r"index\.lock is there: wait for the git process"):
        World(repository, scratch=tmp_path / "w").open()
    assert list((tmp_path / "w").iterdir()) == [tmp_path / "w" / "lock"]


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match=r"file/cache/worlds cannot be written: .*with ART_CACHE"):
        World(tmp_path / "data").open()


def test_a_slow_copy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("a")
    file = Copier.file

    def slow(self: Copier, source: str, target: str) -> None:
        time.sleep(0.01)
        file(self, source, target)

    monkeypatch.setattr(Copier, "file", slow)
    monkeypatch.setattr("art_mcp.worlds.world.SLOW", 0.005)
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        (note,) = world.notes
        assert re.match(r"a copy of the world takes \d+\.\d s: /world/data \(directory ", note)
        assert note.endswith("1 files, 0.0 MB")


def test_the_copies_are_in_the_cache_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    with opened(World(tmp_path / "data")) as world:
        assert world.copy().root.is_relative_to(os.path.realpath(tmp_path / "cache" / "worlds"))


def test_links_through_other_links_into_an_original_lead_into_the_copy(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_text("first")
    (tmp_path / "short").symlink_to(tmp_path)
    (tmp_path / "data" / "absolute").symlink_to(tmp_path / "short" / "data" / "f")
    (tmp_path / "data" / "relative").symlink_to("../short/data/f")
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        for name in ("absolute", "relative"):
            (copy.home / name).write_text(name)
            assert (copy.home / "f").read_text() == name
    assert (tmp_path / "data" / "f").read_text() == "first"


def test_a_word_that_leads_into_an_original_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        for word in ("../data", f"-v{tmp_path}/link:/x", "~/link/a", f"-d=file://{tmp_path}/out/../data", "a=../data"):
            assert copy.led_into(word, tmp_path / "out") == tmp_path / "data", word
        for word in ("data", "", "python", "--flag", str(tmp_path / "out"), str(copy.home), f"{tmp_path}/data2"):
            assert copy.led_into(word, tmp_path / "out") is None, word


def test_a_world_that_has_the_copies_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"overlap: set ART_CACHE"):
        World(tmp_path, scratch=tmp_path / "cache" / "worlds")
    (tmp_path / "w" / "data").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"overlap: set ART_CACHE"):
        World(tmp_path / "w" / "data", scratch=tmp_path / "w")


def test_a_copy_that_fails_halfway_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("a")
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copies = world.copy().root.parent
        before = sorted(copies.iterdir())

        def full(self: Copier, source: str, target: str) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Copier, "file", full)
        with pytest.raises(OSError, match="No space left"):
            world.copy()
        assert sorted(copies.iterdir()) == before
        assert world.made == 1


def test_a_broken_repository_is_a_change_each_time(tmp_path: Path) -> None:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        for leads in ("../nowhere", "/", str(Path(__file__).parents[3] / ".git")):
            (copy.home / "sub" / ".git").write_text(f"gitdir: {leads}\n")
            assert [(change.where, change.what) for change in copy.changes()] == [("/world/data/sub", "unreadable")]


def test_what_cannot_be_observed_at_the_start_is_said(tmp_path: Path) -> None:
    class Broken:
        """Cannot say what it reads, or what it observes."""

        def claims(self, path: Path) -> bool:
            if path.suffix == ".md":
                raise ValueError("no claim")
            return path.suffix == ".txt"

        def files(self, path: Path) -> list[Path]:
            raise OSError("no files")

        def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
            raise OSError("no reading")

    (tmp_path / "data").mkdir()
    for name in ("a.txt", "b.md"):
        (tmp_path / "data" / name).touch()
    with opened(World(tmp_path / "data", observers=[Broken()], scratch=tmp_path / "w")) as world:
        assert [note.rpartition(": ")[2] for note in world.notes] == ["no reading", "no claim"]
        assert world.copy().changes() == []


def test_a_locked_database_is_not_copied_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_mcp.worlds.database._BUSY", 0.01)
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as writer:
        writer.execute("create table t (a)")
        writer.execute("begin exclusive")
        with pytest.raises(ConfigError, match=r"shop\.db cannot be copied: database is locked"):
            World(tmp_path / "shop.db", scratch=tmp_path / "w").open()


@pytest.mark.slow
def test_a_copy_pushes_to_places_of_the_world_only(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo")
    for name in ("inner", "outer"):
        git(tmp_path, "init", "-q", "--bare", name)
        git(repository, "remote", "add", name, str(tmp_path / name))
    git(repository, "remote", "add", "near", "../inner")
    git(repository, "remote", "add", "far", "git@example.com:a/b.git")
    git(repository, "config", "remote.inner.pushurl", str(tmp_path / "outer"))
    before = digest(tmp_path)
    with opened(World([repository, tmp_path / "inner"], scratch=tmp_path.with_name("scratch-push"))) as world:
        copy, other = world.copy(), world.copy()
        git(copy.home, "push", "-q", "inner", "main")
        git(copy.home, "push", "-q", "near", "main:second")
        assert git(copy.directory / "inner", "branch", "--format=%(refname:short)").split() == ["main", "second"]
        for remote in ("outer", "far"):
            with pytest.raises(subprocess.CalledProcessError) as refused:
                git(copy.home, "push", "-q", remote, "main")
            assert "no-push" in refused.value.stderr
        assert [note.split()[2] for note in world.notes] == ["outer", "far"]
        assert other.changes() == []
    assert digest(tmp_path) == before


def test_a_link_through_a_link_leads_into_the_copy(tmp_path: Path) -> None:
    (tmp_path / "site" / "deep").mkdir(parents=True)
    (tmp_path / "site" / "file").write_text("first")
    for name, leads in {
        "up": "..",
        "cfg": "up/site/file",
        "twice": "deep/../up/site/file",
        "here": ".",
        "near": "here/file",
        "new": "up/site/other",
    }.items():
        (tmp_path / "site" / name).symlink_to(leads)
    (tmp_path / "site" / "deep" / "back").symlink_to("../up/site/file")
    before = digest(tmp_path)
    with opened(World(tmp_path / "site", scratch=tmp_path.with_name("scratch-links"))) as world:
        for name in ("cfg", "twice", "near", "deep/back", "new"):
            copy = world.copy()
            (copy.home / name).write_text(name)
            expected = "other" if name == "new" else "file"
            assert [change.where for change in copy.changes()] == [f"/world/site/{expected}"]
            assert digest(tmp_path) == before
        (world.copy().home / "up" / "site" / "file").write_text("by the link around the world")
        assert digest(tmp_path) == before
        [note] = world.notes
        assert note.endswith("site/up leads to " + f"{tmp_path}, around the world: in the copies it leads to /world")


@pytest.mark.slow
def test_a_repository_without_permission_to_write_is_a_world() -> None:
    code = (
        "import os, sys; from pathlib import Path; from art_mcp.worlds.repository import copy_git\n"
        "from art_mcp.worlds.copying import Copier; source, target = map(Path, sys.argv[1:])\n"
        "os.getuid() or os.setuid(65534)\n"  # to root nothing is read-only
        "copy_git(source, target, source.parent, Copier(), lambda path: None)\n"
        "assert not target.stat().st_mode & 0o222 and (target / 'config').is_file()\n"
    )
    directory = Path(tempfile.mkdtemp())  # pytest's own is closed to others
    try:
        directory.chmod(0o777)
        repository = make_repository(directory / "repo")
        subprocess.run(["chmod", "-R", "a-w", str(repository)], check=True)
        command = [sys.executable, "-c", code, str(repository / ".git"), str(directory / "copy")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    finally:
        remove_tree(directory)


def snapshot_of(copy: Copy) -> Path:
    [found] = [path for path in copy.root.parent.iterdir() if path.is_dir() and path != copy.root]
    return found


@pytest.mark.parametrize("how", ["write", "add", "remove", "mode"])
def test_a_snapshot_that_was_written_is_found_out_before_the_next_copy(how: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("first")
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        assert not (copy.home / "../../../0/world").resolve().exists()
        data = snapshot_of(copy) / "world" / "data"
        assert (data / "a").stat().st_mode & 0o222 == data.stat().st_mode & 0o222 == 0
        assert (copy.home / "a").stat().st_mode & 0o200
        os.chmod(data, 0o755)
        os.chmod(data, 0o555)
        if how == "write":
            os.chmod(data / "a", 0o644)
            (data / "a").write_text("other")
            os.utime(data / "a", ns=(0, (tmp_path / "data" / "a").stat().st_mtime_ns))
            os.chmod(data / "a", 0o444)
        elif how == "add":
            os.chmod(data, 0o755)
            (data / "b").touch()
        elif how == "remove":
            os.chmod(data, 0o755)
            (data / "a").unlink()
        with pytest.raises(OSError, match="was written, which is of the snapshot that all runs begin with"):
            world.copy()
        assert world.in_use == 1


def test_what_is_no_file_is_seen_and_never_opened(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    make_database(tmp_path / "data" / "a.db").close()
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        for name in (".git", "b.db-wal", "b.db", "c.txt"):
            os.mkfifo(copy.home / name)
        with closing(socket.socket(socket.AF_UNIX)) as listening, chdir(copy.home):
            listening.bind("socket")
        os.mkfifo(copy.home / "a.db-journal")
        with (copy.home / "sparse").open("wb") as file:
            file.truncate(200 * 1024**3)
        seen = {(change.where.removeprefix("/world/data"), change.what): change.after for change in copy.changes()}
        pipes = {(name, "pipe") for name in ("", "/a.db-journal", "/b.db", "/b.db-wal", "/c.txt")}
        assert pipes | {("/socket", "socket")} <= seen.keys()
        assert "no regular file" in str(seen["/a.db", "unreadable"])
        assert str(seen["/sparse", "content"]).startswith("214,748,364,800 bytes, not read")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HEAD", "config", "objects/info/alternates", "hooks/pre-push", "packed-refs"])
def test_a_repository_with_a_pipe_is_not_read(name: str, tmp_path: Path) -> None:
    with opened(World(make_repository(tmp_path / "repo"), scratch=tmp_path / "w")) as world:
        copy = world.copy()
        path = copy.home / ".git" / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        assert "unreadable" in {change.what for change in copy.changes()} or name == "HEAD"


def test_an_original_with_holes_and_pipes_is_copied_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    os.mkfifo(tmp_path / "data" / "a.db")
    (tmp_path / "data" / "a.db-wal").write_text("beside a pipe")
    os.mkfifo(tmp_path / "data" / "sub" / ".git")
    with (tmp_path / "data" / "sparse").open("wb") as file:
        file.truncate(200 * 1024**3)
        file.seek(1024**3)
        file.write(b"here")
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        assert len([note for note in world.notes if "is no file: it is not in the copies" in note]) == 2
        copy = world.copy()
        status = (copy.home / "sparse").stat()
        assert (status.st_size, status.st_blocks * 512 < 1024**2) == (200 * 1024**3, True)
        with (copy.home / "sparse").open("rb") as file:
            file.seek(1024**3)
            assert file.read(5) == b"here\0"
        assert copy.changes() == []
        os.utime(copy.home / "sparse")
        assert [change.where for change in copy.changes()] == ["/world/data/sparse"]


LEVELS = 220
"""Directories in one another: their path is too long where their names have 20 letters."""


@pytest.fixture
def few_calls_in_one_another() -> Iterator[None]:
    """Python permits fewer calls in one another than LEVELS, so that a call for each directory would fail. Its own
    limit would take 1,100 directories, whose paths cost the square of it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + LEVELS - 40)
    yield
    sys.setrecursionlimit(limit)


def nested(path: Path, depth: int) -> None:
    """Makes directories in one another, as a program does that changes into each: the path may be too long."""
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 20, dir_fd=here)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.usefixtures("few_calls_in_one_another")
def test_directories_of_any_depth_are_seen_and_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        nested(copy.home, LEVELS)
        changed = copy.changes()
        assert changed[0].where == "/world/data/" + "d" * 20
        assert changed[-1].what == "unreadable", "its path is too long"
        world.remove(copy)
        assert world.in_use == 0
        assert not copy.root.exists()
        left = tmp_path / "w" / "left"
        left.mkdir()
        nested(left, LEVELS)
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")):
        assert not left.exists()


@pytest.mark.usefixtures("few_calls_in_one_another")
def test_a_deep_original_is_copied(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data"
    for _ in range(LEVELS):
        path = path / "d"
        os.mkdir(path)
    try:
        with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
            assert world.copy().changes() == []
    finally:
        remove_tree(tmp_path / "data")  # pytest cannot


def test_closing_a_world_ends_its_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / str(number)).write_text("a")
    copied = []
    blocks = Copier._blocks

    def closing_at_the_first(self: Copier, *words: Any) -> None:
        copied.append(words)
        world._stop.set()
        blocks(self, *words)

    monkeypatch.setattr(Copier, "_blocks", closing_at_the_first)
    world = World(tmp_path / "data", scratch=tmp_path / "w")
    with pytest.raises(ConfigError, match="the world was closed"):
        world.open()
    assert len(copied) == 1
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["lock"]


def test_a_world_that_takes_too_long_to_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("a")
    with opened(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        copy = world.copy()
        monkeypatch.setattr("art_mcp.worlds.state.PATIENCE", 0.0)
        assert [str(change) for change in copy.changes()] == [
            "/world: unreadable is new: not all of it was read within 0 s"
        ]


def test_what_was_not_read_of_a_database_is_named_where_it_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_mcp.worlds.observers.database.LONGEST_VALUE", 100_000)
    with make_database(tmp_path / "shop.db") as connection:
        connection.execute("create table files (content)")
        connection.execute("insert into files values (zeroblob(200000))")
    connection.close()
    with opened(World(tmp_path / "shop.db", scratch=tmp_path / "w")) as world:
        assert [note for note in world.notes if "rows of files" in note and "/world/shop.db" in note]
        for statement, changed in (
            ("select * from users", []),
            ("update files set content = zeroblob(200001)", ["rows of files"]),
            ("update users set name = 'Al' where id = 1", ["rows of files", "users[id=1].name"]),
            ("insert into users (name) values (zeroblob(200000))", ["rows of files", "rows of users"]),
        ):
            copy = world.copy()
            with closing(sqlite3.connect(copy.directory / "shop.db", isolation_level=None)) as connection:
                connection.execute(statement)
                assert [change.what for change in copy.changes()] == changed, statement
        assert "may have changed: cannot be read: a value or row has more than" in texts(copy)[0]


def test_a_table_that_grows_without_measure_is_known_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_mcp.worlds.observers.database.CELLS", 10)
    make_database(tmp_path / "shop.db").close()
    with opened(World(tmp_path / "shop.db", scratch=tmp_path / "w")) as world:
        seen = []
        for _ in range(2):
            copy = world.copy()
            with closing(sqlite3.connect(copy.directory / "shop.db", isolation_level=None)) as connection:
                connection.execute(
                    "with recursive n(i) as (select 3 union all select i + 1 from n where i < 1000) "
                    "insert into users select i, 'x', 'y' from n"
                )
            seen.append([(change.what, change.after) for change in copy.changes()])
        ((what, after),) = seen[0]
        assert what == "rows of users"
        assert str(after).startswith("1,000 rows, sha256 ")
        assert seen[0] == seen[1]


@pytest.mark.slow
def test_a_repository_that_cannot_be_read_any_more_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(World(make_repository(tmp_path / "repo"), scratch=tmp_path / "w")) as world:
        copy = world.copy()
        git(copy.home, "branch", "new")
        monkeypatch.setattr("art_mcp.worlds.git.command.LONGEST_OUTPUT", 60)
        assert [change.what for change in copy.changes()] == ["unreadable"]
