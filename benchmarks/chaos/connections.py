"""Connections that say nothing, and more connections than a server may have files."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.stress.books import Receipt
from benchmarks.stress.clients import HEADERS, chat
from trainer_server.wire.headers import COMPLETION

_AUTHORIZATION = f"Authorization: {HEADERS['Authorization']}\r\n"
HALVES = {
    "nothing": b"",
    "half a head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthor",
    "half a body": (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n{_AUTHORIZATION}"
        'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"model"'
    ).encode(),
}
"""What a client has sent when it is heard of no more."""


async def half_open(url: str, count: int, seconds: float) -> dict[str, int]:
    """Opens connections of clients that vanish before their request is whole.

    Args:
        url: The server.
        count: Connections of each kind.
        seconds: For which they are kept open.

    Returns:
        How many of each kind the server closed meanwhile.
    """

    async def closed(kind: str) -> str | None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*_address(url))
            try:
                writer.write(HALVES[kind])
                async with asyncio.timeout(seconds):
                    while await reader.read(1 << 16):
                        pass
            except TimeoutError:
                return None
            finally:
                writer.transport.abort()
        return kind

    kinds = await asyncio.gather(*(closed(kind) for kind in HALVES for _ in range(count)))
    counts = Counter(kinds)
    return {kind: counts[kind] for kind in HALVES}


@dataclass(slots=True)
class Flood:
    """What became of many connections at once, each with one chat request."""

    statuses: Counter[int] = field(default_factory=Counter)
    closed: int = 0
    """Connections that were closed without an answer."""
    silent: int = 0
    """Connections that had neither an answer nor an end in time."""
    receipts: list[Receipt] = field(default_factory=list)

    @classmethod
    async def at(cls, url: str, model: str, connections: int, seconds: float) -> Flood:
        """Opens all connections at once.

        Args:
            url: The server.
            model: The policy that is asked.
            connections: How many.
            seconds: That each waits for its answer.
        """
        flood = cls()
        await asyncio.gather(*(flood._ask(url, model, number, seconds) for number in range(connections)))
        return flood

    async def _ask(self, url: str, model: str, number: int, seconds: float) -> None:
        receipt = Receipt(f"turn say flood-{number}")
        self.receipts.append(receipt)
        body = json.dumps(chat(model, [{"role": "user", "content": receipt.asked}], stream=False)).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n{_AUTHORIZATION}Connection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_connection(*_address(url))
                try:
                    writer.write(head.encode() + body)
                    answer = await reader.read()
                finally:
                    writer.transport.abort()
        except TimeoutError:
            self.silent += 1
            return
        except OSError:
            self.closed += 1
            return
        if not answer:
            self.closed += 1
            return
        lines, _, content = answer.partition(b"\r\n\r\n")
        status = int(lines.split()[1])
        self.statuses[status] += 1
        if status == 200:
            headers = dict(line.split(": ", 1) for line in lines.decode().splitlines()[1:])
            receipt.id = next(value for name, value in headers.items() if name.lower() == COMPLETION.lower())
            receipt.tokens, receipt.whole = json.loads(content)["choices"][0]["token_ids"], True


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 80)
