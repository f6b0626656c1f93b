"""Reports the stages of a long run, and measures their wall time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stages:
    """Reports the stages of a long run, and measures their wall time.

    Args:
        on_stage: Called with a line of text when a stage begins, and by the user of `tell`.
    """

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        """Wall time of each stage that has ended, by its name."""
        self.tell = on_stage

    @contextmanager
    def stage(self, name: str, about: str) -> Iterator[None]:
        """A stage: reports `name` and `about` when it begins, and measures it until the block ends."""
        started = time.monotonic()
        self.tell(f"{name}: {about}")
        yield
        self.seconds[name] = time.monotonic() - started
