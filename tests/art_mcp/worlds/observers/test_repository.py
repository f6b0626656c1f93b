"""Repositories by their references, commits without dates, and what is staged."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from art_mcp.worlds.git import command
from art_mcp.worlds.observers.observer import render_value
from art_mcp.worlds.observers.repository import RepositoryObserver
from tests.support.mcp.originals import git, make_repository

pytestmark = pytest.mark.slow


def seen(repository: Path, before: Path) -> dict[str, str]:
    return dict(RepositoryObserver().observe(repository / ".git", before / ".git", render_value))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A repository, and the same one before."""
    before = make_repository(tmp_path / "before")
    shutil.copytree(before, tmp_path / "after", symlinks=True)
    return tmp_path / "after", before


def test_references_head_and_what_is_staged(pair: tuple[Path, Path]) -> None:
    after, before = pair
    main = git(before, "rev-parse", "main")
    assert {name: value for name, value in seen(before, before).items() if name != "config"} == {
        "branch feature": main,
        "branch main": main,
        "HEAD": "main",
    }
    git(after, "tag", "-a", "v1", "-m", "one")
    git(after, "checkout", "-q", "--detach")
    git(after, "add", "notes.txt")
    (after / ".git" / "MERGE_HEAD").write_text(main)
    now = seen(after, before)
    assert (now["tag v1"], now["HEAD"], now["MERGE_HEAD"]) == (main, main, "unfinished")
    assert now["staged notes.txt"].startswith("M 100644 ")


def test_a_new_commit_is_known_by_what_it_has_and_not_by_its_time(pair: tuple[Path, Path], tmp_path: Path) -> None:
    after, before = pair
    shutil.copytree(before, tmp_path / "again", symlinks=True)
    values = []
    for repository, date, message in ((after, "2001-01-01T00:00", "m"), (tmp_path / "again", "2002-02-02T00:00", "m")):
        os.environ["GIT_COMMITTER_DATE"] = date
        try:
            for text in ("first", "second"):
                (repository / "new.txt").write_text(text)
                git(repository, "add", "new.txt")
                git(repository, "commit", "-q", "--date", date, "-m", f"{message} {text}")
        finally:
            del os.environ["GIT_COMMITTER_DATE"]
        values.append(seen(repository, before)["branch main"])
    assert git(after, "rev-parse", "main") != git(tmp_path / "again", "rev-parse", "main")
    assert values[0] == values[1]
    assert values[0].startswith("new commit 'm second' by A (")
    git(after, "commit", "-q", "--amend", "-m", "other")
    assert seen(after, before)["branch main"] != values[0]
    git(after, "reset", "-q", "--hard", "HEAD~2")
    assert seen(after, before)["branch main"] == git(before, "rev-parse", "main")


def test_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main", "new")
    new = tmp_path / "new"
    assert set(seen(new, tmp_path / "none")) == {"HEAD", "config"}
    (new / "a").write_text("a")
    git(new, "add", "a")
    assert seen(new, new)["staged a"].startswith("100644 ")
    git(new, "commit", "-q", "-m", "first")
    assert seen(new, tmp_path / "none")["branch main"].startswith("new commit 'first' by A (")


SIGNED = """tree {tree}
author A <a@example.com> 1 +0000
committer A <a@example.com> 1 +0000
gpgsig -----BEGIN PGP SIGNATURE-----
 x
 -----END PGP SIGNATURE-----

m
"""


def test_git_starts_no_program_that_the_repository_names(pair: tuple[Path, Path], tmp_path: Path) -> None:
    after, before = pair
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    (tmp_path / "commit").write_text(SIGNED.format(tree=git(after, "rev-parse", "main^{tree}")))
    git(after, "branch", "signed", git(after, "hash-object", "-t", "commit", "-w", str(tmp_path / "commit")))
    for key, value in (("log.showSignature", "true"), ("gpg.program", str(program)), ("core.fsmonitor", str(program))):
        git(after, "config", key, value)
    assert seen(after, before)["branch signed"].startswith("new commit 'm' by A (")
    assert not (tmp_path / "started").exists()


def test_the_settings_are_the_same_where_only_the_path_of_the_copy_differs(pair: tuple[Path, Path]) -> None:
    values = []
    for repository in pair:
        git(repository, "config", "own.path", f"{repository}/x")
        show = partial(render_value, translate=lambda text, root=str(repository): text.replace(root, "/world/repo"))
        git_directory = repository / ".git"
        values.append(RepositoryObserver().observe(git_directory, git_directory, show)["config"])
    assert values[0] == values[1]


def test_the_output_of_git_has_a_limit(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    after, before = pair
    for number in range(20):
        git(after, "branch", f"new-{number}")
    monkeypatch.setattr(command, "LONGEST_OUTPUT", 1_000)
    assert "branch main" in seen(before, before)
    with pytest.raises(OSError, match="`git for-each-ref` wrote more than 1,000 bytes"):
        seen(after, before)


def test_all_commands_of_git_end_within_one_time(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_mcp.worlds.observers.repository.PATIENCE", 0.0)
    with pytest.raises(OSError, match="did not end in time"):
        seen(*pair)
