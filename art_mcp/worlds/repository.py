"""Git repositories: recognised, copied so that nothing in the copy leads back to the original, and asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from art_mcp.worlds.copying import Copier
from trainer_server.wire import ConfigError

LOCKED = 5.0
"""Seconds to wait for another git process to finish."""

InCopy = Callable[[Path], Path | None]

NO_PUSH = "no-push://copy-of-a-world"
"""URL of remotes that a copy must not push to. Git knows no such protocol, and says so."""

_OWN = {"commondir", "gitdir", "locked"}
"""Files of a linked worktree that lead to its main repository."""


def is_repository(path: Path) -> bool:
    """Whether a directory is the working tree of a repository, or a bare repository."""
    return (path / ".git").exists() or is_git_directory(path)


def is_git_directory(path: Path) -> bool:
    """Whether a directory is what `.git` is: it has HEAD, objects and refs."""
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


def git_directory(path: Path) -> Path:
    """The directory that a `.git` stands for: itself, or where the file leads."""
    if path.is_dir():
        return path
    name = path.read_text(encoding="utf-8", errors="replace").strip().removeprefix("gitdir:").strip()
    return (path.parent / name).resolve()


def is_object(path: str) -> bool:
    """Whether a path is an object or a pack of a repository.

    Git names them by their content, makes them read-only, and replaces or removes them, but never writes into them.
    So copies can share them, as `git clone --local` does.
    """
    objects, folder = Path(path).parents[1], Path(path).parent.name
    return objects.name == "objects" and (len(folder) == 2 or folder == "pack") and is_git_directory(objects.parent)


def copy_git(source: Path, target: Path, root: Path, copier: Copier, in_copy: InCopy) -> list[str]:
    """Copies a `.git` so that the copy stands alone.

    Objects are copied last: what a reference in the copy names was there before. The files of linked worktrees, and
    of locks, are left out. A `.git` file that leads out of the world, as that of a linked worktree does, becomes a
    directory with the repository in it.

    Args:
        source: The `.git`, or a bare repository.
        target: The path to make.
        root: The place of the world that it is in.
        copier: Copies the files.
        in_copy: Where a path of an original is in the copy; None: it is of no place.

    Returns:
        Remarks about remotes that the copy cannot push to.

    Raises:
        ConfigError: Another git process holds the repository's lock.
        OSError: Something cannot be read.
    """
    own = git_directory(source)
    if source.is_file() and own.is_relative_to(root):  # a submodule: its repository is in that of the outer one
        target.write_text(f"gitdir: {os.path.relpath(own, source.parent)}\n", encoding="utf-8")
        return []
    _wait_for_lock(own / "index.lock")
    linked = own / "commondir"
    common = (own / linked.read_text(encoding="utf-8").strip()).resolve() if linked.exists() else own
    target.mkdir()
    if common != own:
        _copy(common, target, copier, leave={"HEAD", "index", "logs"})
    _copy(own, target, copier, leave=_OWN if common != own else set())
    shutil.copystat(common, target)
    _stand_alone(common, target, root)
    return _without_remotes(common, target, in_copy)


def run_git(git: Path, *words: str, check: bool = True, given: str = "") -> str:
    """Runs a git command that only reads, and returns its output.

    Args:
        git: The `.git` directory.
        *words: The command.
        check: Whether a failure raises. Otherwise its output is empty.
        given: What it reads from its standard input.

    Raises:
        ConfigError: Git is not installed.
        OSError: The command failed. The message is what git wrote.
    """
    env = {**_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath)}
    command = ["git", *_SETTINGS, "--git-dir", str(git), *words]
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, encoding="utf-8", errors="replace", timeout=60, env=env
        )
    except FileNotFoundError:
        raise ConfigError("`git` is not installed: the world has a repository, which only git can read") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"`git {words[0]}` did not end within 60 s") from None
    if done.returncode:
        if not check:
            return ""
        raise OSError(f"`git {words[0]}` failed: {done.stderr.strip()[-300:]}")
    return done.stdout


_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "LC_ALL": "C",
}
"""Git takes no lock, reads no settings but the repository's, and asks no remote."""

_SETTINGS = [
    word
    for setting in ("safe.directory=*", "core.fsmonitor=false", "core.hooksPath=/dev/null", "log.showSignature=false")
    for word in ("-c", setting)
]
"""Before those of the repository, which a model can write: none may name a program that git then starts."""


