"""What a call to a tool came to."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Self

from trainer_server.wire import MCPError

MAX_RESULT = 1_000_000
"""Characters of a result that are kept."""

_TOLD = ("type", "uri", "name", "mimeType")


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a server answered, or why it did not.

    text: its text parts, joined; other parts by a short description. structured: its structured content, if any.
    content: the parts that are no text, without their bytes: `type`, `mimeType`, `bytes`, `sha256`, or `uri`.
    failure: as in MCPError, where no answer came; then `is_error` is set and `text` says what happened.
    """

    text: str
    structured: Any = None
    is_error: bool = False
    content: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    @classmethod
    def of(cls, answer: dict[str, Any], limit: int = MAX_RESULT) -> Self:
        """From the protocol's JSON. Text is cut to `limit` characters, larger structured content is left out."""
        texts: list[str] = []
        content: list[dict[str, Any]] = []
        for part in answer.get("content", ()):
            inner = part.get("resource", part)
            if isinstance(inner.get("text"), str):
                texts.append(inner["text"])
            else:
                content.append(described := _described(part, inner))
                size = [f"{described['bytes']:,} bytes"] if "bytes" in described else []
                texts.append(f"[{', '.join([str(one) for key, one in described.items() if key in _TOLD] + size)}]")
        structured = answer.get("structuredContent")
        if structured is not None and len(json.dumps(structured)) > limit:
            structured = None
        if not texts and structured is not None:  # the protocol asks for text beside it, not every server gives it
            texts = [json.dumps(structured, ensure_ascii=False)]
        return cls(_cut("\n".join(texts), limit), structured, bool(answer.get("isError")), content)

    @classmethod
    def failed(cls, error: MCPError, server: str) -> Self:
        return cls(f"{server}: {error}", is_error=True, failure=error.failure)


def _described(part: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": part.get("type"),
        **{name: inner[name] for name in _TOLD[1:] if name in inner},
    }
    encoded = inner.get("data", inner.get("blob"))
    if not isinstance(encoded, str):
        return found
    try:
        data = base64.b64decode(encoded)
    except binascii.Error:  # what is no base64 has a digest all the same
        data = encoded.encode()
    return {**found, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _cut(text: str, limit: int) -> str:
    left = len(text) - limit
    return text if left <= 0 else f"{text[:limit]}\n[the last {left:,} of {len(text):,} characters were left out]"
