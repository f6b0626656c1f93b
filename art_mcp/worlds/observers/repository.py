"""Observes a Git repository: branches, tags and other references, HEAD, what is staged, an unfinished merge."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from art_mcp.worlds.files import open_regular, read_line, walk
from art_mcp.worlds.git.command import PATIENCE, run_git
from art_mcp.worlds.observers.observer import Show
from art_mcp.worlds.repository import git_directory, is_git_directory

_FIELDS = ("%H", "%T", "%P", "%an", "%B")
_NAMES = (("refs/heads/", "branch "), ("refs/tags/", "tag "), ("refs/remotes/", "remote branch "))
_LONGEST = 1_000_000
"""Bytes of a file of settings that are read at most."""
_LENDERS = "objects/info/alternates"
_OPERATION_FILES = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "rebase-merge", "rebase-apply")


RunGit = Callable[..., str]
"""Runs git commands in one repository, as `run_git` does."""


def _asker(git: Path) -> RunGit:
    """Asks about a repository. All commands together end within PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    return lambda *words, **options: run_git(git, *words, seconds=deadline - time.monotonic(), **options)


class RepositoryObserver:
    """It claims the `.git` directory. The files of the working tree are observed as files.

    A commit that was there before the run is known by its hash. The hash of a new one depends on the second in which it
    was made: it is known by its tree, its message, the name of its author, and its parents.
    """

    def claims(self, path: Path) -> bool:
        if path.name == ".git":
            return path.is_dir() or path.is_file()
        return path.is_dir() and is_git_directory(path)

    def files(self, path: Path) -> Iterable[Path]:
        """All but objects: without a reference that leads to them, nobody sees them. Reflogs are not observed."""
        git = _resolve_git(path)
        names = {file: str(file.relative_to(git)) for file in _files(git)}
        return [file for file, name in names.items() if name == _LENDERS or not name.startswith(("objects/", "logs/"))]

    def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
        git = _resolve_git(path)
        _files(git)
        return dict(_entries(git, _resolve_git(before) if before.exists() else None, show))


def _resolve_git(path: Path) -> Path:
    """The directory that a `.git` stands for. A file is followed to a repository beside it, or to that of a submodule,
    which is in the repository of a directory around it: a model may have written the file, and everything else could
    be outside of the copy.

    Raises:
        ValueError: The file leads elsewhere.
    """
    git = git_directory(path)
    if git != path:
        here = path.parent.resolve()
        around = [here, *(parent / ".git" / "modules" for parent in here.parents)]
        if not is_git_directory(git) or not any(git.is_relative_to(directory) for directory in around):
            raise ValueError(f"{path} leads to no repository beside it or around it")
    return git


def _files(git: Path) -> list[Path]:
    """The files of a `.git` directory. Raises ValueError if there is a pipe or the like, which git would wait for."""
    files = []
    for entry in walk(git):
        if entry.is_file():
            files.append(Path(entry.path))
        elif not entry.is_dir() and os.path.exists(entry.path):
            raise ValueError(f"{entry.name} in it is neither a file nor a directory")
    return files


def _entries(git: Path, before: Path | None, show: Show) -> Iterator[tuple[str, str]]:
    """The names and values of a repository."""
    git_output = _asker(git)
    known_tips = _tips(before) if before else ()
    commits = _new_commits(git_output, known_tips)
    lines = git_output("for-each-ref", "--format=%(refname)%00%(objectname)%00%(*objectname)").splitlines()
    for name, own, target in (line.split("\0") for line in lines):
        value = show(commits.get(target or own, target or own))
        yield next((word + name.removeprefix(start) for start, word in _NAMES if name.startswith(start)), name), value
    head = read_line(git / "HEAD").removeprefix("ref: ")
    at = git_output("rev-parse", "--verify", "--quiet", "HEAD", check=False).strip()
    yield "HEAD", show(head.removeprefix("refs/heads/") if head != at else commits.get(at, at))
    if (git / "index").exists():
        yield from _staged_entries(git_output, at, show)
    for name in _OPERATION_FILES:
        if (git / name).exists():
            yield name, "unfinished"
    for name in sorted(_settings(git)):
        with open_regular(git / name) as file:
            text = file.read(_LONGEST + 1).decode(errors="replace")
        if len(text) > _LONGEST:
            raise ValueError(f"{name} is longer than {_LONGEST:,} bytes")
        if name != "config" and all(line.startswith("#") or not line.strip() for line in text.splitlines()):
            continue  # as git makes it
        value = show(text)  # with aliases: each copy has another path
        yield name, hashlib.sha256(value.encode()).hexdigest()  # it may have a password


def _settings(git: Path) -> Iterator[str]:
    """The names of the files that say what git does in the repository, and with which others."""
    for pattern in ("config", "config.worktree", "remotes/*", "branches/*", "hooks/*", "info/*", "shallow", _LENDERS):
        for path in git.glob(pattern):
            if path.is_file() and path.suffix != ".sample" and str(path.relative_to(git)) != "info/refs":
                yield str(path.relative_to(git))


def _staged_entries(query_git: RunGit, head: str, show: Show) -> Iterator[tuple[str, str]]:
    """What is in the index and not in HEAD: `staged notes.txt`."""
    if head:
        fields = query_git("diff-index", "--cached", "--raw", "--no-renames", "--no-abbrev", "-z", head).split("\0")
        for line, name in zip(fields[::2], fields[1::2], strict=False):
            _, mode, _, blob, status = line.split(" ")
            yield f"staged {name}", show(f"{status} {mode} {blob}")
        return
    for entry in query_git("ls-files", "--stage", "-z").split("\0"):
        if entry:
            value, _, name = entry.partition("\t")
            yield f"staged {name}", show(value)


@lru_cache(maxsize=64)
def _tips(git: Path) -> tuple[str, ...]:
    """The commits that the references of a repository, and HEAD, lead to. For repositories that nobody changes."""
    git_output = _asker(git)
    head = git_output("rev-parse", "--verify", "--quiet", "HEAD", check=False).split()
    return tuple({*git_output("for-each-ref", "--format=%(objectname)").split(), *head})


def _new_commits(query_git: RunGit, known_commits: tuple[str, ...]) -> dict[str, str]:
    """The commits that are not reachable from the known ones: what each is known by, by its hash."""
    form = "%x00".join(_FIELDS) + "%x00%x00"
    at_head = ["HEAD"] if query_git("rev-parse", "--verify", "--quiet", "HEAD", check=False) else []
    words = ["log", "--ignore-missing", "--topo-order", "--reverse", f"--format=tformat:{form}", "--all", *at_head]
    commits: dict[str, str] = {}
    old = "".join(f"^{commit}\n" for commit in known_commits)  # they may be too many for a command line
    for record in query_git(*words, "--stdin", input_text=old).split("\0\0\n"):
        if not record.strip():
            continue
        own, tree, parents, author, message = record.strip("\n").split("\0")
        line = message.strip().partition("\n")[0]
        identity = "\0".join(
            [tree, author, message.strip(), *(commits.get(parent, parent) for parent in parents.split())]
        )
        digest = hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:16]
        commits[own] = f"new commit {line!r} by {author} ({digest})"
    return commits
