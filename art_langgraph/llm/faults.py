"""What went wrong when a model was asked: whether to ask again, when, and how to say it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

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


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: see LLMError. again: whether asking again may help. other_mode: whether asking in another way may help.

    wait: seconds that the server asked to wait for; None: it did not say.
    """

    kind: str
    message: str
    again: bool = False
    other_mode: bool = False
    wait: float | None = None


def fault_of(error: Exception) -> Fault:
    """Reads what litellm raised: its classes are those of the openai package, with the HTTP status on them."""
    import litellm.exceptions as known

    message = re.sub(r"^litellm\..*?Exception - ", "", str(error)) or type(error).__name__  # litellm's own preface
    status = getattr(error, "status_code", None)
    if isinstance(error, known.Timeout) or status in (408, 504):
        return Fault("timeout", message, again=True)
    code = f"{message} {getattr(error, 'body', None)}"  # litellm keeps the server's own code in the body alone
    if isinstance(error, known.ContextWindowExceededError) or "context_length_exceeded" in code:
        return Fault("too_long", message)
    if isinstance(error, known.ContentPolicyViolationError):
        return Fault("refused", message)
    if "insufficient_quota" in code:
        return Fault("quota", message)
    if status in FATAL:
        return Fault(FATAL[status], message)
    if isinstance(error, known.APIConnectionError) or any(
        isinstance(one, httpx.TransportError) for one in _causes(error)
    ):
        return Fault("unreachable", message, again=True)
    if isinstance(status, int) and 400 <= status < 500 and status not in (409, 425, 429):
        return Fault("bad_request", message, other_mode=True)
    kind = "rate_limit" if status == 429 else "server"
    return Fault(kind, message, again=True, wait=_retry_after(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it came from: litellm calls a refused connection a server's error."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _retry_after(error: Exception) -> float | None:
    """Seconds from the header Retry-After, which holds a number or a date."""
    headers: Any = getattr(error, "litellm_response_headers", None) or {}
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
