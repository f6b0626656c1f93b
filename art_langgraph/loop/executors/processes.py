"""Runs rollouts in worker processes of this machine: for a client that one processor cannot carry.

A worker imports the program's main module and the graph, has one event loop, and runs many rollouts in it at once. What
belongs to the caller stays with the caller: the reward function, the trajectory store, the reports to the server.
Messages are pickled, and go through a socket that no other program can open.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from multiprocessing import util
from multiprocessing.connection import Connection as Socket
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from langgraph.pregel import Pregel

from art_langgraph.background.release import release
from art_langgraph.loop.executors.base import RolloutResult, RolloutTask
from art_langgraph.loop.executors.transfer import (
    ARGUMENT,
    TaskMessage,
    await_answer,
    lost_result,
    pack_result,
    pack_value,
    refuse_graph,
    servers_of,
)
from art_langgraph.loop.graphs import GraphSource, NotStarted
from trainer_server.common import tracing
from trainer_server.common.processors import processor_count
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")

_REMEDY = (
    'A worker of executor="processes" imports what it runs by its name: give a function or a graph that is at the top '
    "of a module, such as `from my_agents import make_graph`, or of the main program's file; or run it in this process "
    '(executor="local")'
)
_GUARD = (
    "Its error is above. A worker imports the main program's file: what the program does has to be below "
    '`if __name__ == "__main__":`'
)
_END = b""
_STOP_SECONDS = 5.0
"""Seconds in which a worker cancels its rollouts and ends, when the program ends."""
_SOURCES = 64
"""Graphs whose state a worker remembers: whether their factories have worked."""


class WorkerLost(Exception):
    """The process of a rollout has ended."""


class ProcessExecutor:
    """Runs rollouts in worker processes of this machine, many at once in each.

    Workers start when rollouts need them, and stay until the program ends, or nothing has the executor any more. The
    graph, or the function that makes it, has to be at the top of a module or of the main program's file, below which
    `if __name__ == "__main__":` guards what the program does: each worker imports both.

    A rollout whose worker is lost is a failed run with the reason, and so are the others of the same worker. Another
    worker starts for those that follow.

    Args:
        workers: Processes, at most; None: as many as this process may use processors.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers={workers} must be at least 1")
        self._limit = workers or processor_count()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._graphs: WeakKeyDictionary[GraphSource, tuple[str, bytes]] = WeakKeyDictionary()
        """By source: a name of it for workers, and the packed graph."""
        util.Finalize(self, _close, args=(self._workers,), exitpriority=10)

    async def run(self, source: GraphSource, task: RolloutTask) -> RolloutResult:
        """Runs a graph, or a function that is the agent, in a worker. Cancelling it ends the run there.

        Args:
            source: The graph or function. Its `kind` is set when this returns.
            task: The scenario, and how it is run.

        Raises:
            ConfigError: The function, or an argument of `rollout`, cannot be sent; or a worker cannot start, or cannot
                import what it needs.
        """
        if source not in self._graphs:
            what = f"the function {source.name}" if source.name else "the graph"
            self._graphs[source] = uuid4().hex, _pack(source.graph, what)
        while True:
            sent, proven = TaskMessage.of(source, task, f"ro-{uuid4().hex}", servers_of(source)), source.proven
            message = _pack((*self._graphs[source], proven, sent), ARGUMENT)
            try:
                packed = await self._worker().run(sent.rollout_id, message)
            except WorkerLost as error:
                release(sent.rollout_id, [(server.url, server.api_key) for server in sent.servers])
                return lost_result(source, sent, str(error))
            answer = _load_answer(packed)
            if isinstance(answer, NotStarted) and source.proven and not proven:
                continue  # the factory worked in another run meanwhile: now its error is one of this run alone
            if isinstance(answer, Exception):
                raise answer
            result: RolloutResult = answer[0]
            source.proven = source.proven or answer[1]
            source.kind = result.kind
            return result

    def _worker(self) -> _Worker:
        """The worker with the fewest rollouts; a new one where all have some, and there may be more."""
        with self._lock:
            self._workers[:] = [worker for worker in self._workers if not worker.closed]
            least = min(self._workers, key=lambda worker: len(worker.rollouts), default=None)
            if least is None or (least.rollouts and len(self._workers) < self._limit):
                least = _Worker()
                self._workers.append(least)
            return least


