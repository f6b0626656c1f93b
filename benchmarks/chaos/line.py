"""The line between clients and server, which can be bad, or cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from testbed.link import Link, unavailable_reason

T = TypeVar("T")


class Line:
    """A line between two network namespaces, if this machine can have such. Use by `with`.

    Attributes:
        unavailable_reason: Why there is none, so that all are on one machine; None: there is one.
        lost: Packets that were lost while it was bad the last time.
    """

    def __init__(self) -> None:
        self.unavailable_reason = unavailable_reason()
        self.lost = 0
        self._link = None if self.unavailable_reason else Link()

    def __enter__(self) -> Line:
        if self._link:
            self._link.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._link:
            self._link.__exit__()

    @property
    def host(self) -> str:
        """Where the server listens."""
        return self._link.far_host if self._link else "127.0.0.1"

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before the command line of the server."""
        return self._link.far.prefix if self._link else ()

    def run(self, work: Callable[[], T]) -> T:
        """Calls a function where the clients are, and returns what it returns."""
        return self._link.near.run(work) if self._link else work()

    @contextmanager
    def bad(self, *, delay: float = 0.0, loss: float = 0.0, cut: bool = False) -> Iterator[None]:
        """The line is like that while the context is open. See `Link`."""
        assert self._link is not None
        self._link.set(delay=delay, loss=loss, cut=cut)
        before = self._link.lost
        try:
            yield
        finally:
            self._link.set(delay=0.0, loss=0.0, cut=False)
            self.lost = self._link.lost - before
