"""The door for ledgers: one that is defined elsewhere is named, and used by server and trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.homes.jobs import finish, groups
from tests.support.homes.other_ledger import LinesLedger, open_lines
from tests.support.servers.trainer_server import trainer_server_on
from trainer_server.common import Home
from trainer_server.ledger.base import Ledger
from trainer_server.ledger.registry import LEDGERS, open_ledger
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.wire import ConfigError

OTHER = "tests.support.homes.other_ledger:open_lines"


@pytest.mark.slow
def test_a_step_is_trained_through_a_ledger_that_is_defined_elsewhere(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model, ledger=OTHER) as server, server.http() as http:
        assert isinstance(server.app.state.server.ledger, LinesLedger)
        assert http.post("/api/policies", json={"name": "p"}, timeout=900).status_code == 201
        refs = groups(http, 1.0, 0.0)
        job = finish(http, http.post("/api/policies/p/steps", json={"groups": refs}))
        assert job["status"] == "succeeded", job
        assert job["result"]["version"] == 1
        completion = refs[0]["trajectories"][0]["completions"][0]
        assert http.get(f"/api/completions/{completion}").json()["id"] == completion
        assert http.get("/api/completions/unknown").status_code == 404
    assert not server.home.ledger.exists()
    assert completion in open_lines(Home(tmp_path)).read([completion])


def test_a_ledger_has_a_name_or_is_named_by_module_and_factory(tmp_path: Path) -> None:
    assert isinstance(open_ledger("sqlite", Home(tmp_path)), SQLiteLedger)
    assert isinstance(open_ledger(OTHER, Home(tmp_path)), LinesLedger)


def test_a_ledger_can_be_added_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEDGERS, "lines", open_lines)
    ledger: Ledger = open_ledger("lines", Home(tmp_path))
    assert isinstance(ledger, LinesLedger)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("duckdb", "there is sqlite; name another as module:factory"),
        ("postgres", "name the database by its address, postgresql://USER@HOST:PORT/DATABASE"),
        ("mysql://host/db", "there is sqlite, postgresql://USER@HOST:PORT/DATABASE, or module:factory"),
        ("no.such.module:open", "no.such.module cannot be imported"),
        ("tests.support.homes.other_ledger:nothing", "has no function 'nothing'"),
    ],
)
def test_a_ledger_that_is_not_there_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_ledger(name, Home(tmp_path))


def test_a_class_that_lacks_a_part_of_the_protocol_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Half:
        def read(self, ids: list[str]) -> dict[str, Any]:
            return {}

    monkeypatch.setitem(LEDGERS, "half", lambda home: Half())  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="Half has no add, close, purge, rollout, sampled_versions, which"):
        open_ledger("half", Home(tmp_path))
