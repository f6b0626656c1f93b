"""The id of a server: its home has it, so that it stays the same across restarts."""

from __future__ import annotations

import json
import secrets

from trainer_server.process.files import write_atomic
from trainer_server.wire import Home


def server_id(home: Home) -> str:
    """The id of the server of this home; its completions carry it. It is made when it is asked for first."""
    path = home.root / "identity.json"
    if not path.exists():
        write_atomic(path, json.dumps({"server_id": f"srv-{secrets.token_hex(8)}"}))
    return str(json.loads(path.read_text())["server_id"])