def _wait_for_lock(lock: Path) -> None:
    """Waits until another git process is done. Raises ConfigError if it is not done in time."""
    deadline = time.monotonic() + LOCKED
    while lock.exists():
        if time.monotonic() > deadline:
            raise ConfigError(f"{lock} is there: wait for the git process that holds it, or remove what it left")
        time.sleep(0.05)


def _copy(source: Path, target: Path, copier: Copier, leave: set[str]) -> None:
    """Copies the entries of a `.git` directory, objects last, without those to leave out, locks and worktrees."""
    with os.scandir(source) as entries:
        named = sorted(entries, key=lambda entry: (entry.name == "objects", entry.name))
    for entry in named:
        to = target / entry.name
        if entry.name in leave or entry.name == "worktrees" or entry.name.endswith(".lock"):
            continue
        if to.is_dir():
            _copy(Path(entry.path), to, copier, set())
        elif entry.is_symlink() and not entry.is_dir() and not entry.is_file():
            os.symlink(os.readlink(entry.path), to)
        else:
            copier.tree(Path(entry.path), to)


def _stand_alone(source: Path, target: Path, root: Path) -> None:
    """Takes out of a copied repository what would lead git back to the original: absolute paths of working trees, and
    relative paths of repositories whose objects it borrows (git only reads those)."""
    for config in [target / "config", *target.glob("modules/**/config")]:
        worktree = run_git(target, "config", "--file", str(config), "core.worktree", check=False).strip()
        if Path(worktree).is_absolute():
            inside = Path(worktree).resolve().is_relative_to(root)
            original = source / config.parent.relative_to(target)
            change = [os.path.relpath(worktree, original)] if inside else []
            key = ["core.worktree"] if inside else ["--unset-all", "core.worktree"]
            run_git(target, "config", "--file", str(config), *key, *change)
    alternates = target / "objects" / "info" / "alternates"
    if alternates.exists():
        lines = alternates.read_text(encoding="utf-8").splitlines()
        objects = source / "objects"
        text = "".join(f"{(objects / line).resolve()}\n" for line in lines if line.strip())
        alternates.write_text(text, encoding="utf-8")


def _without_remotes(source: Path, target: Path, in_copy: InCopy) -> list[str]:
    """Makes the remotes of a copied repository, and of its submodules, lead into the copy, or else refuse a push.

    Returns:
        A remark for each remote that refuses.
    """
    notes = []
    for config in [target / "config", *target.glob("modules/**/config")]:
        ask = ("config", "--file", str(config))
        original = source / config.parent.relative_to(target)
        listed = run_git(target, *ask, "-z", "--get-regexp", r"^remote\..*\.(url|pushurl)$", check=False)
        remotes: dict[str, list[str]] = {}
        for entry in filter(None, listed.split("\0")):
            key, _, url = entry.partition("\n")
            remote, _, kind = key.rpartition(".")
            remotes.setdefault(remote, []).extend([url] if kind == "url" else [])
        for remote, urls in remotes.items():
            moved = [_moved(url, _base(original), _base(config.parent), in_copy) for url in urls]
            run_git(target, *ask, "--unset-all", f"{remote}.pushurl", check=False)
            run_git(target, *ask, "--unset-all", f"{remote}.url", check=False)
            for url, to in zip(urls, moved, strict=True):
                run_git(target, *ask, "--add", f"{remote}.url", to or url)
            if not all(moved) or not moved:
                run_git(target, *ask, "--add", f"{remote}.pushurl", NO_PUSH)
                name = remote.removeprefix("remote.")
                notes.append(f"the remote {name} of {original} is not in the world: its copies cannot push to it")
    return notes


def _moved(url: str, original: Path, copy: Path, in_copy: InCopy) -> str | None:
    """The path of a remote in the copy, relative to the working tree. None: the remote is not in the world.

    Args:
        url: URL or path of the remote.
        original: The original's working tree.
        copy: The copy's working tree.
        in_copy: As `copy_git` takes it.
    """
    path = url.removeprefix("file://")
    if "://" in path or (not path.startswith(("/", ".", "~")) and ":" in path):
        return None
    moved = in_copy(Path(os.path.realpath(original / os.path.expanduser(path))))
    return os.path.relpath(moved, copy) if moved else None


def _base(git: Path) -> Path:
    """Where relative paths of remotes begin: the working tree, or the repository if it is bare."""
    worktree = run_git(git, "config", "--file", str(git / "config"), "core.worktree", check=False).strip()
    if worktree:
        return Path(os.path.normpath(git / worktree))
    return git.parent if git.name == ".git" else git
