"""The home directory of a server, where clients read the server's address and token.

`ART_HOME` (default `~/.art-langgraph`) holds the state of a server. `ART_BASE_URL` and `ART_API_KEY` override the
address and token in it. `ART_CACHE` (default `$ART_HOME/cache`) holds files that can be made again: vLLM's environment
and converted models.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from trainer_server.wire.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8400"
"""The address of a server with the default host and port."""


@dataclass(frozen=True, slots=True)
class Home:
    """Paths under the home directory of a server.

    Args:
        root: The home directory.
    """

    root: Path

    @classmethod
    def find(cls, root: str | Path | None = None) -> Home:
        """The home at `root`, or `$ART_HOME`, or `~/.art-langgraph`."""
        return cls(Path(root or os.environ.get("ART_HOME") or "~/.art-langgraph").expanduser().absolute())

    @property
    def token(self) -> Path:
        """File with the bearer token, mode 0600."""
        return self.root / "token"

    @property
    def server(self) -> Path:
        """JSON file with `url` and `pid` of the running server."""
        return self.root / "server.json"

    @property
    def ledger(self) -> Path:
        """The SQLite ledger."""
        return self.root / "ledger.sqlite"

    @property
    def store(self) -> Path:
        """The client's trajectory store."""
        return self.root / "trajectories.sqlite"

    @property
    def policies(self) -> Path:
        """Directory of policies and their versions."""
        return self.root / "policies"

    @property
    def jobs(self) -> Path:
        """Directory of jobs."""
        return self.root / "jobs"

    @property
    def logs(self) -> Path:
        """Directory of logs."""
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        """Directory of files that can be made again: `$ART_CACHE`, or `cache` in the home directory."""
        return Path(os.environ.get("ART_CACHE") or self.root / "cache").expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and token of a trainer server.

    Args:
        url: Without a trailing slash and without `/v1`.
        api_key: The bearer token.
    """

    url: str
    api_key: str

    @classmethod
    def find(
        cls, base_url: str | None = None, api_key: str | None = None, home: str | Path | None = None
    ) -> Connection:
        """Finds address and token: first the arguments, then the environment, then the files in the home directory.

        Args:
            base_url: Address of the server; None: `ART_BASE_URL`, the address in the home directory, or DEFAULT_URL.
            api_key: Bearer token; None: `ART_API_KEY`, or the token in the home directory.
            home: Home directory of the server; None: see Home.find.

        Raises:
            ConfigError: There is no token.
        """
        paths = Home.find(home)
        url = base_url or os.environ.get("ART_BASE_URL")
        if not url and paths.server.exists():
            url = json.loads(paths.server.read_text())["url"]
        key = api_key or os.environ.get("ART_API_KEY")
        if not key and paths.token.exists():
            key = paths.token.read_text().strip()
        if not key:
            raise ConfigError(
                f"no token for the trainer server: {paths.token} does not exist and ART_API_KEY is not set. "
                "Start a server with `art-langgraph serve`, or set ART_BASE_URL and ART_API_KEY to those of a "
                "running one."
            )
        return cls((url or DEFAULT_URL).rstrip("/").removesuffix("/v1"), key)
