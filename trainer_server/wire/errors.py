"""The one tree of errors. A message says what was wrong, with which value, and what to do about it."""

from __future__ import annotations


class ARTError(Exception):
    """Root of all errors that this project raises on purpose.

    ARTError
    ├── ConfigError        a setting, a file or an argument of the user is wrong
    ├── ServerError        the trainer server answered with an error (carries its HTTP status)
    │   └── JobFailed      a training job ended in failure
    ├── ServerUnreachable  nobody answers at the server's address
    ├── RolloutsFailed     every run of a gather, an evaluation or a step failed (art_langgraph)
    ├── Refusal            inside the server: a request is refused, and its client can do something about it
    │   ├── NotFound       what it names does not exist (HTTP 404)
    │   ├── Conflict       it cannot be done as things stand (HTTP 409)
    │   ├── Unprocessable  its content cannot be used (HTTP 422)
    │   └── NotStored      what it brings could not be written to disk (HTTP 507)
    ├── EngineError        vLLM could not be installed, started, or asked
    ├── TrainingError      a step cannot be taken with these data
    ├── LLMError           a model that we ask - a judge, a writer of scenarios - gave no usable answer
    └── MCPError           an MCP server could not be reached or broke its protocol
    """


class ConfigError(ARTError):
    """A setting, a file or an argument is wrong."""


class ServerError(ARTError):
    """The trainer server refused or failed a request.

    status: HTTP status. code: short machine-readable reason, as in OpenAI's error body.
    """

    def __init__(self, message: str, *, status: int, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class JobFailed(ServerError):
    """A training job ended in failure; the policy stayed at the version it had."""

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message, status=500, code="job_failed")
        self.job_id = job_id


class ServerUnreachable(ARTError):
    """Nobody answers at the server's address."""


class Refusal(ARTError):
    """The server refuses a request. Parts of the server raise it; the HTTP layer turns it into an answer.

    Args:
        message: What is wrong, with the value, and what to do about it.
        code: Short machine-readable reason.
        param: The field of the request that is to blame.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class NotFound(Refusal):
    """What a request names does not exist."""


class Conflict(Refusal):
    """A request cannot be done as things stand."""


class Unprocessable(Refusal):
    """The content of a request cannot be used."""


class NotStored(Refusal):
    """What a request brings could not be written to disk."""


class EngineError(ARTError):
    """vLLM could not be installed, started, or asked."""


class TrainingError(ARTError):
    """A training step cannot be taken with these data."""


class LLMError(ARTError):
    """A language model that we ask - a judge, a writer of scenarios - gave no usable answer.

    kind: auth, quota, missing (no such model), refused, too_long, bad_request, malformed, timeout, rate_limit, server,
    or unreachable. The first six are never retried.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class MCPError(ARTError):
    """An MCP server could not be reached, or broke its protocol.

    failure: "closed" (could not be reached, or ended), "timeout", "protocol" (an error of JSON-RPC, or an answer that
    is none) or "missing" (no answer in a cassette). code: of JSON-RPC, where the server gave one.
    """

    def __init__(self, message: str, *, failure: str = "protocol", code: int | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.code = code