class _Worker:
    """A worker process, as the caller's process sees it.

    Attributes:
        rollouts: By id, what gets the answer of each rollout that the worker has.
        closed: Whether it gets no more rollouts.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._socket, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far,), name="art-rollouts")
        with _blocked_interrupts():
            self._process.start()
        far.close()
        self.rollouts: dict[str, Future[bytes]] = {}
        self.closed = self._ready = False
        self._waiting: dict[str, bytes] = {}
        """Messages of rollouts that go to the worker when it is ready: before, nobody reads them there."""
        self._lost: Exception | None = None
        """How the process ended."""
        self._lock = threading.Lock()
        threading.Thread(target=self._read, name="art-worker", daemon=True).start()

    async def run(self, rollout_id: str, message: bytes) -> bytes:
        """The packed answer of a rollout. Raises WorkerLost, or ConfigError where the worker does not start."""
        future = Future[bytes]()
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self.rollouts[rollout_id] = future
            if self._ready:
                self._send(rollout_id, message)
            else:
                self._waiting[rollout_id] = message
        try:
            return await await_answer(future, cancel=partial(self._cancel, rollout_id), kill=self._retire)
        finally:
            with self._lock:
                del self.rollouts[rollout_id]
            if self.closed and not self.rollouts:
                self._process.kill()

    def close(self) -> None:
        """Lets the process end."""
        with suppress(OSError), self._lock:
            self._socket.send_bytes(_END)

    def _retire(self) -> None:
        """A rollout does not end when it is cancelled: the process is killed when the others have ended."""
        self.closed = True

    def _cancel(self, rollout_id: str) -> None:
        with self._lock:
            if self._waiting.pop(rollout_id, None) is None:
                self._send(rollout_id, None)
            else:
                self.rollouts[rollout_id].cancel()

    def _send(self, rollout_id: str, message: bytes | None) -> None:
        """Sends a rollout, or its cancellation (None). The caller holds the lock."""
        with suppress(OSError):  # it has ended, as `_read` finds out
            self._socket.send_bytes(pickle.dumps((rollout_id, message)))

    def _read(self) -> None:
        """Hands over answers until the process ends."""
        with suppress(EOFError, OSError):
            self._socket.recv_bytes()
            with self._lock:
                self._ready = True
                for waiting in self._waiting.items():
                    self._send(*waiting)
                self._waiting.clear()
            while True:
                rollout_id, answer = pickle.loads(self._socket.recv_bytes())
                future = self.rollouts.get(rollout_id)
                if future is not None and answer is None:
                    future.cancel()
                elif future is not None:
                    future.set_result(answer)
        self.closed = True
        self._process.join()
        with self._lock:
            self._lost = self._end()
            for future in self.rollouts.values():
                if not future.done():
                    future.set_exception(self._lost)
        self._socket.close()

    def _end(self) -> Exception:
        """How the process ended."""
        code = self._process.exitcode or 0
        if code < 0:
            name = signal.Signals(-code).name
            memory = ", perhaps because the memory was used up" if name == "SIGKILL" else ""
            return WorkerLost(f"{name} ended the worker process {self._process.pid}{memory}")
        how = f"the worker process {self._process.pid} ended with exit code {code}"
        return WorkerLost(how) if self._ready else ConfigError(f"{how} before it could run rollouts. {_GUARD}")


def _load_answer(message: bytes) -> Any:
    try:
        return pickle.loads(message)
    except Exception as error:  # of the user's classes, which are made again here
        raise ConfigError(
            f"the output of a run in a worker process cannot be loaded here: {error!r}. Let the graph return plain "
            "data or messages"
        ) from error


def _close(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.close()


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Ctrl-C goes to all processes of a terminal: a child that starts meanwhile does not hear it before `_serve`."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pack(value: Any, what: str) -> bytes:
    """What is at the top of a module by its name, all else by its content. Raises ConfigError."""
    return pack_value(
        value,
        what,
        pickler=pickle.Pickler,
        receiver="a worker process",
        remedy=_REMEDY,
        reduce_graph=_reduce_graph,
    )


def _reduce_graph(graph: Pregel[Any, Any, Any, Any]) -> Any:
    """A compiled graph as a name of a module."""
    for module, content in list(sys.modules.items()):
        for name, value in list(getattr(content, "__dict__", {}).items()):
            if value is graph:
                return _attribute, (module, name)
    return refuse_graph(graph)


def _attribute(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _serve(socket: Socket) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the caller says what is cancelled; no SIG_IGN, which tools inherit
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    asyncio.run(_run_rollouts(socket))


async def _run_rollouts(socket: Socket) -> None:
    """Runs the rollouts of a worker until it shall end, or the caller's process has ended."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    tasks: dict[str, asyncio.Task[bytes]] = {}

    def receive(rollout_id: str, message: bytes | None) -> None:
        if message is not None:
            tasks[rollout_id] = loop.create_task(_answer(message))
            tasks[rollout_id].add_done_callback(partial(send, rollout_id))
        elif rollout_id in tasks:
            tasks[rollout_id].cancel()

    def send(rollout_id: str, task: asyncio.Task[bytes]) -> None:
        cancelled = task.cancelled()
        if tasks.pop(rollout_id, None) is None or (not cancelled and task.exception()):
            return
        with suppress(OSError):  # the caller's process has ended
            socket.send_bytes(pickle.dumps((rollout_id, None if cancelled else task.result())))

    def read() -> None:
        with suppress(EOFError, OSError):
            while message := socket.recv_bytes():
                loop.call_soon_threadsafe(receive, *pickle.loads(message))
        loop.call_soon_threadsafe(stop.set)
        time.sleep(_STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=read, name="art-messages", daemon=True).start()
    socket.send_bytes(_END)  # ready
    try:
        await stop.wait()
    finally:
        tasks.clear()  # what is cancelled from here on, also because something called sys.exit, is no answer


