"""The environment of a server in a copy, in which git pushes to no repository that is not in the copy."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from art_mcp.worlds.git import push_guard
from art_mcp.worlds.git.command import run_git
from art_mcp.worlds.git.settings import Setting, harmless, no_push, settings, settings_text

_REMOTE = (
    "/",
    "file://",
    "~",
    "ssh://",
    "git+ssh://",
    "ssh+git://",
    "git://",
    "http://",
    "https://",
    "ftp://",
    "ftps://",
)
_HELPERS = ("http::", "https::", "ftp::", "ftps::")
"""How URLs and absolute paths begin. Relative paths are left to the repository that they lead to."""

_LAST: tuple[Setting, ...] = (
    # A push to a repository that does not announce this ends before anything is sent: one outside of the copy does not.
    ("push.pushOption", "in-a-copy-of-a-world"),
    ("credential.helper", ""),  # those of the files are no more: a copy has nobody's passwords, and stores none
    ("protocol.ext.allow", "never"),
    ("protocol.fd.allow", "never"),
    ("protocol.no-push.allow", "never"),
)
"""Settings that no file can change."""

_SSH = """\
#!/bin/sh
# Git in a copy of a world reads from other hosts, and pushes to none.
for command; do :; done
case $command in
  "git-upload-pack '"* | "git-upload-archive '"*) ;;
  *) echo "a copy of a world pushes to no other host" >&2; exit 128 ;;
esac
ssh=$(git config core.sshCommand) || ssh={default}
eval "exec $ssh \\"\\$@\\""
"""


_SENDING = {
    "git-http-push": "*",
    "git-imap-send": "*",
    "git-send-email": "*",
    "git-cvsexportcommit": "*",
    "git-p4": "submit",
    "git-svn": "dcommit | commit-diff | set-tree | branch | tag",
}
"""Other programs of git that write elsewhere, each with those of its commands that do."""

_SENDER = f"""\
#!/bin/sh
case $1 in
  {{commands}}) echo {shlex.quote(push_guard.REFUSAL)} >&2; exit 128 ;;
esac
exec {{program}} "$@"
"""


def git_environment(directory: Path, copy: Path, original: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a server's environment needs in a copy.

    However a push names its target, the programs decide that would carry it out: git finds those of a directory of the
    copy, `GIT_EXEC_PATH`, which no setting changes. For repositories on this machine, git also reads
    `GIT_CONFIG_GLOBAL` on the receiving side, and by it only those in the copy receive. Before that, URLs and absolute
    paths are rewritten to one that git names in its refusal. A `pre-push` hook would not do: `git push --no-verify`
    runs none. The user's own settings go on to apply, without those that would lead elsewhere.

    Args:
        directory: Where files for git can be written. It is in no place of the copy.
        copy: The directory of all places of the copy.
        original: The `.git` directory of an original, on which settings of the user may depend. It need not be there.
        env: The server's environment.

    Returns:
        The variables. None are needed where git is not installed.

    Raises:
        OSError: The files cannot be written.
    """
    if shutil.which("git") is None:
        return {}
    directory.mkdir(exist_ok=True)
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    config_home = Path(env.get("XDG_CONFIG_HOME") or os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    own = env.get("GIT_CONFIG_GLOBAL")
    files = [Path(own)] if own else [config_home / "git" / "config", home / ".gitconfig"]
    entries = [entry for file in files for entry in settings(original, "--file", str(file))]
    if not env.get("GIT_CONFIG_NOSYSTEM"):
        system = env.get("GIT_CONFIG_SYSTEM")
        entries = settings(original, *(("--file", system) if system else ("--system",))) + entries
    entries = [entry for entry in harmless(entries) if not entry[0].startswith("receive.")]
    entries += no_push(value for name, value in entries if name.startswith("url.") and name.endswith(".insteadof"))
    entries += no_push((*_REMOTE, *_HELPERS))
    entries += [(f"url.{start}.pushinsteadof", start) for start in (str(copy), f"file://{copy}")]
    entries += [("receive.hiderefs", "refs"), ("receive.advertisepushoptions", "false")]
    entries += [(f"includeif.gitdir:{copy}/.path", str(directory / "inside"))]
    inside: list[Setting] = [("receive.hiderefs", "!refs"), ("receive.advertisepushoptions", "true")]
    (directory / "config").write_text(settings_text(entries), encoding="utf-8", errors="surrogateescape")
    (directory / "inside").write_text(settings_text(inside), encoding="utf-8")
    ssh = directory / "ssh"  # git knows by this name which options it takes
    default = env.get("GIT_SSH_COMMAND") or shlex.quote(env.get("GIT_SSH") or "ssh")
    ssh.write_text(_SSH.format(default=shlex.quote(default)), encoding="utf-8")
    ssh.chmod(0o700)
    count = int(env.get("GIT_CONFIG_COUNT") or 0)
    variables = {
        "GIT_CONFIG_GLOBAL": str(directory / "config"),
        "GIT_CONFIG_NOSYSTEM": "1",  # its settings are in that file, without those that would lead elsewhere
        "GIT_CONFIG_COUNT": str(count + len(_LAST)),
        "GIT_SSH_COMMAND": shlex.quote(str(ssh)),
        "GIT_EXEC_PATH": str(_programs(directory / "programs", copy, env)),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CEILING_DIRECTORIES": env.get("GIT_CEILING_DIRECTORIES") or str(copy),  # none around the copies is found
    }
    for number, (name, value) in enumerate(_LAST, count):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value or ""}
    return variables


def _programs(directory: Path, copy: Path, env: Mapping[str, str]) -> Path:
    """Makes a directory of all programs of git, with others in place of those that push."""
    directory.mkdir(exist_ok=True)
    programs = _find_programs(env.get("GIT_EXEC_PATH"), env.get("PATH") or os.environ.get("PATH", os.defpath))
    guard = [sys.executable, "-I", "-S", push_guard.__file__]
    for name, path in programs.items():
        at = directory / name
        at.unlink(missing_ok=True)
        if name.startswith("git-remote-"):
            text = f'#!/bin/sh\nexec {shlex.join([*guard, "helper", str(path)])} "$@"\n'
        elif name == "git-receive-pack":
            text = f'#!/bin/sh\nexec {shlex.join([*guard, "receiver", os.path.realpath(copy), str(path)])} "$@"\n'
        elif commands := _SENDING.get(name):
            text = _SENDER.format(commands=commands, program=shlex.quote(str(path)))
        else:
            at.symlink_to(path)
            continue
        at.write_text(text, encoding="utf-8")
        at.chmod(0o700)
    return directory


@cache
def _find_programs(directory: str | None, path: str) -> Mapping[str, Path]:
    """The programs of git by their names. They are looked for once: each copy of a world needs them.

    Args:
        directory: Where git's own are; None: where git says.
        path: The directories of programs, with helpers that come with other software.
    """
    own = Path(directory or run_git(Path("."), "--exec-path").strip())
    programs = {program.name: program for program in own.iterdir()}
    for folder in map(Path, os.get_exec_path({"PATH": path})):
        with suppress(OSError):  # as a shell, git passes over directories that are missing or may not be read
            helpers = [program for program in folder.absolute().iterdir() if program.match("git-remote-*")]
            programs = {program.name: program for program in helpers} | programs
    return programs


def older_than_needed() -> str | None:
    """What is too old about the git that is installed. None: it is new enough, or there is none."""
    if shutil.which("git") is None:
        return None
    version = run_git(Path("."), "version").split()[2]
    parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if parts >= [2, 32]:
        return None
    return f"git {version} is older than 2.32: a push from a copy to a repository outside of it may not be refused"
