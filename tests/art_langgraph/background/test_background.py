"""Work in a thread: nothing is lost or done twice, by faults, by forks, or by the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from art_langgraph.background import background as module
from art_langgraph.background.background import Background
from tests.support.patience import PATIENCE


class Work:
    """Notes what it was given, while it is allowed to."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.opened = self.refused = 0
        self.can = threading.Event()
        self.can.set()
        self.tried = threading.Event()

    @contextmanager
    def __call__(self) -> Iterator[Callable[[list[int]], int]]:
        self.opened += 1

        def work(items: list[int]) -> int:
            if not self.can.is_set():
                self.refused += 1
                self.tried.set()
                return 0
            self.done += items
            return len(items)

        yield work
        self.opened -= 1


def test_all_is_done_in_order_and_flush_waits_for_it() -> None:
    work = Work()
    background = Background("t", work, pause=0.0)
    for number in range(100):
        background.put(number)
    assert background.flush()
    assert work.done == list(range(100))
    assert background.close() == []
    assert work.opened == 0


def test_what_fails_is_tried_again_and_flush_says_that_it_is_not_done() -> None:
    work = Work()
    background = Background("t", work, pause=0.0, again=0.001)
    work.can.clear()
    background.put(1)
    assert not background.flush(0.01)
    background.put(2)
    work.can.set()
    assert background.flush()
    assert work.done == [1, 2]


def test_close_gives_back_what_cannot_be_done() -> None:
    work = Work()
    background = Background("t", work, pause=0.0, again=60.0)
    work.can.clear()
    background.put(1)
    assert work.tried.wait(PATIENCE)
    background.put(2)
    assert background.close() == [1, 2]
    work.can.set()
    background.put(3)
    assert background.flush()
    assert work.done == [3]


def test_an_idle_thread_closes_what_it_has_open_and_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE", 0.001)
    work = Work()
    background = Background("t", work, pause=0.0)
    for number in range(3):
        background.put(number)
        thread = background._thread
        assert background.flush()
        if thread:
            thread.join(PATIENCE)
        assert work.opened == 0
    assert work.done == [0, 1, 2]


def test_where_no_thread_can_be_started_close_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    work = Work()
    background = Background("t", work, pause=0.0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    background.put(1)
    assert background.close() == []
    assert work.done == [1]


def test_a_fault_of_the_work_costs_its_items_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    @contextmanager
    def opened() -> Iterator[Callable[[list[int]], int]]:
        def work(items: list[int]) -> int:
            if 0 in items:
                raise ValueError("broken")
            done.extend(items)
            return len(items)

        yield work

    background = Background("t", opened, pause=0.0)
    for item in (0, 1):
        background.put(item)
        assert background.flush()
    assert "t: 1 items are lost" in caplog.text
    assert done == [1]


def test_what_cannot_be_opened_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    work, attempts = Work(), iter(range(3))

    @contextmanager
    def opened() -> Iterator[Callable[[list[int]], int]]:
        if next(attempts) < 2:
            raise OSError("no socket")
        with work() as can:
            yield can

    background = Background("t", opened, pause=0.0, again=0.001)
    background.put(1)
    assert background.flush()
    assert work.done == [1]
    assert caplog.text.count("t cannot work, and tries again") == 2


def test_one_that_is_made_while_another_thread_forks_works() -> None:
    work = Work()
    background = Background("t", work, pause=0.0)
    background._go_on()  # the end of a fork that had begun before
    background.put(1)
    assert background.flush(10)
    assert background.close() == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_child_of_a_fork_begins_anew_and_the_parent_goes_on() -> None:
    work = Work()
    background = Background("t", work, pause=0.0, again=60.0)
    work.can.clear()
    background.put(1)
    assert work.tried.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        try:
            work.can.set()
            work.done.clear()
            closed = work.opened == 0
            background.put(2)
            flushed = background.flush(10)
            os._exit(0 if closed and flushed and work.done == [2] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    work.can.set()
    assert background.close() == []
    assert work.done == [1]


CLOSED = """
import io, logging, multiprocessing
from art_langgraph.background.background import at_exit

def report():
    logging.warning("the last report")

stream = io.StringIO()
logging.basicConfig(stream=stream)
stream.close()
at_exit(report)
child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
child.start()
child.join()
"""


def test_a_report_at_exit_whose_stream_is_closed_by_then_is_no_traceback() -> None:
    """In this process and in a child, which runs no atexit functions."""
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (done.stdout, done.stderr) == ("child\n", "")


def test_a_report_at_exit_is_logged() -> None:
    code = CLOSED.replace("stream.close()", "logging.getLogger().handlers[0].setStream(__import__('sys').stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stderr == "WARNING:root:the last report\n" * 2
