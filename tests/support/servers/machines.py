"""Two machines on one: network namespaces with a line between them, and the trainer server on one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.engine_stand_in import install_stand_in
from testbed.link import Link, Namespace, unavailable_reason
from testbed.server_process import ServerProcess
from tests.support.patience import PATIENCE


@contextmanager
def line(delay: float = 0.08, loss: float = 0.01) -> Iterator[Link]:
    """A line between two network namespaces. Skips the test where this machine can have none.

    Args:
        delay: Seconds that a packet takes, in each direction.
        loss: Share of the packets that are lost, in each direction.
    """
    if why := unavailable_reason():
        pytest.skip(why)
    with Link(delay=delay, loss=loss) as link:
        yield link


@contextmanager
def server_at(
    place: Namespace,
    host: str,
    home: Path,
    base: Path,
    *,
    seen_from: Namespace,
    port: int | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[ServerProcess]:
    """The trainer server on one machine, over the small engine there unless `options` name another one.

    Args:
        place: Its machine.
        host: The address of that machine.
        home: Its home.
        base: The base model.
        seen_from: The machine that waits until it is ready.
        port: Where it listens; None: anywhere.
        options: More options of `serve`.
    """
    cache = home.with_name(f"{home.name}-cache")
    install_stand_in(cache)
    server = ServerProcess(
        home,
        base,
        options=("--no-trainer-low-priority", *options),
        environment={"ART_CACHE": str(cache)},
        host=host,
        prefix=place.prefix,
    )
    server.port = port or server.port
    server.start()
    try:
        seen_from.run(lambda: server.until_ready(PATIENCE))
        yield server
    finally:
        server.stop()
