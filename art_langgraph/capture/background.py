"""Work that a callback must not wait for: done by a thread, in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

T = TypeVar("T")
_Done = threading.Event


class Background(Generic[T]):
    """A thread that does work off the event loop, all that waits at once.

    The thread starts with the first item, and anew after a fork. It is a daemon: `flush` before the process ends.

    Args:
        name: Of the thread.
        opened: Opens, in the thread, what the work needs, and gives the function that does it.
        pause: Seconds between two batches, in which items gather.
    """

    def __init__(
        self, name: str, opened: Callable[[], AbstractContextManager[Callable[[list[T]], None]]], pause: float
    ):
        self._name, self._opened, self._pause = name, opened, pause
        self._queue: queue.SimpleQueue[tuple[T] | _Done | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, item: T) -> None:
        """Hands over an item. Never blocks."""
        self._queue.put((item,))
        self._start()

    def flush(self, timeout: float | None = None) -> None:
        """Returns when all that was put until now is done.

        Args:
            timeout: Seconds to wait at most; None: until it is done.
        """
        if self._alive():
            done = _Done()
            self._queue.put(done)
            done.wait(timeout)

    def close(self) -> None:
        """Does what is left and ends the thread."""
        if self._thread is not None and self._alive():
            self._queue.put(None)
            self._thread.join()

    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        with self._lock:
            if not self._alive():  # at first, and after a fork, which leaves threads behind
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        with self._opened() as work:
            waiting: list[tuple[T] | _Done | None] = []
            worked = 0.0
            while None not in waiting:
                waiting = [self._queue.get()]
                time.sleep(max(0.0, worked + self._pause - time.monotonic()))
                while not self._queue.empty():
                    waiting.append(self._queue.get())
                if items := [item[0] for item in waiting if isinstance(item, tuple)]:
                    work(items)
                worked = time.monotonic()
                for item in waiting:
                    if isinstance(item, _Done):
                        item.set()
