"""Where a server leaves its address and token, and where clients find them.

`ART_HOME` (default `~/.art-langgraph`) holds the state of a server; `ART_BASE_URL` and `ART_API_KEY` override what is
found there. `ART_CACHE` (default `$ART_HOME/cache`) holds what can be made again: vLLM's environment, converted models.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from trainer_server.wire.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8400"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths under the home directory of a server."""

    root: Path

    @classmethod
    def find(cls, root: str | Path | None = None) -> Home:
        """The home at `root`, or `$ART_HOME`, or `~/.art-langgraph`."""
        return cls(Path(root or os.environ.get("ART_HOME") or "~/.art-langgraph").expanduser().absolute())

    @property
    def token(self) -> Path:
        """The bearer token, mode 0600."""
        return self.root / "token"

    @property
    def server(self) -> Path:
        """`{"url", "pid"}` of the running server, JSON."""
        return self.root / "server.json"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def store(self) -> Path:
        """The client's trajectory store."""
        return self.root / "trajectories.sqlite"

    @property
    def policies(self) -> Path:
        return self.root / "policies"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        return Path(os.environ.get("ART_CACHE") or self.root / "cache").expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and token of a trainer server.

    url: without a trailing slash and without `/v1`.
    """

    url: str
    api_key: str

    @classmethod
    def find(
        cls, base_url: str | None = None, api_key: str | None = None, home: str | Path | None = None
    ) -> Connection:
        """Arguments first, then `ART_BASE_URL` / `ART_API_KEY`, then the files under the home directory.

        Raises ConfigError when no token can be found.
        """
        where = Home.find(home)
        url = base_url or os.environ.get("ART_BASE_URL")
        if not url and where.server.exists():
            url = json.loads(where.server.read_text())["url"]
        key = api_key or os.environ.get("ART_API_KEY")
        if not key and where.token.exists():
            key = where.token.read_text().strip()
        if not key:
            raise ConfigError(
                f"no token for the trainer server: {where.token} does not exist and ART_API_KEY is not set. "
                "Start a server with `art-langgraph serve`, or set ART_BASE_URL and ART_API_KEY to those of a "
                "running one."
            )
        return cls((url or DEFAULT_URL).rstrip("/").removesuffix("/v1"), key)
