"""A burst of chats under a small limit of open files: whether all are answered, and whether anything breaks.

    python -m benchmarks.load [--json] [--chats 800] [--files 1024] [--seconds 1.0]

Starts the trainer server as a process under `ulimit -n FILES`, with a small engine that it launches where vLLM would
be. Then it asks CHATS questions at once by ChatOpenAI, with ChatOpenAI's own retries, against an engine that answers a
question in SECONDS. `answered` and `failed` count the chats, `refusals` the answers with status 429, `restarts` how
often the server started the engine again; `seconds` is the wall time. The last line under --json is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from langchain_openai import ChatOpenAI
from rich.console import Console
from rich.table import Table

from testbed.engine_stand_in import install_stand_in
from testbed.server_process import KEY, ServerProcess
from testbed.tiny_model import tiny_base


@contextmanager
def server(scratch: Path, files: int) -> Iterator[str]:
    """A server under a limit of open files, once it is ready; its address."""
    install_stand_in(scratch / "cache")
    process = ServerProcess(
        scratch / "home", tiny_base(scratch), files=files, environment={"ART_CACHE": str(scratch / "cache")}
    )
    process.start()
    try:
        process.until_ready()
        yield process.url
    finally:
        process.stop()


async def burst(url: str, chats: int, seconds: float) -> dict[str, Any]:
    """Asks all questions at once."""
    statuses: Counter[int] = Counter()

    async def count(answer: httpx.Response) -> None:
        statuses[answer.status_code] += 1

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=600, event_hooks={"response": [count]}) as http:
        model = ChatOpenAI(model="base", base_url=f"{url}/v1", api_key=KEY, http_async_client=http, max_tokens=20)
        started = time.monotonic()
        asked = (model.ainvoke(f"after {seconds} say {number}") for number in range(chats))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        spent = time.monotonic() - started
        failures = Counter(f"{type(one).__name__}: {one}"[:200] for one in answers if isinstance(one, BaseException))
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient() as http:  # of its own: the server may be closing an idle connection of the burst's
        engines = (await http.get(f"{url}/api/engines", headers=headers, timeout=60)).json()["engines"]
    return {
        "chats": chats, "answered": chats - failures.total(), "failed": failures.total(),
        "refusals": statuses[429], "statuses": dict(statuses), "failures": dict(failures.most_common(3)),
        "restarts": sum(engine["restarts"] for engine in engines), "seconds": spent,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--chats", type=int, default=800, help="chats at once (800)")
    parser.add_argument("--files", type=int, default=1024, help="files that the server may have open (1024)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds that the engine takes for an answer (1)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends with this program
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # of the clients
    with tempfile.TemporaryDirectory() as scratch, server(Path(scratch), options.files) as url:
        result = asyncio.run(burst(url, options.chats, options.seconds))
    table = Table("chats", "files", "answered", "failed", "refusals (429)", "engine restarts", "s")
    shown = ("answered", "failed", "refusals", "restarts")
    table.add_row(
        str(options.chats), str(options.files), *(str(result[name]) for name in shown), f"{result['seconds']:.1f}"
    )
    console = Console(stderr=options.json)
    console.print(table)
    for failure, count in result["failures"].items():
        console.print(f"{count} x {failure}")
    if options.json:
        print(json.dumps({"benchmark": "load", "files": options.files, **result}))


if __name__ == "__main__":
    main()
