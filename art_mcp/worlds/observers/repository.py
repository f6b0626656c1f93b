"""Observes a Git repository: branches, tags and other references, HEAD, what is staged, an unfinished merge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from art_mcp.worlds.observers.observer import Show
from art_mcp.worlds.repository import git_directory, is_git_directory, run_git

_FIELDS = ("%H", "%T", "%P", "%an", "%B")
_NAMES = (("refs/heads/", "branch "), ("refs/tags/", "tag "), ("refs/remotes/", "remote branch "))
_UNFINISHED = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "rebase-merge", "rebase-apply")


class RepositoryObserver:
    """It claims the `.git` directory. The files of the working tree are observed as files.

    A commit that was there before the run is known by its hash. The hash of a new one depends on the second in which it
    was made: it is known by its tree, its message, the name of its author, and its parents.
    """

    def claims(self, path: Path) -> bool:
        if path.name == ".git":
            return True
        return path.is_dir() and is_git_directory(path)

    def files(self, path: Path) -> Iterable[Path]:
        """All but objects: without a reference that leads to them, nobody sees them. Reflogs are not observed."""
        return [entry for entry in _below(_followed(path)) if entry.is_file()]

    def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
        return dict(_entries(_followed(path), _followed(before) if before.exists() else None, show))


def _followed(path: Path) -> Path:
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


def _below(git: Path) -> Iterator[Path]:
    for entry in sorted(git.iterdir()):
        if entry.name not in ("objects", "logs"):
            yield from entry.rglob("*") if entry.is_dir() else [entry]


def _entries(git: Path, before: Path | None, show: Show) -> Iterator[tuple[str, str]]:
    """The names and values of a repository."""
    known = _tips(before) if before else ()
    commits = _new_commits(git, known)
    lines = run_git(git, "for-each-ref", "--format=%(refname)%00%(objectname)%00%(*objectname)").splitlines()
    for name, own, peeled in (line.split("\0") for line in lines):
        value = show(commits.get(peeled or own, peeled or own))
        yield next((word + name.removeprefix(start) for start, word in _NAMES if name.startswith(start)), name), value
    head = (git / "HEAD").read_text(encoding="utf-8").strip().removeprefix("ref: ")
    at = run_git(git, "rev-parse", "--verify", "--quiet", "HEAD", check=False).strip()
    yield "HEAD", show(head.removeprefix("refs/heads/") if head != at else commits.get(at, at))
    yield from _staged(git, at, show)
    for name in _UNFINISHED:
        if (git / name).exists():
            yield name, "unfinished"
    if (git / "config").exists():
        text = (git / "config").read_text(encoding="utf-8", errors="replace")
        config = show(text)  # with aliases: each copy has another path
        yield "config", hashlib.sha256(config.encode()).hexdigest()  # it may have a password


def _staged(git: Path, head: str, show: Show) -> Iterator[tuple[str, str]]:
    """What is in the index and not in HEAD: `staged notes.txt`."""
    if not (git / "index").exists():
        return
    if head:
        fields = run_git(git, "diff-index", "--cached", "--raw", "--no-renames", "--no-abbrev", "-z", head).split("\0")
        for line, name in zip(fields[::2], fields[1::2], strict=False):
            _, mode, _, blob, status = line.split(" ")
            yield f"staged {name}", show(f"{status} {mode} {blob}")
        return
    for entry in run_git(git, "ls-files", "--stage", "-z").split("\0"):
        if entry:
            value, _, name = entry.partition("\t")
            yield f"staged {name}", show(value)


@lru_cache(maxsize=64)
def _tips(git: Path) -> tuple[str, ...]:
    """The commits that the references of a repository, and HEAD, lead to. For repositories that nobody changes."""
    head = run_git(git, "rev-parse", "--verify", "--quiet", "HEAD", check=False).split()
    return tuple({*run_git(git, "for-each-ref", "--format=%(objectname)").split(), *head})


def _new_commits(git: Path, known: tuple[str, ...]) -> dict[str, str]:
    """The commits that are not reachable from the known ones: what each is known by, by its hash."""
    form = "%x00".join(_FIELDS) + "%x00%x00"
    at_head = ["HEAD"] if run_git(git, "rev-parse", "--verify", "--quiet", "HEAD", check=False) else []
    words = ["log", "--ignore-missing", "--topo-order", "--reverse", f"--format=tformat:{form}", "--all", *at_head]
    commits: dict[str, str] = {}
    old = "".join(f"^{commit}\n" for commit in known)  # they may be too many for a command line
    for record in run_git(git, *words, "--stdin", given=old).split("\0\0\n"):
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
