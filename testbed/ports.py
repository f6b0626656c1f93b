"""Ports that stay free for processes which listen there later, or again."""

from __future__ import annotations

import socket
import weakref

from trainer_server.engines.vllm.command import free_port


def reserved_port(owner: object) -> int:
    """A port of the loopback interface that no other program is given while its owner exists.

    A socket that does not listen is bound to it. A process whose own socket has SO_REUSEADDR, which all of our servers
    set, can listen there.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", free_port()))
    weakref.finalize(owner, holder.close)
    return int(holder.getsockname()[1])
