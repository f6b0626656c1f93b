"""Errors of model calls: their kind, whether and when to retry, and the remedy."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

FATAL = {401: "auth", 403: "auth", 402: "quota", 404: "missing"}
REMEDY = {
    "auth": "check the key: pass api_key=…, or set the provider's environment variable",
    "quota": "the account has no credit left",
    "missing": "check the model's name and base_url",
    "refused": "change the instructions, or take another model",
    "too_long": "shorten what the model is given: fewer runs at once, smaller token budgets, or another model",
    "bad_request": "the endpoint does not take this request in any form",
    "malformed": "take a stronger model",
    "timeout": "raise timeout=…, or take a faster model",
    "rate_limit": "lower max_concurrency=…, or raise retries=… and max_wait=…",
    "server": "the provider has trouble: try again later",
    "unreachable": "check that the endpoint is up, and base_url",
}
_NO_KEY = re.compile(r"missing credentials|api_key client option must be set", re.I)
"""How openai's package says that it was given no key."""
CUT_OFF = "the answer was cut off at the length limit: raise max_tokens=…"


class Fault(Exception):
    """A question to a model got no usable answer. Internal to this package: `LLM` raises LLMError.

    Args:
        kind: See LLMError.
        message: What happened.
        again: Whether the same question may succeed later.
        other_mode: Whether another mode may succeed.
        wait: Seconds that the server asked to wait for; None: it did not say.
    """

    def __init__(
        self, kind: str, message: str, *, again: bool = False, other_mode: bool = False, wait: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.again, self.other_mode, self.wait = kind, message, again, other_mode, wait


def fault_of(error: Exception) -> Fault:
    """Translates an error of litellm, a LangChain chat model or a provider's package.

    The packages use the names of openai's error classes, and the errors have the HTTP status and headers. Therefore
    none of the packages is imported here.
    """
    message = re.sub(r"^litellm\..*?Exception - ", "", str(error)) or type(error).__name__  # litellm's own preface
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    names = _names(error)
    if names & {"Timeout", "TimeoutError", "APITimeoutError", "TimeoutException"} or status in (408, 504):
        return Fault("timeout", message, again=True)
    code = f"{message} {getattr(error, 'body', None)}"  # litellm keeps the server's own code in the body alone
    if names & {"ContextWindowExceededError", "ContextOverflowError"} or "context_length_exceeded" in code:
        return Fault("too_long", message)
    if names & {"ContentPolicyViolationError", "ContentFilterFinishReasonError", "OpenAIRefusalError"}:
        return Fault("refused", message)
    if "LengthFinishReasonError" in names:
        return Fault("malformed", CUT_OFF, again=True)
    if isinstance(error, NotImplementedError):  # a chat model without tools or structured output
        return Fault("bad_request", message, other_mode=True)
    if "insufficient_quota" in code:
        return Fault("quota", message)
    if status in FATAL:
        return Fault(FATAL[status], message)
    if _NO_KEY.search(message):  # litellm calls it an error of the server, though no request was sent
        return Fault("auth", message)
    if "APIConnectionError" in names or any("TransportError" in _names(cause) for cause in _causes(error)):
        return Fault("unreachable", message, again=True)
    if isinstance(status, int) and 400 <= status < 500 and status not in (409, 425, 429):
        return Fault("bad_request", message, other_mode=True)
    kind = "rate_limit" if status == 429 else "server"
    return Fault(kind, message, again=True, wait=_retry_after(error))


def _names(error: BaseException) -> set[str]:
    """The names of an error's classes, by which errors of httpx and of httpx2 are the same."""
    return {cls.__name__ for cls in type(error).__mro__}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: litellm reports a refused connection as an error of the server."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _retry_after(error: Exception) -> float | None:
    """Seconds in the Retry-After header, which has a number or a date; None without it."""
    response = getattr(error, "response", None)
    headers: Any = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None) or {}
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(float(text), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
