"""Asks git about a repository, by commands that only read."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from tempfile import TemporaryFile

from trainer_server.wire import ConfigError

PATIENCE = 60.0
"""Seconds that a command may take."""

LONGEST_OUTPUT = 100_000_000
"""Bytes of a command's output that are read at most."""


def run_git(git: Path, *words: str, check: bool = True, input_text: str = "", seconds: float = PATIENCE) -> str:
    """Runs a git command that only reads, and returns its output.

    Args:
        git: The `.git` directory.
        *words: The command.
        check: Whether a failure raises. Otherwise its output is empty.
        input_text: What it reads from its standard input.
        seconds: How long it may take.

    Raises:
        ConfigError: Git is not installed.
        OSError: The command failed, took too long, or wrote too much. The message is what git wrote, or says so.
    """
    own = {name: os.environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in os.environ}  # of `~` in settings
    env = {**_ENVIRONMENT, **own, "PATH": os.environ.get("PATH", os.defpath)}
    command = ["git", *_SETTINGS, "--git-dir", str(git), *words]
    with TemporaryFile() as standard_input, TemporaryFile() as errors:
        standard_input.write(input_text.encode())
        standard_input.seek(0)
        try:
            process = subprocess.Popen(command, stdin=standard_input, stdout=subprocess.PIPE, stderr=errors, env=env)
        except FileNotFoundError:
            raise ConfigError("`git` is not installed: the world has a repository, which only git can read") from None
        with process:
            late = threading.Timer(max(seconds, 0), process.kill)
            late.daemon = True
            late.start()
            try:
                assert process.stdout
                output = process.stdout.read(LONGEST_OUTPUT + 1)
                if len(output) <= LONGEST_OUTPUT:
                    process.wait()
            finally:
                is_late = late.finished.is_set()
                late.cancel()
                process.kill()  # if it has not ended
        if is_late:
            raise OSError(f"`git {words[0]}` did not end in time: {seconds:.0f} s")
        if len(output) > LONGEST_OUTPUT:
            raise OSError(f"`git {words[0]}` wrote more than {LONGEST_OUTPUT:,} bytes")
        if process.returncode:
            if not check:
                return ""
            errors.seek(max(errors.seek(0, os.SEEK_END) - 1_000, 0))
            message = errors.read().decode(errors="replace").strip()[-300:]
            raise OSError(f"`git {words[0]}` failed: {message}")
    return output.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


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
