"""The result of a tool call."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Self

from art_mcp.client.connection.server_log import MAX_CHARACTERS, SERVER_LOG
from trainer_server.wire import MCPError

MAX_RESULT = 1_000_000
"""Maximum number of characters of a result that are kept."""

MAX_REASON = 200
"""Characters of an error that a reason quotes."""

_DESCRIBING_KEYS = ("type", "uri", "name", "mimeType")
"""Keys of a content part without text that describe it."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a tool call, or the reason why there is none.

    Args:
        text: The text parts, joined. Other parts are replaced by a short description.
        structured: The structured content. None: there is none.
        is_error: Whether the tool reported an error, or gave no result.
        content: Descriptions of the parts that are no text, with `type`, `mimeType`, `bytes` and `sha256`, or `uri`.
        failure: Why the server gave no result, as in MCPError; `is_error` is set then, and `text` is the message. None:
            the server gave a result.
        server_log: The end of what the server wrote to its stderr during the call, if the error says nothing of its
            own. It is for people: neither the agent nor a trajectory gets it.
    """

    text: str
    structured: Any = None
    is_error: bool = False
    content: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None
    server_log: str = ""

    @property
    def reason(self) -> str:
        """The text of an error, with the server's log where the text says nothing."""
        text = self.text[:MAX_REASON].strip() or "an error without a text"
        return f"{text} (the server wrote meanwhile: {self.server_log})" if self.server_log else text

    @classmethod
    def of(cls, answer: dict[str, Any], limit: int = MAX_RESULT) -> Self:
        """Converts the protocol's JSON.

        Args:
            answer: The answer to `tools/call`.
            limit: Maximum number of characters. Longer text is cut, and larger structured content is left out. The last
                line of the text says so: the agent reads it.
        """
        texts: list[str] = []
        content: list[dict[str, Any]] = []
        for part in answer.get("content", ()):
            inner = part.get("resource", part)
            if isinstance(inner.get("text"), str):
                texts.append(inner["text"])
            else:
                content.append(described := _describe_part(part, inner))
                size = [f"{described['bytes']:,} bytes"] if "bytes" in described else []
                names = [str(value) for key, value in described.items() if key in _DESCRIBING_KEYS]
                texts.append(f"[{', '.join(names + size)}]")
        structured = answer.get("structuredContent")
        if not texts and structured is not None:  # the protocol asks for text as well, but not every server gives it
            texts = [json.dumps(structured, ensure_ascii=False)]
        text = _cut("\n".join(texts), limit)
        if structured is not None and (length := len(json.dumps(structured, ensure_ascii=False))) > limit:
            structured = None
            text += f"\n[the structured result was left out: it has {length:,} characters, more than {limit:,}]"
        log = str((answer.get("_meta") or {}).get(SERVER_LOG, ""))[:MAX_CHARACTERS]
        return cls(text, structured, bool(answer.get("isError")), content, server_log=log)

    @classmethod
    def of_error(cls, error: MCPError, server: str) -> Self:
        """The result of a call that raised. server: name of the server, for the message."""
        return cls(f"{server}: {error.message}", is_error=True, failure=error.failure, server_log=error.log)


def _describe_part(part: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Describes a content part that is no text. inner: the resource in the part, or the part itself."""
    description: dict[str, Any] = {
        "type": part.get("type"),
        **{name: inner[name] for name in _DESCRIBING_KEYS[1:] if name in inner},
    }
    text = inner.get("data", inner.get("blob"))
    if not isinstance(text, str):
        return description
    try:
        data = base64.b64decode(text)
    except ValueError:  # invalid base64: the digest is of the text
        data = text.encode(errors="surrogatepass")
    return {**description, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _cut(text: str, limit: int) -> str:
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]}\n[the last {rest:,} of {len(text):,} characters were left out]"
