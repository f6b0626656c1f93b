"""The Unix sockets of a vLLM that is started here: only its own user can reach them.

It listens on one of them. Its processes talk to one another on others in the same directory
(`VLLM_RPC_BASE_PATH`), which vLLM names itself, and does not remove when it is killed.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path

from trainer_server.wire import EngineError


def new_socket() -> Path:
    """The path of a new Unix socket. Its directory does not exist yet."""
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > 40:  # the path of a socket has 107 bytes at most, and vLLM's names have 36
        parent = Path("/tmp")
    return parent / f"art-engine-{secrets.token_hex(8)}" / "vllm.sock"


def prepare_socket(socket: Path) -> None:
    """Makes the directory of a socket, and removes the sockets that an earlier process left there.

    Only this user may enter the directory. So whoever answers on the socket was started by this user, and no process
    of another user can get vLLM's key, or answer in its place.

    Raises:
        EngineError: The directory belongs to somebody else.
    """
    directory = socket.parent
    directory.mkdir(mode=0o700, exist_ok=True)
    facts = directory.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise EngineError(f"vLLM cannot listen in {directory}: other users can write there, or own it; remove it")
    for left in directory.iterdir():
        left.unlink()
