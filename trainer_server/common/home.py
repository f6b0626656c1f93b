"""The home directory of a server, where clients read the server's address and token.

`ART_HOME` (default `~/.art-langgraph`) holds the state of a server, and is readable by its owner only. `art-langgraph
connect` puts the address and token of a server elsewhere beside it, which then comes first. `ART_BASE_URL` and
`ART_API_KEY` override the address and token in it. `ART_CACHE` (default `~/.cache/art-langgraph`) holds files that
can be made again: vLLM's environment, converted models, answers of judges. All homes of a user share one cache.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel

from trainer_server.wire.errors import HOW_TO_START, ConfigError
from trainer_server.wire.text import writable

DEFAULT_URL = "http://127.0.0.1:8400"
"""The address of a server with the default host and port."""
REWRITTEN = 2**30
"""Bytes up to which a database is written anew after a deletion. Writers wait meanwhile: about 10 s for so many."""


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
    def tokens(self) -> Path:
        """Named tokens: hashes, scopes and limits, no secrets. Mode 0600."""
        return self.root / "tokens.json"

    @property
    def identity(self) -> Path:
        """JSON file with the id of the server."""
        return self.root / "identity.json"

    @property
    def audit(self) -> Path:
        """Directory of the audit log."""
        return self.root / "audit"

    @property
    def server(self) -> Path:
        """JSON file with `url` and `pid` of the running server."""
        return self.root / "server.json"

    def server_url(self) -> str | None:
        """Address of the running server; None: none is running. Raises ConfigError for a file that has no address."""
        try:
            return str(json.loads(self.server.read_text(encoding="utf-8"))["url"])
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.server} cannot be read as the address of a server: {error!r}") from None

    @property
    def connection(self) -> Path:
        """JSON file with `url` and `api_key` of the server of `art-langgraph connect`, mode 0600."""
        return self.root / "connection.json"

    def read_connection(self) -> Connection | None:
        """The server of `connect`; None: there is none. Raises ConfigError for a file that cannot be read."""
        try:
            record = json.loads(self.connection.read_text(encoding="utf-8"))
            return Connection(str(record["url"]), str(record["api_key"]))
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.connection} cannot be read as address and token of a server ({type(error).__name__}): run "
                "`art-langgraph connect` again, or `art-langgraph disconnect`"
            ) from None

    def connect(self, connection: Connection) -> None:
        """Has programs of this home ask a server elsewhere.

        Raises:
            ConfigError: The directory has other uses, or cannot be written.
        """
        self.make_private()
        aside = self.connection.with_suffix(f".{os.getpid()}")
        try:
            create_private(aside)
            aside.write_text(json.dumps(asdict(connection)), encoding="utf-8")
            aside.replace(self.connection)
        except OSError as error:
            raise ConfigError(f"{self.connection} cannot be written: {error.strerror}") from None

    def disconnect(self) -> bool:
        """Forgets the server of `connect`. Returns whether there was one."""
        there = self.connection.exists()
        self.connection.unlink(missing_ok=True)
        return there

    @property
    def ledger(self) -> Path:
        """The SQLite ledger."""
        return self.root / "ledger.sqlite"

    @property
    def archive(self) -> Path:
        """Directory of earlier months of the ledger (Parquet)."""
        return self.root / "archive"

    @property
    def rollouts(self) -> Path:
        """What rollouts were registered with, and their rewards (SQLite)."""
        return self.root / "rollouts.sqlite"

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
        """Directory of files that can be made again, the same for all homes of a user.

        `$ART_CACHE`, or `$XDG_CACHE_HOME/art-langgraph`, or `~/.cache/art-langgraph`.
        """
        if directory := os.environ.get("ART_CACHE"):
            return Path(directory).expanduser().absolute()
        above = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (above if above.is_absolute() else Path("~/.cache").expanduser()) / "art-langgraph"

    def make_private(self) -> str | None:
        """Makes the home directory readable by its owner only (mode 0700), and makes it if it does not exist.

        Windows has no modes: a directory there is as private as the one above it, and a user's profile is private.

        Returns:
            What was changed at a directory that existed, or why it could not be changed; None if nothing had to be.

        Raises:
            ConfigError: The directory cannot be made, or has other uses, so that it must not become private; or
                something in it is damaged, see `check`.
        """
        if os.path.lexists(self.root) and not self.root.is_dir():
            raise ConfigError(f"{self.root} is no directory: name a directory as the home (--home, ART_HOME)")
        sticky = self.root.is_dir() and self.root.stat().st_mode & stat.S_ISVTX  # as /tmp is
        if sticky or self.root in (Path(self.root.anchor), Path(os.path.expanduser("~"))):
            raise ConfigError(
                f"{self.root} cannot be a home directory of art-langgraph, which only its owner may read: name a "
                f"directory of its own, such as {self.root / 'art-langgraph'} (--home, ART_HOME)"
            )
        if not self.root.exists():
            make_directory(self.root, "--home or ART_HOME", mode=0o700)
        self.check()
        mode = stat.S_IMODE(self.root.stat().st_mode)
        if sys.platform == "win32" or not mode & 0o077:
            return None
        try:
            self.root.chmod(0o700)
        except PermissionError:  # it belongs to another user
            pass
        if self.root.stat().st_mode & 0o077:  # also on a file system without modes
            return (
                f"other users can read {self.root} (mode {mode:04o}), and that cannot be changed: prompts, answers and "
                "the token may be open to them. Choose another --home, or let its owner run chmod 700"
            )
        return f"other users could read {self.root} (mode {mode:04o}); now only you can (mode 0700)"

    def check(self) -> None:
        """Checks whether what is in the home is of the right kind, and whether its databases were cut off.

        Raises:
            ConfigError: A directory stands in a file's place, or a file in a directory's; or a database is empty,
                though a server has used it.
        """
        files = (self.token, self.tokens, self.identity, self.server, self.connection, self.root / "lock")
        databases = (self.ledger, self.rollouts, self.store)
        directories = (self.policies, self.jobs, self.archive, self.audit, self.logs)
        for path in (*files, *databases, *directories):
            is_right = path.is_dir() if path in directories else path.is_file()
            if os.path.lexists(path) and not is_right:
                kind = "directory" if path in directories else "file"
                raise ConfigError(
                    f"{path} must be a {kind}, and is none: move it away, and put back what was there, from a backup "
                    "(`art-langgraph restore`) if there is one"
                )
        for path in databases[:2] if self.identity.exists() else ():  # they are made before it
            if path.is_file() and not path.stat().st_size:
                raise ConfigError(
                    f"{path} is empty, and had tables when the server ran last: something has cut it off, and what was "
                    "in it is gone. Restore a backup (`art-langgraph restore`); or delete the file to begin anew, with "
                    "the policies and without the completions, rewards and runs"
                )


def make_directory(path: Path, setting: str, *, mode: int = 0o777) -> None:
    """Makes a directory to write in, and those above it.

    Args:
        path: The directory.
        setting: What chooses another one, for the error message.
        mode: Its permissions if it is made, less the umask.

    Raises:
        ConfigError: It cannot be made or written.
    """
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}. Name another directory with {setting}") from None


def create_private(path: Path) -> None:
    """Makes an empty file that only the user may read, and the directories above it. A file that exists is left alone.

    On Windows, those may read it who may read what is in its directory.

    Raises:
        OSError: The file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # not opened: closing a database's file would end SQLite's locks of this process
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o600))


