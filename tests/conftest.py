"""Fixtures of all tests: the real trainer server over a small engine."""

from __future__ import annotations

import functools
import gc
import logging
import signal
import ssl
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from art_langgraph.background import reports
from art_langgraph.client import servers
from testbed.tiny_model import tiny_base
from tests.support.fuzz_counts import DRAWN, of_hypothesis, table
from tests.support.fuzzing import CHANCE
from tests.support.schedule import BySchedule, leave_out_long, place
from tests.support.servers.trainer_server import TOKEN, TrainerServer, trainer_server_on

hypothesis.settings.register_profile("project", deadline=None, derandomize=not CHANCE)  # no test is timed
hypothesis.settings.load_profile("project")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored, also by what tests start

# Each HTTP client reads certifi's certificates: a fifth of the fast lane's processor time. Once will do.
ssl.create_default_context = functools.cache(ssl.create_default_context)

gc.disable()  # while modules are imported, which stay: that is a quarter of the time of the collection


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return BySchedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))
    leave_out_long(items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """With ART_FUZZ, notes how many examples hypothesis drew."""
    try:
        yield
    finally:
        if CHANCE and (statistics := getattr(item, "hypothesis_statistics", None)):
            item.user_properties.append((DRAWN, (item.location[0], of_hypothesis(statistics))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tables that tests recorded: `record_property(HEADER, row)`, for a header as Markdown has it; and with ART_FUZZ
    how many examples were drawn."""
    tables: defaultdict[str, list[object]] = defaultdict(list)
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name.startswith("| "):
                tables[name].append(value)
    for header, rows in tables.items():
        terminalreporter.write_line("\n" + "\n".join([header, *map(str, rows)]))
    ended = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    drawn = [value for report in ended for name, value in report.user_properties if name == DRAWN]
    if fuzzed := table((file, examples) for file, examples in drawn):
        terminalreporter.write_line(f"\n{fuzzed}")


@pytest.fixture(autouse=True, scope="module")
def forgotten_servers() -> Iterator[None]:
    """Servers that the tests of a file met have ended when another file begins, and nothing is sent to them any more:
    a run that cannot be reported is a warning after half a minute, in whatever test has begun by then."""
    before = dict(servers._registry)
    yield
    for waiting in reports._reports.values():
        waiting.close(5.0)
    reports._reports.clear()
    servers._registry.clear()
    servers._registry.update(before)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[TrainerServer]:
    """One server for the fast lane, with the policy `agent`."""
    with trainer_server_on(tmp_path_factory.mktemp("home"), base_model, trackers=("jsonl",)) as running:
        with running.http() as http:
            assert http.post("/api/policies", json={"name": "agent"}).status_code == 201
        yield running


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What this project reports, its plugins in vLLM too.

    Threads and clients that earlier tests left behind report as well when they are retried, collected or closed:
    through the loggers of openai, httpx and asyncio.
    """

    def relevant(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] in {"art_langgraph", "art_mcp", "trainer_server", "vllm"}

    caplog.handler.addFilter(relevant)
    yield caplog
    caplog.handler.removeFilter(relevant)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test alone: the user's has answers of earlier runs, and may not be there to write."""
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def connected(server: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> TrainerServer:
    """The server, found by clients through the environment."""
    monkeypatch.setenv("ART_BASE_URL", server.url)
    monkeypatch.setenv("ART_API_KEY", TOKEN)
    return server
