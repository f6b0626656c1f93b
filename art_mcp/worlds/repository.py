"""Git repositories: recognised, copied so that nothing in the copy leads back to the original, and asked."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from art_mcp.worlds.copying import Copier
from art_mcp.worlds.files import read_line, walk
from art_mcp.worlds.git.settings import InCopy, settle
from trainer_server.wire import ConfigError

LOCK_TIMEOUT = 5.0
"""Seconds to wait for another git process to finish."""

_OBJECTS = ("pack-", *"0123456789abcdef")
"""How the names of objects and packs begin."""

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
    return (path.parent / read_line(path).removeprefix("gitdir:").strip()).resolve()


def copy_git(
    source: Path, target: Path, root: Path, copier: Copier, in_copy: InCopy, replace_paths: Callable[[str], str] = str
) -> list[str]:
    """Copies a `.git` so that the copy stands alone.

    Objects are copied last: what a reference in the copy names was there before. Objects that it borrows from another
    repository are copied too: git changes the times of borrowed ones. The files of linked worktrees, and of locks, are
    left out. A `.git` file that leads out of the world, or to a linked worktree, becomes a directory with the
    repository in it.

    Args:
        source: The `.git`, or a bare repository.
        target: The path to make.
        root: The place of the world that it is in.
        copier: Copies the files.
        in_copy: Where a path of an original is in the copy; None: it is of no place.
        replace_paths: Replaces the paths of originals in a setting by those of the copy.

    Returns:
        Remarks about remotes that the copy cannot push to.

    Raises:
        ConfigError: Another git process holds the repository's lock.
        OSError: Something cannot be read.
    """
    own = git_directory(source)
    commondir = own / "commondir"
    if source.is_file() and own.is_relative_to(root) and not commondir.exists():
        # A submodule: its repository is in that of the outer one.
        target.write_text(f"gitdir: {os.path.relpath(own, source.parent)}\n", encoding="utf-8")
        return []
    _wait_for_lock(own / "index.lock")
    common = (own / read_line(commondir)).resolve() if commondir.exists() else own
    target.mkdir()
    directories = [(common, target)]
    if common != own:
        directories += _copy(common, target, copier, leave={"HEAD", "index", "logs", "config.worktree"})
    directories += _copy(own, target, copier, leave=_OWN if common != own else set())
    notes = []
    for module_git in [target, *_modules(target)]:
        module = module_git.relative_to(target)
        _borrow_nothing(common / module / "objects", module_git / "objects", copier)
        original = own / module if (own / module).exists() else common / module
        top = source.parent if source.name == ".git" and module_git == target else original
        notes += settle(original, module_git, root, top, in_copy, replace_paths)
    for directory, at in reversed(directories):  # at the end: the original may have no permission to write
        if at.is_dir():
            shutil.copystat(directory, at)
    return notes


def _modules(git: Path) -> list[Path]:
    """The repositories of submodules in a `.git` directory."""
    modules = git / "modules"
    below = walk(modules) if modules.is_dir() else ()
    return [Path(entry.path) for entry in below if entry.is_dir() and is_git_directory(Path(entry.path))]


def _wait_for_lock(lock: Path) -> None:
    """Waits until another git process is done. Raises ConfigError if it is not done in time."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while lock.exists():
        if time.monotonic() > deadline:
            raise ConfigError(f"{lock} is there: wait for the git process that holds it, or remove what it left")
        time.sleep(0.05)


def _copy(source: Path, target: Path, copier: Copier, leave: set[str]) -> list[tuple[Path, Path]]:
    """Copies the entries of a `.git` directory into another one, objects last, without those to leave out, locks and
    worktrees. What a link leads to is copied in its place: git writes through links into other repositories.

    Returns:
        The directories below, with their copies, whose modes and times the caller copies when it has written all.
    """
    first: list[tuple[Path, Path]] = [(source, target)]
    objects: list[tuple[Path, Path]] = []
    finished_paths: set[str] = set()
    for directories in (first, objects):
        for directory, target_path in directories:  # those that are found on the way are added
            real = os.path.realpath(directory)
            if real in finished_paths or not directory.is_dir():
                continue
            finished_paths.add(real)
            target_path.mkdir(exist_ok=True)
            top = is_git_directory(directory)  # or that of a submodule
            for entry in sorted(directory.iterdir()):
                to = target_path / entry.name
                if entry.name.endswith(".lock") or (directory == source and entry.name in leave):
                    continue
                if top and entry.name == "objects":
                    objects.append((entry, to))
                elif top and entry.name == "worktrees":
                    continue
                elif entry.is_dir():
                    directories.append((entry, to))
                elif entry.is_file():
                    to.unlink(missing_ok=True)  # of the main repository of a worktree; it may be read-only
                    copier.file(str(entry), str(to))
                elif not entry.is_symlink():  # a broken link stays out: nothing of git needs one
                    copier.skipped_paths.append(str(entry))
    return [pair for pair in first + objects if pair[0] != source]


def _borrow_nothing(source: Path, target: Path, copier: Copier) -> None:
    """Copies the objects that a repository borrows from others, which may borrow in turn, and forgets the lenders."""
    alternates = target / "info" / "alternates"
    lenders, visited = _lenders(source), {source}
    while lenders:
        lender = lenders.pop()
        if lender in visited:
            continue
        visited.add(lender)
        lenders += _lenders(lender)
        for folder in sorted(lender.iterdir()) if lender.is_dir() else ():
            if len(folder.name) != 2 and folder.name != "pack":  # info: lists of its own
                continue
            (target / folder.name).mkdir(exist_ok=True)
            for entry in sorted(folder.iterdir()):
                to = target / folder.name / entry.name
                if entry.name.startswith(_OBJECTS) and not to.exists():
                    copier.file(str(entry), str(to))
    alternates.unlink(missing_ok=True)


def _lenders(objects: Path) -> list[Path]:
    """The directories of objects that another one names as those to look in too."""
    alternates = objects / "info" / "alternates"
    if not alternates.is_file():
        return []
    lines = alternates.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [(objects / line).resolve() for line in lines if line.strip() and not line.startswith("#")]
