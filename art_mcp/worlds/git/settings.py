"""The settings of a repository and of a user: read with all that they include, and changed for the copy of a world."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from art_mcp.worlds.git.command import run_git

NO_PUSH = "no-push://copy-of-a-world"
"""URL of remotes that a copy must not push to. Git knows no such protocol, and says so."""

InCopy = Callable[[Path], Path | None]

Setting = tuple[str, str | None]
"""A name such as `remote.origin.url`, with its value. None: it stands alone, which git takes for true."""

_UNSAFE = (
    ("include.", ""),  # what they name was read in their place
    ("includeif.", ""),
    ("url.", ".pushinsteadof"),
    ("remote.", ".pushurl"),
    ("remote.", ".receivepack"),
    ("remote.", ".vcs"),
    ("credential.", ""),
    ("http.", "extraheader"),
    ("http.", "cookiefile"),
    ("extensions.worktreeconfig", ""),
)
"""Beginnings and ends of the settings that are in no copy: other ways to name where to push to, and the user's
credentials."""


def settings(git: Path, *words: str) -> list[Setting]:
    """Settings with those that they include, in git's order. The names of sections and variables are in lower case.

    Args:
        git: The `.git` directory, of which conditional includes depend. It need not be there.
        *words: Where to read: `--local`, `--worktree`, or `--file` with a path. A file that is missing is empty.

    Raises:
        ConfigError: Git is not installed.
    """
    output = run_git(git, "config", *words, "--includes", "-z", "--list", check=False)
    entries = (entry.partition("\n") for entry in output.split("\0") if entry)
    return [(name, value if newline else None) for name, newline, value in entries]


def harmless(entries: Iterable[Setting]) -> list[Setting]:
    """The settings without those that are in no copy."""
    return [
        (name, value)
        for name, value in entries
        if not any(name.startswith(start) and name.endswith(end) for start, end in _UNSAFE)
    ]


def no_push(starts: Iterable[str | None]) -> list[Setting]:
    """Settings by which git refuses to push to URLs with these beginnings."""
    return [(f"url.{NO_PUSH}/.pushinsteadof", start) for start in starts if start]


def settings_text(entries: Iterable[Setting]) -> str:
    """The text of a file of settings."""
    lines = []
    for name, value in entries:
        section, _, rest = name.partition(".")
        subsection, _, variable = rest.rpartition(".")
        subsection_text = subsection.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'[{section} "{subsection_text}"]' if subsection else f"[{section}]")
        if value is None:
            lines.append(f"\t{variable}")
        else:
            for plain, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
                value = value.replace(plain, escape)
            lines.append(f'\t{variable} = "{value}"')
    return "".join(f"{line}\n" for line in lines)


def settle(
    original: Path, copy: Path, root: Path, top: Path, in_copy: InCopy, replace_paths: Callable[[str], str]
) -> list[str]:
    """Writes the settings of a copied repository: one file that includes no other, whose remotes lead into the copy, or
    else refuse a push.

    Args:
        original: The original's `.git` directory.
        copy: That of the copy.
        root: The place of the world that the original is in.
        top: The working tree of the original if its settings name no other, or the repository if it is bare.
        in_copy: Where a path of an original is in the copy; None: it is of no place.
        replace_paths: Replaces the paths of originals in a text by those of the copy.

    Returns:
        A remark for each remote that refuses.
    """
    entries = settings(original, "--local")
    if ("extensions.worktreeconfig", "true") in entries:
        entries += settings(original, "--file", str(original / "config.worktree"))
    entries += _of_older_files(copy, {name for name, _ in entries})
    for name in ("remotes", "branches", "config.worktree"):
        _remove(copy / name)
    worktrees = [value for name, value in entries if name == "core.worktree" and value]
    if worktrees and not (original / "commondir").exists():  # it is that of the main working tree, not of a linked one
        top = Path(os.path.realpath(original / os.path.expanduser(worktrees[-1])))
    # A linked worktree may be of a bare repository. Its copy is none.
    ignore = {"core.worktree", "core.bare"} if (original / "commondir").exists() else {"core.worktree"}
    entries = [(name, value) for name, value in harmless(entries) if name not in ignore]
    at = in_copy(top) if top.is_relative_to(root) else None
    if at and at not in (copy, copy.parent):
        entries.append(("core.worktree", os.path.relpath(at, copy)))
    remotes = _Remotes(entries, top, at or copy, in_copy)
    entries = [(replace_paths(name), value and replace_paths(value)) for name, value in remotes.entries()]
    (copy / "config").unlink(missing_ok=True)  # it may be read-only
    (copy / "config").write_text(settings_text(entries), encoding="utf-8", errors="surrogateescape")
    return [
        f"the remote {name} of {original} is not in the world: its copies cannot push to it" for name in remotes.far
    ]


class _Remotes:
    """Makes the remotes in the settings of a repository lead into the copy.

    Args:
        entries: The settings.
        top: Where relative paths begin in the original: its working tree, or the repository if it is bare.
        copy: The same in the copy.
        in_copy: As `settle` takes it.
    """

    def __init__(self, entries: Sequence[Setting], top: Path, copy: Path, in_copy: InCopy) -> None:
        self._entries = entries
        self._top, self._copy, self._in_copy = top, copy, in_copy
        self._names = {name.split(".", 1)[1].rpartition(".")[0] for name, _ in entries if name.startswith("remote.")}
        self._shortened = [
            (value, name[len("url.") : -len(".insteadof")])
            for name, value in entries
            if name.startswith("url.") and name.endswith(".insteadof") and value
        ]
        self._near: set[str] = set()
        self.far: list[str] = []
        """Remotes that are not in the world."""

    def entries(self) -> list[Setting]:
        """The settings for the copy."""
        entries: list[Setting] = []
        for name, value in self._entries:
            section, _, rest = name.partition(".")
            subject, _, variable = rest.rpartition(".")
            if section == "remote" and variable == "url" and value is not None:
                path = self._copy_path(value)
                entries.append((name, path or without_password(value)))
                self._near |= {subject} if path else set()
                self.far += [] if path or subject in self.far else [subject]
            elif name == "remote.pushdefault" or (section == "branch" and variable in ("remote", "pushremote")):
                entries += self._reference(name, value)
            else:
                entries.append((name, value))
        # Git takes the name of a remote without a URL for its path.
        self.far += sorted(name for name in self._names if name and name not in self._near | {*self.far})
        entries += no_push(short for short, _ in self._shortened if not self._copy_path(short))
        return entries + [(f"remote.{name}.pushurl", NO_PUSH) for name in self.far if name in self._names]

    def _reference(self, name: str, value: str | None) -> list[Setting]:
        """A setting that names a remote, or the URL or path of one that has no name."""
        if not value or value == "." or value in self._names:
            return [(name, value)]
        if path := self._copy_path(value):
            return [(name, path)]
        value = without_password(value)
        self.far += [value] if value not in self.far else []
        if name.endswith(".remote"):  # a pull from there is no push
            return [(name, value), (f"{name.removesuffix('remote')}pushremote", NO_PUSH)]
        return [(name, NO_PUSH)]

    def _copy_path(self, url: str) -> str | None:
        """The path of a remote in the copy, relative to the working tree. None: the remote is not in the world."""
        short, full = max(
            ((short, full) for short, full in self._shortened if url.startswith(short)),
            key=lambda pair: len(pair[0]),
            default=("", ""),
        )
        path = (full + url[len(short) :]).removeprefix("file://")
        if "://" in path or (not path.startswith(("/", ".", "~")) and ":" in path):
            return None
        path_in_copy = self._in_copy(Path(os.path.realpath(self._top / os.path.expanduser(path))))
        return os.path.relpath(path_in_copy, self._copy) if path_in_copy else None


def without_password(url: str) -> str:
    """A URL without user and password. A copy has nobody's credentials. Of ssh the user stays: it is the account."""
    scheme, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if not slashes or "@" not in host or "ssh" in scheme:
        return url
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _of_older_files(git: Path, existing_names: set[str]) -> list[Setting]:
    """The remotes in `remotes/NAME` and `branches/NAME`, as settings. Git prefers its settings, then the former."""
    entries: list[Setting] = []
    for folder in ("remotes", "branches"):
        at = git / folder
        for path in sorted(at.iterdir()) if at.is_dir() and not at.is_symlink() else ():
            name = f"remote.{path.name}"
            if f"{name}.url" in existing_names | {key for key, _ in entries} or not path.is_file():
                continue
            text = path.read_text(encoding="utf-8", errors="surrogateescape").strip()
            if folder == "branches":
                url, _, branch = text.partition("#")
                branch = branch or "master"
                entries += [(f"{name}.url", url), (f"{name}.fetch", f"refs/heads/{branch}:refs/heads/{path.name}")]
                continue
            for line in text.splitlines():
                kind, _, value = line.partition(":")
                if variable := {"URL": "url", "Push": "push", "Pull": "fetch"}.get(kind.strip()):
                    entries.append((f"{name}.{variable}", value.strip()))
    return entries


def _remove(path: Path) -> None:
    """Removes a file, or a directory of files."""
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
