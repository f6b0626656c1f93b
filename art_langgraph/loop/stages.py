"""What a long run is doing: told as it happens, with wall time by stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stages:
    """seconds: wall time of each stage that has ended, by its name. on_stage: is told what begins and what came out."""

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.tell = on_stage

    @contextmanager
    def stage(self, name: str, about: str) -> Iterator[None]:
        started = time.monotonic()
        self.tell(f"{name}: {about}")
        yield
        self.seconds[name] = time.monotonic() - started