async def _answer(message: bytes) -> bytes:
    """Runs a rollout.

    Args:
        message: The packed name of the source, its packed graph, whether it is proven, and the task.

    Returns:
        The packed result, and whether the source is proven; or the packed error that was raised.
    """
    try:
        source, task = _load(message)
        with tracing.span("rollout worker", parent=task.parent):
            return pack_result(_pack, await task.run(source), source.proven)
    except Exception as error:  # it goes to the caller, where it is raised
        return _packed_error(error)


def _load(message: bytes) -> tuple[GraphSource, TaskMessage]:
    try:
        name, graph, proven, task = pickle.loads(message)
        if task.servers:  # clients that the graph's module makes find the server that the caller's clients find
            os.environ |= {"ART_BASE_URL": task.servers[0].url, "ART_API_KEY": task.servers[0].api_key}
        source = _source(name, graph)
    except Exception as error:  # of the user's modules, which are imported here
        raise ConfigError(f"a worker process cannot import what it shall run: {error!r}. {_REMEDY}") from error
    source.proven = source.proven or proven
    return source, task


@lru_cache(_SOURCES)
def _source(name: str, graph: bytes) -> GraphSource:
    return GraphSource(pickle.loads(graph))


def _packed_error(error: Exception) -> bytes:
    """An error. One that cannot be made again from its arguments is sent as its text."""
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
        return packed
    except Exception:
        text = f"{type(error).__name__}: {error}"
        return pickle.dumps(ConfigError(str(error)) if isinstance(error, ConfigError) else RuntimeError(text))
