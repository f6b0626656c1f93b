"""Stands in the copy of a world where git looks for its programs that push: runs them, as long as they only read, or
write into the copy. It is a program of its own, which imports nothing of the package: it starts with each connection.

    python push_guard.py helper PROGRAM ARGUMENT…        a remote helper, such as git-remote-https
    python push_guard.py receiver COPY PROGRAM ARGUMENT… git-receive-pack
"""

from __future__ import annotations

import os
import signal
import sys
from io import BufferedReader
from typing import BinaryIO

REFUSAL = "a copy of a world pushes to no repository outside of it"
_NO_SHELL = "scripts of a shell start this program, which Windows does not have"


def pushes(line: bytes) -> bool:
    """Whether a line is a command of gitremote-helpers(7) that only a push has."""
    command, _, argument = line.strip().partition(b" ")
    return (
        command in (b"push", b"export")
        or (command == b"list" and b"for-push" in argument)
        or (command.endswith(b"connect") and b"receive-pack" in argument)
    )


def _relay(reading: BufferedReader, writing: BinaryIO) -> None:
    """Hands git's commands on to a remote helper, up to the first that pushes: it then sees the end of its input."""
    while line := reading.readline():
        if pushes(line):
            print(REFUSAL, file=sys.stderr)
            return
        writing.write(line)
        writing.flush()
        if line.startswith((b"connect", b"stateless-connect", b"import")):
            break  # no lines follow
    while data := reading.read1():
        writing.write(data)
        writing.flush()


def _run(program: str, *arguments: str) -> None:
    if sys.platform == "win32":
        sys.exit(_NO_SHELL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what it starts would
    os.execv(program, [program, *arguments])


def _helper(program: str, *arguments: str) -> None:
    """The process that git has started becomes the program, so that its end and git's signals are the program's."""
    if sys.platform == "win32":
        sys.exit(_NO_SHELL)
    reading, writing = os.pipe()
    if os.fork():
        os.dup2(reading, 0)
        _run(program, *arguments)
    os.close(reading)
    os.dup2(2, 1)  # git waits for the end of the program's output
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with open(0, "rb") as own, open(writing, "wb") as commands:
        _relay(own, commands)


def _receiver(copy: str, program: str, *arguments: str) -> None:
    """Where a file `.git` names a repository outside, the settings of the receiving git see it."""
    target = os.path.expanduser(arguments[-1] if arguments else ".")
    for end in ("", ".git", "/.git", ".git/.git"):  # where git looks for the repository that is meant
        if os.path.commonpath([os.path.realpath(target + end), copy]) != copy:
            sys.exit(REFUSAL)
    _run(program, *arguments)


if __name__ == "__main__":
    (_helper if sys.argv[1] == "helper" else _receiver)(*sys.argv[2:])
