"""The errors of this project. A message says what is wrong, with the value, and what to do about it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

SERVER_STOPPING = "server_stopping"
"""Code of the error with which a server that was told to stop breaks an answer off."""


class ARTError(Exception):
    """Base class of all errors that this project raises on purpose.

    ARTError
    ├── ConfigError        a setting, a file or an argument of the user is wrong
    │   ├── NewerSchema    a newer release wrote a file
    │   └── StoreUnavailable  the trajectory store cannot be used: a full disk, a lock, no database (art_langgraph)
    ├── ServerError        the trainer server answered with an error (carries its HTTP status)
    │   └── JobFailed      a training job ended in failure
    ├── ServerUnreachable  no server answers at the address
    ├── RolloutsFailed     every run of a gather, an evaluation or a step failed (art_langgraph)
    │   └── PinIgnored     another version answered a run, or at another temperature, than was asked for
    ├── DuplicateRun       the trajectory store has another run with this id (art_langgraph)
    ├── Refusal            inside the server: a request is refused, and its client can do something about it
    │   ├── NotFound       the request names something that does not exist (HTTP 404)
    │   ├── Gone           the request tells of something that a user deleted (HTTP 410)
    │   ├── Conflict       the current state does not allow the request (HTTP 409)
    │   ├── Unprocessable  the content of the request cannot be used (HTTP 422)
    │   └── NotStored      the content of the request could not be written to disk (HTTP 507)
    ├── EngineError        vLLM could not be installed, started, or asked
    ├── TrainingError      a step cannot be taken with these data
    ├── LLMError           a language model - a judge, a writer of scenarios - gave no usable answer
    └── MCPError           an MCP server could not be reached or broke its protocol
    """


class ConfigError(ARTError):
    """A setting, a file or an argument is wrong."""


def require_linux(what: str) -> None:
    """Raises ConfigError where the trainer server cannot run. what: The command, for the message."""
    if sys.platform != "linux":
        raise ConfigError(
            f"{what} needs Linux, and this is {platform.system()}: run it on a Linux machine{_WSL}. To use a server "
            "that runs there: art-langgraph connect URL"
        )


_WSL = ", or in WSL2" if sys.platform == "win32" else ""
HOW_TO_START = (
    "Start one with `art-langgraph serve`, or use one elsewhere: art-langgraph connect URL"
    if sys.platform == "linux"
    else f"Start one on a Linux machine{_WSL}, and call here: art-langgraph connect URL"
)
"""What helps where no trainer server answers."""


class NewerSchema(ConfigError):
    """A file has a schema that this release does not know. It was left as it is.

    Args:
        path: The file, or what names the database.
        schema: Number of its schema.
        newest: The highest number that this release knows.
    """

    def __init__(self, path: Path | str, schema: int, newest: int) -> None:
        super().__init__(
            f"{path} has schema {schema}, and this release knows schemas up to {newest}: a newer release wrote it. "
            "Upgrade this one (pip install -U art-langgraph), or name another home (--home, ART_HOME)"
        )


class ServerError(ARTError):
    """The trainer server answered a request with an error.

    Args:
        message: The server's message.
        status: HTTP status.
        code: Short machine-readable reason, as in OpenAI's error body; None: the server gave none.
    """

    def __init__(self, message: str, *, status: int, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class JobFailed(ServerError):
    """A training job failed. The policy stays at the version that it had.

    Args:
        message: Why the job failed.
        job_id: Id of the job.
    """

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message, status=500, code="job_failed")
        self.job_id = job_id


class ServerUnreachable(ARTError):
    """No server answers at the address."""


class Refusal(ARTError):
    """The server refuses a request. Parts of the server raise it; the HTTP layer turns it into an answer.

    Args:
        message: What is wrong, with the value, and what to do about it.
        code: Short machine-readable reason.
        param: The field of the request that is wrong; None: no single field.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class NotFound(Refusal):
    """A request names something that does not exist."""


class Gone(Refusal):
    """A request tells of something that a user has deleted."""


class Conflict(Refusal):
    """The current state does not allow a request."""


class Unprocessable(Refusal):
    """The content of a request cannot be used."""


class NotStored(Refusal):
    """The content of a request could not be written to disk."""


class EngineError(ARTError):
    """vLLM could not be installed, started, or asked."""


class TrainingError(ARTError):
    """A training step cannot be taken with these data."""


class LLMError(ARTError):
    """A language model - a judge, a writer of scenarios - gave no usable answer.

    Args:
        message: What went wrong.
        kind: auth, quota, missing (no such model), refused, too_long, bad_request, malformed, timeout, rate_limit,
            server, or unreachable. The first six are never retried.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class MCPError(ARTError):
    """An MCP server could not be reached, or broke the protocol.

    Args:
        message: What went wrong.
        failure: "closed" (the server could not be reached, or ended), "timeout", "protocol" (an error of JSON-RPC, or
            an invalid answer), "limited" (it refused a call until the end, because there are too many) or "missing"
            (a cassette has no answer).
        code: Error code of JSON-RPC; None: the server gave none.
        log: What the server wrote to its stderr meanwhile, where the message says nothing. The text of the error has
            it; `message` has not, as no agent may see it.
    """

    def __init__(self, message: str, *, failure: str = "protocol", code: int | None = None, log: str = "") -> None:
        super().__init__(f"{message} (the server wrote meanwhile: {log})" if log else message)
        self.message = message
        self.failure = failure
        self.code = code
        self.log = log

    def with_texts(self, replace: Callable[[str], str]) -> MCPError:
        """The same error with other words: `replace` changes the message and the log."""
        return MCPError(replace(self.message), failure=self.failure, code=self.code, log=replace(self.log))
