"""The id of a server: its home has it, so that it stays the same across restarts."""

from __future__ import annotations

import json
import secrets

from trainer_server.common import Home
from trainer_server.process.files import write_atomic
from trainer_server.wire import ConfigError

_MOST = 200
"""Characters of an id."""


def server_id(home: Home) -> str:
    """The id of the server of this home; its completions carry it. It is made when it is asked for first.

    Raises:
        ConfigError: Its file is damaged.
    """
    if not home.identity.exists():
        write_atomic(home.identity, json.dumps({"server_id": f"srv-{secrets.token_hex(8)}"}))
    try:
        server_id = json.loads(home.identity.read_text())["server_id"]
        if not isinstance(server_id, str) or not 0 < len(server_id) <= _MOST:
            raise ValueError(f"{server_id!r:.50} is no id")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{home.identity} cannot be read as the id of this server ({type(error).__name__}: {error}). Put the file "
            'of a backup back, or write {"server_id": "…"} into it, with the `server_id` of a completion of this '
            "server. If the file is deleted, the server takes a new id, and does not train its earlier completions, "
            "which are then those of another server"
        ) from None
    return server_id
