"""Who leads next: what a server does when it is elected, and what it waits for."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.patience import until
from trainer_server.jobs.service import JobService
from trainer_server.ledger.base import LedgerError
from trainer_server.server.config import ServerConfig
from trainer_server.server.fleet import succession
from trainer_server.server.fleet.succession import Succession
from trainer_server.server.server import Server
from trainer_server.wire import Home

URL, ADDRESS = "http://127.0.0.1:1", "http://here:1"


class Election:
    """An election whose outcomes a test decides. outcomes: of each time that the server stands; the last one stays."""

    shown = "postgresql://database"

    def __init__(self, *outcomes: bool | LedgerError) -> None:
        self._outcomes = list(outcomes)
        self.stood = 0
        self.announced: list[str] = []
        self.lost: Callable[[str], None] | None = None

    def stand(self, *, patient: bool = False) -> bool:
        assert patient
        self.stood += 1
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, LedgerError):
            raise outcome
        return outcome

    def announce(self, url: str) -> None:
        self.announced.append(url)

    def watch(self, lost: Callable[[str], None]) -> None:
        self.lost = lost


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "_POLL_INTERVAL", 0.01)
    monkeypatch.setattr(succession, "_AWAY", 0.01)


def standing(home: Path, election: Election) -> tuple[Succession, Any]:
    """A succession, and the server that it has lead."""

    async def lead() -> None:
        server.leads = True

    server = SimpleNamespace(config=SimpleNamespace(home=Home(home)), leads=False, lead=lead)
    return Succession(cast(Any, election), cast(Server, server), url=URL, address=ADDRESS), server


async def test_the_server_leads_once_it_is_elected_and_tells_everybody(tmp_path: Path) -> None:
    election = Election(False, LedgerError("the database is away"), False, True)
    next_one, server = standing(tmp_path, election)
    next_one.start()
    await until(lambda: bool(election.announced) and Home(tmp_path).server.exists())
    assert server.leads
    assert (election.stood, election.announced) == (4, [ADDRESS])
    assert json.loads(Home(tmp_path).server.read_text()) == {"url": URL, "pid": os.getpid()}
    await next_one.stop()
    assert server.leads, "a server that leads goes on to do so"


async def test_the_server_that_led_before_ends_first(tmp_path: Path) -> None:
    election = Election(True)
    next_one, server = standing(tmp_path, election)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        next_one.start()
        await until(lambda: election.lost is not None)
        await asyncio.sleep(0.1)
        assert not server.leads
        assert not election.announced
    await until(lambda: bool(election.announced))
    assert server.leads
    await next_one.stop()


async def test_a_server_that_is_not_elected_does_not_lead(tmp_path: Path) -> None:
    election = Election(False)
    next_one, server = standing(tmp_path, election)
    next_one.start()
    await until(lambda: election.stood > 3)
    await next_one.stop()
    assert not server.leads
    assert not (tmp_path / "lock").exists()


async def test_an_elected_server_stops_when_it_is_elected_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    election, sent = Election(True), list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    next_one, _ = standing(tmp_path, election)
    next_one.start()
    await until(lambda: bool(election.announced))
    assert election.lost is not None
    election.lost("another server was elected")
    assert sent == [(os.getpid(), signal.SIGTERM)]
    await next_one.stop()


async def test_a_server_that_could_not_begin_to_lead_tries_again(tmp_path: Path) -> None:
    election, tries = Election(True), list[int]()
    next_one, server = standing(tmp_path, election)

    async def lead() -> None:
        server.leads = True
        tries.append(1)
        if len(tries) < 3:
            raise LedgerError("the database is away")

    server.lead = lead
    next_one._rounds._pause = 0.01
    next_one.start()
    await until(lambda: bool(election.announced))
    assert (len(tries), election.stood) == (3, 1)
    await next_one.stop()


@pytest.mark.parametrize("fails", ["announce_all", "start"])
async def test_what_a_server_had_begun_is_stopped_when_it_cannot_lead(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    engine = "tests.support.engines.letters:make"
    left = tmp_path / "exports" / "0123"
    left.mkdir(parents=True)
    server = Server(ServerConfig(Home(tmp_path), model=str(base_model), engine=engine), leads=False)
    assert left.exists(), "the server that leads may be sending it"
    under_way, begun, broken = set[JobService](), list[JobService](), True

    async def start(jobs: JobService) -> None:
        assert not server.leads, "no request reaches jobs that may be stopped again"
        under_way.add(jobs)
        begun.append(jobs)
        if broken and fails == "start":
            raise OSError("too many processes")

    async def stop(jobs: JobService) -> None:
        under_way.discard(jobs)

    async def announce_all() -> None:
        assert server.names.leads
        if broken and fails == "announce_all":
            raise LedgerError("the database is away")

    monkeypatch.setattr(JobService, "start", start)
    monkeypatch.setattr(JobService, "stop", stop)
    monkeypatch.setattr(server.names, "announce_all", announce_all)
    with pytest.raises((OSError, LedgerError)):
        await server.lead()
    assert (server.leads, server.names.leads, under_way) == (False, False, set())
    assert not server._purging.begun
    broken = False
    await server.lead()
    assert (server.leads, server.names.leads, under_way) == (True, True, {server.jobs})
    assert len(begun) == (2 if fails == "start" else 1)
    assert server._purging.begun
    assert not left.exists()
    await server.stop()


async def test_a_server_that_leads_from_its_start_deletes_what_a_killed_one_left(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_jobs: JobService) -> None:
        pass

    monkeypatch.setattr(JobService, "start", nothing)
    monkeypatch.setattr(JobService, "stop", nothing)
    left = tmp_path / "exports" / "0123"
    for leads in (False, True):
        left.mkdir(parents=True, exist_ok=True)
        config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
        server = Server(config, leads=leads)
        await server.start()
        assert left.exists() is not leads
        await server.stop()
