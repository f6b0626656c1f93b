"""Work that a callback must not wait for: done by a thread, in batches."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

log = logging.getLogger("art_langgraph")

_IDLE = 1.0
"""Seconds without work after which a thread ends, and closes what it had opened."""
_FORK = 10.0
"""Seconds that a fork waits, at most, for a thread to close what it has open."""
_DRAIN = 30.0


class Background(Generic[T]):
    """A thread that does work off the event loop, all that waits at once.

    The thread runs while there is work. It is a daemon: call `close` before the process ends. A fork waits until the
    thread has closed what it has open, because a connection to SQLite must not be open in two processes. The child
    has nothing to do at first: what waits is the parent's work.

    Args:
        name: Of the thread.
        worker_context: Opens, in the thread, what the work needs, and gives the function that does it. The function
            returns how many items it has done, from the first. The others are tried again.
        pause: Seconds between two batches, in which items gather.
        again: Seconds after which items are tried again.
    """

    def __init__(
        self,
        name: str,
        worker_context: Callable[[], AbstractContextManager[Callable[[list[T]], int]]],
        pause: float,
        again: float = 1.0,
    ) -> None:
        self._name, self._worker_context, self._pause, self._again = name, worker_context, pause, again
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Sets the state of a process that has no items yet."""
        self._changed = threading.Condition(threading.Lock())
        self._items: list[T] = []
        self._done = 0
        self._last_work = 0.0
        self._thread: threading.Thread | None = None
        self._idle = self._failing = self._closing = False
        self._halts = 0

    def put(self, item: T) -> None:
        """Hands over an item. Never waits for work."""
        with self._changed:
            self._items.append(item)
            if self._idle:
                self._changed.notify_all()
            self._start()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all items that are there now are done.

        Args:
            timeout: Seconds to wait at most; None: until it is done.

        Returns:
            Whether it is done.
        """
        with self._changed:
            self._start()
            last = self._done + len(self._items)
            return self._changed.wait_for(lambda: self._done >= last, timeout)

    def close(self, timeout: float = _DRAIN) -> list[T]:
        """Does the remaining items, and ends the thread. What failed before is tried once more.

        Args:
            timeout: Seconds to wait at most for work that neither succeeds nor fails, as on a disk that hangs.

        Returns:
            The items that could not be done.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, timeout)
            takes_over = self._thread is None and bool(self._items) and not self._failing
            if takes_over:  # a process that is about to end starts no more threads
                self._thread = threading.current_thread()
        if takes_over:
            self._run()
        with self._changed:
            rest, self._items = self._items, []
            self._closing = self._failing = False
        return rest

    def waiting(self) -> int:
        """How many items are not done."""
        with self._changed:
            return len(self._items)

    def _start(self) -> None:
        """Starts the thread, where there is work and no thread. The caller holds the lock."""
        if not self._items or self._thread is not None or self._halts:
            return
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the process is about to end: `close` does the work
            self._thread = None

    def _run(self) -> None:
        while True:
            try:
                with self._worker_context() as work:
                    while batch := self._next():
                        if not self._note(len(batch), self._attempt(work, batch)):
                            break
            except Exception:  # of what is opened: the thread must live on
                log.exception("%s cannot work, and tries again", self._name)
                self._note(1, 0)
            with self._changed:
                if self._halts or not self._items or (self._closing and self._failing):
                    self._thread = None
                    self._changed.notify_all()
                    return

    def _attempt(self, work: Callable[[list[T]], int], batch: list[T]) -> int:
        try:
            return work(batch)
        except Exception:  # a fault of the work: the thread must live on
            log.exception("%s: %d items are lost", self._name, len(batch))
            return len(batch)

    def _next(self) -> list[T]:
        """All that waits; empty when the thread shall end."""
        with self._changed:
            self._idle = True
            self._changed.wait_for(lambda: self._items or self._halts or self._closing, _IDLE)
            self._idle = False
            if self._items:
                self._changed.wait_for(
                    lambda: self._halts or self._closing, max(0.0, self._last_work + self._pause - time.monotonic())
                )
            return [] if self._halts else list(self._items)

    def _note(self, count: int, done_count: int) -> bool:
        """Takes the items that are done out. Waits where some failed. Returns whether to go on."""
        with self._changed:
            del self._items[:done_count]
            self._done += done_count
            self._failing = done_count < count
            self._last_work = time.monotonic()
            self._changed.notify_all()
            if self._failing and not self._closing:
                self._changed.wait_for(lambda: self._halts or self._closing, self._again)
                return True
            return not self._failing

    def _halt(self) -> None:
        """Before a fork: the thread ends, with what it has open closed."""
        with self._changed:
            self._halts += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, _FORK)

    def _go_on(self) -> None:
        """After a fork, in the parent."""
        with self._changed:
            self._halts = max(0, self._halts - 1)  # one that was made during the fork was not halted
            self._start()


_all: WeakSet[Background[Any]] = WeakSet()


def _each(method: Callable[[Background[Any]], None]) -> Callable[[], None]:
    def call() -> None:
        for background in list(_all):
            method(background)

    return call


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(
        before=_each(Background._halt),
        after_in_parent=_each(Background._go_on),
        after_in_child=_each(Background._begin),
    )


def at_exit(last: Callable[[], object]) -> None:
    """Calls a function before this process ends, or a child of it: those of multiprocessing run no atexit functions.

    Args:
        last: A function of a module.
    """
    atexit.register(_end, last)
    if multiprocessing.parent_process() is not None:
        _finalize(last)
    multiprocessing.util.register_after_fork(last, _finalize)


def _finalize(last: Callable[[], object]) -> None:
    multiprocessing.util.Finalize(None, _end, (last,), exitpriority=0)


def _end(last: Callable[[], object]) -> None:
    """By then, the stream of a log handler may be closed, as pytest closes its own: logging would print a traceback."""
    raises, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        last()
    finally:
        logging.raiseExceptions = raises