def write_private(path: Path, text: str) -> None:
    """Writes a text that quotes people and models: in UTF-8 whatever it has in it, and readable by the user only.

    A file that exists keeps its permissions.
    """
    create_private(path)
    path.write_text(writable(text), encoding="utf-8")


def overwrite_deleted(db: sqlite3.Connection, most_bytes: int = REWRITTEN) -> bool:
    """Leaves nothing of deleted rows in the files of a database in WAL mode.

    Rows are deleted under `PRAGMA secure_delete`, which overwrites them in their pages. That leaves copies in the log
    of writes, which is emptied here, and may leave parts where SQLite had moved rows before. So the file is written
    anew.

    Args:
        db: A connection without a transaction.
        most_bytes: Size above which the file is not written anew, because writers would wait for too long.

    Returns:
        Whether the file was written anew.

    Raises:
        sqlite3.Error: The disk is full, or somebody reads for so long that the log cannot be emptied.
    """
    (pages,), (size,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA page_size").fetchone()
    small = pages * size <= most_bytes
    if small:
        db.execute("VACUUM")
    if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise sqlite3.OperationalError("the log of writes is in use by a reader, and could not be emptied")
    return bool(small)


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
        """Finds address and token: first the arguments, then the environment, then the files in the home directory,
        that of `connect` before those of the home's own server.

        A token in the home directory goes to the server that it belongs to. No other address gets it.

        Args:
            base_url: Address of the server; None: `ART_BASE_URL`, an address in the home directory, or DEFAULT_URL.
            api_key: Bearer token; None: `ART_API_KEY`, or a token in the home directory.
            home: Home directory of the server; None: see Home.find.

        Raises:
            ConfigError: There is no token for the address, or it is empty; or the address is none.
        """
        paths, url = Home.find(home), cls.find_url(base_url, home)
        if key := api_key or os.environ.get("ART_API_KEY"):
            return cls(url, key)
        if (remote := paths.read_connection()) and origin(url) == origin(remote.url):
            return cls(url, remote.api_key)
        if not paths.token.exists():
            raise ConfigError(
                f"no token for the trainer server: {paths.token} does not exist and ART_API_KEY is not set. "
                f"{HOW_TO_START}, or set ART_BASE_URL and ART_API_KEY."
            )
        own = paths.server_url() or DEFAULT_URL
        if origin(url) != origin(own):
            raise ConfigError(
                f"no token for the trainer server at {url}: {paths.token} has the token of the server at {own}. Give "
                "the key of the server that you name, as api_key=… or ART_API_KEY"
            )
        if not (token := paths.token.read_text(encoding="utf-8").strip()):
            raise ConfigError(f"{paths.token} is empty: delete it and start the server again, which makes a new token")
        return cls(url, token)

    @staticmethod
    def find_url(base_url: str | None = None, home: str | Path | None = None) -> str:
        """Finds the address of a server as `find` does.

        Raises:
            ConfigError: It is no address; see `server_address`.
        """
        if not (url := base_url or os.environ.get("ART_BASE_URL")):
            paths = Home.find(home)
            url = remote.url if (remote := paths.read_connection()) else paths.server_url() or DEFAULT_URL
        return server_address(url)


class TokenInfo(BaseModel):
    """What `GET /api/token` says of the token that asks."""

    name: str
    owner: str | None = None
    """Whose it is; None: nobody was named."""
    scope: str
    """`engine`, `rollout`, `train` or `admin`; the last two have the rights of those before them."""
    expires: float | None = None
    """Unix time, seconds; None: never."""
    version: str
    """Version of the server."""


def origin(url: str) -> tuple[str, str, int | None]:
    """What must be equal in two addresses of one server. Every name of this machine's loopback interface is the same.

    Raises:
        ConfigError: The address is no URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address of a server: {error}") from None
    loopback = host == "localhost"
    with suppress(ValueError):
        loopback = loopback or ip_address(host).is_loopback
    return parts.scheme, "localhost" if loopback else host, port or {"http": 80, "https": 443}.get(parts.scheme)


def server_address(url: str) -> str:
    """The address of a server, without `/v1`.

    Raises:
        ConfigError: It is no address.
    """
    scheme, host, _ = origin(url)
    if scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is no address of a server: it must look like https://art.example.com:8400")
    return url.rstrip("/").removesuffix("/v1")


def is_local(url: str) -> bool:
    """Whether an address is on this machine's loopback interface."""
    return origin(url)[1] == "localhost"
