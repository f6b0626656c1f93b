"""Logs of the server: lines with the request and the rollout that they are about, as text or JSON, without secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import QueueHandler, RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

from trainer_server.common.home import create_private
from trainer_server.wire import ConfigError
from trainer_server.wire.text import visible, writable

LogFormat = Literal["text", "json"]

_request: ContextVar[str | None] = ContextVar("art_request", default=None)
_rollout: ContextVar[str | None] = ContextVar("art_log_rollout", default=None)
context: list[Callable[[], dict[str, str]]] = []
"""Functions that give further facts of every line, such as the ids of a trace."""

_PLACEHOLDER = "[secret]"
_NAMES = (
    r"authorization",
    r"(?:api|access|account|private|secret|signing|encryption)[_-]?key(?:[_-]?id)?",
    r"(?:access|auth|refresh|id|session|security|bearer|bot|api)[_-]?token",
    r"(?:client|shared|webhook)[_-]?secret",
    r"passw(?:or)?d|passphrase|pgpassword",
)
"""What a key is called in headers, addresses and settings. `token` alone is a word of this project."""
_SHAPES = (
    r"(?:sk|rk|hf|gsk|xai|pplx|tvly|nvapi|lsv2_[a-z]{2}|whsec|npm|pypi|dop_v1|glpat|gl[a-z]{2,5})[-_][A-Za-z0-9_-]{16,}",
    r"gh[opsru]_[A-Za-z0-9_]{16,}|github_pat_[A-Za-z0-9_]{16,}",  # GitHub
    r"(?-i:(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{16})\b",  # AWS
    r"(?:xox[a-z]|xapp|xwfp)-[A-Za-z0-9-]{10,}|hooks\.slack\.com/[a-z]+/[A-Za-z0-9/_-]{16,}",  # Slack
    r"(?-i:AIza)[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}",  # Google
    r"(?-i:eyJ)[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){0,3}",  # a JSON web token, signed or encrypted
    r"(?-i:SG)\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"art-[A-Za-z0-9_-]{32,}",
    # User and password in base64, and no two words: they have a digit, or a capital after a small letter.
    r"(?-i:(?<=[Bb]asic )(?=[A-Za-z0-9+/_-]*(?:[0-9=]|[a-z][A-Z]))[A-Za-z0-9+/_-]{8,}={0,2})",
)
"""Keys of well-known kinds."""
_SECRETS = re.compile(
    rf"(?i)(\bbearer\s+|\b[\w-]*?(?:{'|'.join(_NAMES)})['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token|apikey|digest)\s+)?)"
    r"[^\s'\",;)\]}]{6,}"
    rf"|\b(?:{'|'.join(_SHAPES)})"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
"""What looks like a key: after its name or `Bearer`, of a well-known kind, in an address, or in PEM."""
_KNOWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a server logs; options of `serve` that begin with `--log-`.

    Args:
        format: Lines of the log: for people, or a JSON object each.
        file: A file that gets the log too, besides the standard error.
        max_mib: Size at which another --log-file is begun, MiB.
        files: Earlier log files that are kept: FILE.1 is the newest.
        requests: Log each request: route, status, seconds.
    """

    format: LogFormat = "text"
    file: Path | None = field(default=None, metadata={"dir_okay": False, "readable": False})
    max_mib: int = field(default=50, metadata={"min": 1})
    files: int = field(default=5, metadata={"min": 1})
    requests: bool = field(default=False, metadata={"flag": "--log-requests/--no-log-requests"})


class Secrets:
    """Takes keys out of texts: those that were registered (`keep`), and whatever looks like one."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._lock = threading.Lock()

    def keep(self, *secrets: str | None) -> None:
        """Registers keys that must not be logged. None and what is too short to be one are left out."""
        with self._lock:
            self._secrets |= {secret for secret in secrets if secret and len(secret) >= 6}

    def hide_secrets(self, text: str) -> str:
        """The text without keys."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, _PLACEHOLDER)
        return _SECRETS.sub(lambda match: f"{match[1] or ''}{_PLACEHOLDER}", text)


