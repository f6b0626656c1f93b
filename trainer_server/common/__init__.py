"""What server and clients both need beside the contract of the HTTP API: the home of a server, the guard of child
processes, JSON Lines, schema numbers of files, code that an option names, traces.

Imports the standard library, pydantic and `wire` only.
"""

from trainer_server.common.home import DEFAULT_URL, Connection, Home, TokenInfo

__all__ = ["DEFAULT_URL", "Connection", "Home", "TokenInfo"]
