"""What a gateway process is given at its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer_server.gateway.recorder import Identity
from trainer_server.server.config import ServerConfig


@dataclass(frozen=True, slots=True)
class Setup:
    """What a gateway process begins with.

    Args:
        config: The server's options.
        identity: The server's.
        key: The server's own key.
        engines: Address and key of each engine.
    """

    config: ServerConfig
    identity: Identity
    key: str
    engines: Sequence[tuple[str, str | None]]