secrets = Secrets()
"""Those of this process."""


@contextmanager
def about(*, request: str | None = None, rollout: str | None = None) -> Iterator[None]:
    """What is logged while the context is open, in this task and those that it starts, is about a request.

    Args:
        request: Id of the request.
        rollout: Id of its rollout; None: it has none.
    """
    request_token, rollout_token = _request.set(request), _rollout.set(rollout)
    try:
        yield
    finally:
        _request.reset(request_token)
        _rollout.reset(rollout_token)


def configure(settings: LogSettings) -> None:
    """Sends the log of this process where the settings say. Called again, it replaces what was set before.

    Raises:
        ConfigError: The file cannot be written.
    """
    formatter = JSONLines() if settings.format == "json" else TextLines()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if settings.file is not None:
        handlers.append(_file(settings.file, settings))
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(_note)
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    _quiet()


def forward(send: Callable[[dict[str, Any]], None]) -> None:
    """Sends the log of this process to another one of the server, which calls `take` with each line.

    Args:
        send: Gets the lines.
    """
    handler = _Forwarder(send)
    handler.setFormatter(logging.Formatter())  # else basicConfig's, whose level and name `take` would log again
    handler.addFilter(_note)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    _quiet()


def take(line: dict[str, Any]) -> None:
    """Logs a line of another process here."""
    record = logging.makeLogRecord(line)
    logging.getLogger(record.name).handle(record)


class _Forwarder(QueueHandler):
    """Sends lines as `QueueHandler` prepares them for another process. Args: see `forward`."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        self._send(vars(record))


def _quiet() -> None:
    """Warnings are lines too; libraries log theirs alone."""
    logging.captureWarnings(True)
    for name in ("httpx", "httpcore", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _file(path: Path, settings: LogSettings) -> logging.Handler:
    try:
        create_private(path)
        size = settings.max_mib << 20
        return _PrivateFile(path, maxBytes=size, backupCount=settings.files, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log-file {path} cannot be written: {error.strerror or error}") from None


class _PrivateFile(RotatingFileHandler):
    """Each file is readable by its owner only."""

    def _open(self) -> Any:
        create_private(Path(self.baseFilename))
        return super()._open()


def _note(record: logging.LogRecord) -> bool:
    """Writes down what a line is about where it is logged: another thread may print it."""
    facts = {"request_id": _request.get(), "rollout_id": _rollout.get()}
    for more in context:
        facts |= more()
    for name, value in facts.items():
        if value is not None and not hasattr(record, name):
            setattr(record, name, value)
    return True


def _more(record: logging.LogRecord) -> dict[str, Any]:
    """What a line has besides its message: request, rollout, and what `extra` gave."""
    return {name: value for name, value in vars(record).items() if name not in _KNOWN_FIELDS}


class TextLines(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO message [request_id=req-… rollout_id=ro-…]`.

    A line break in a message is marked, so that no text can look like another line."""

    def format(self, record: logging.LogRecord) -> str:
        message = visible(record.getMessage()).replace("\n", "\n  | ")
        more = " ".join(f"{name}={visible(str(value))}" for name, value in _more(record).items())
        when = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record.created))},{record.msecs:03.0f}"
        text = f"{when} {record.levelname} {message}" + (f" [{more}]" if more else "")
        for trace in (self.formatException(record.exc_info) if record.exc_info else None, record.stack_info):
            text += f"\n{trace}" if trace else ""
        return writable(secrets.hide_secrets(text))


class JSONLines(logging.Formatter):
    """A JSON object a line: `time` (UTC), `level`, `logger`, `message`, and where they are known `request_id`,
    `rollout_id`, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_more(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        values = {
            name: secrets.hide_secrets(value) if isinstance(value, str) else value for name, value in line.items()
        }
        return writable(json.dumps(values, ensure_ascii=False, default=lambda value: secrets.hide_secrets(str(value))))
