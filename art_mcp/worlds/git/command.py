"""Asks git about a repository, by commands that only read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from trainer_server.wire import ConfigError


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
    own = {name: os.environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in os.environ}  # of `~` in settings
    env = {**_ENVIRONMENT, **own, "PATH": os.environ.get("PATH", os.defpath)}
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
    "GIT_CONFIG_GLOBAL": os.devnull,
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
