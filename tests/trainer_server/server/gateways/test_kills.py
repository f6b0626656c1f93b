"""`serve --gateways 2` with real processes: any of them is killed, and signals stop all."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.patience import PATIENCE
from tests.support.servers.gateways import client_of, gateway_processes
from tests.support.servers.processes import Processes, processes
from trainer_server.ledger.registry import open_ledger
from trainer_server.server.access.tokens import Scope, TokenRepository


def chat(text: str) -> dict[str, Any]:
    return {"model": "base", "max_tokens": 50, "messages": [{"role": "user", "content": text}]}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Caller:
    """Asks on one connection after another, until it is stopped. A call that was cut off is sent again."""

    def __init__(self, server: Processes) -> None:
        self._server, self._stopped = server, threading.Event()
        self.completions: list[str] = []
        self.cut_off = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._server.http() as http:
                    answer = http.post("/v1/chat/completions", json=chat("say a"), headers={"X-ART-Rollout": "ro"})
                assert answer.status_code == 200, answer.text
                self.completions.append(answer.json()["id"])
            except httpx.TransportError:
                self.cut_off += 1

    def stop(self) -> None:
        self._stopped.set()


def gateways(server: Processes) -> list[psutil.Process]:
    """The gateway processes, once there are two that answer."""
    assert server.server is not None
    until(lambda: len(gateway_processes(server.server.pid)) == 2)
    made = gateway_processes(server.server.pid)
    for process in made:
        client(server, process).close()
    return made


def client(server: Processes, process: psutil.Process, key: str | None = None) -> httpx.Client:
    return client_of(process, str(server.http().base_url), key or server.home.token.read_text().strip())


def ask_in_turn(http: httpx.Client, text: str) -> httpx.Response:
    """Asks again for as long as another request of the token is in flight."""
    while (answer := http.post("/v1/chat/completions", json=chat(text))).status_code == 429:
        time.sleep(0.05)
    return answer


def missing(server: Processes, ids: list[str]) -> set[str]:
    """Which of these completions the ledger does not have."""
    ledger = open_ledger("sqlite", server.home)
    return {*ids} - ledger.read(ids).keys()


@pytest.mark.slow
def test_whatever_is_killed_no_answer_is_lost_and_no_process_is_left(tmp_path: Path, base_model: Path) -> None:
    with processes(tmp_path / "home", base_model) as server, ThreadPoolExecutor() as pool:
        server.start("--gateways", "2", "--trainer-on-demand")
        secret = TokenRepository(server.home).create("one-at-a-time", Scope.rollout, requests_in_flight=1)
        caller = Caller(server)
        calls = pool.submit(caller.run)
        for _ in range(2):
            victim, other = gateways(server)
            with closing(client(server, victim, secret)) as http, closing(client(server, other, secret)) as again:
                waiting = pool.submit(ask_in_turn, http, "after 600 say late")
                until(lambda: again.post("/v1/chat/completions", json=chat("say b")).status_code == 429)
                victim.kill()
                with pytest.raises(httpx.TransportError):
                    waiting.result(PATIENCE)
                until(lambda: again.post("/v1/chat/completions", json=chat("say b")).status_code == 200)
        gateways(server)
        caller.stop()
        calls.result(PATIENCE)
        assert len(caller.completions) > 10
        assert not missing(server, caller.completions)
        assert server.log.read_text().count("a gateway process has ended (status -9) and is started again") == 2

        orphans = gateways(server)
        server.kill("server")
        assert server.server is not None
        server.server.wait(PATIENCE)
        until(lambda: not any(orphan.is_running() and orphan.status() != "zombie" for orphan in orphans))
        assert not missing(server, caller.completions)
        server.revive()
        server.until_ready()

        for end in (signal.SIGTERM, signal.SIGINT):
            first, second = gateways(server)
            with closing(client(server, first)) as http:
                late = pool.submit(http.post, "/v1/chat/completions", json=chat("after 1 say late"))
                time.sleep(0.3)
                server.server.send_signal(end)
                answer = late.result(PATIENCE)
                assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "late")
                server.server.wait(PATIENCE)
            assert not first.is_running()
            assert not second.is_running()
            assert not missing(server, [answer.json()["id"]])
            if end == signal.SIGTERM:
                server.revive()
                server.until_ready()
        assert "Traceback" not in server.log.read_text()
