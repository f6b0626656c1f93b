"""Records of runs that another process handed over go to the trainer server, or the log says why not."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art_langgraph import Scenario, Trajectory
from art_langgraph.capture.handover import RemoteRecords
from art_langgraph.capture.remote import outbox
from art_langgraph.capture.remote.outbox import Outbox
from art_langgraph.capture.scope import Scope
from art_langgraph.trajectory import CompletionCall
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common.jsonl import from_json
from trainer_server.wire import ARTError


def never() -> None:
    """No store to wait for."""


@pytest.fixture
def sent() -> Iterator[Outbox]:
    made = Outbox(never)
    yield made
    made.close(5.0)


def run(text: str = "answer") -> Trajectory:
    call = CompletionCall(id="chatcmpl-1", model="agent", message={"role": "assistant", "content": text}, started=1.0)
    return Trajectory(scenario=Scenario(input={"long": "input"}), completions=[call], output={"long": "output"})


def fetched(server: TrainerServer, scope: Scope) -> RemoteRecords:
    with server.http() as http:
        answer = http.get(f"/api/rollouts/{scope.rollout_id}/records/{scope.call}")
    return from_json(RemoteRecords, answer.text)


def test_a_run_is_announced_and_its_record_sent(connected: TrainerServer, sent: Outbox) -> None:
    scope, trajectory = Scope(call="rc-1", mark_count=2), run("half a pair: \ud83d")
    sent.note_start(scope, trajectory.id)
    sent.flush(10)
    assert not fetched(connected, scope).ended
    sent.note_end(scope, trajectory)
    sent.flush(10)
    records = fetched(connected, scope)
    assert records.ended
    (record,) = records.records
    assert (record.marked, record.trajectory.id) == (2, trajectory.id)
    assert record.trajectory.completions == trajectory.completions
    assert (record.trajectory.output, record.trajectory.scenario.input) == (None, None)
    assert record.trajectory.scenario.id == trajectory.scenario.id


def test_runs_that_nobody_waits_for_stay_here(connected: TrainerServer, sent: Outbox) -> None:
    scope = Scope()
    sent.note_start(scope, "tr-1")
    sent.note_end(scope, run())
    sent.flush(10)
    with connected.http() as http:
        assert http.get(f"/api/rollouts/{scope.rollout_id}/records/None").status_code == 404


def test_the_store_has_the_run_before_the_record_goes() -> None:
    order: list[str] = []

    async def take(_request: Request) -> Response:
        order.append("sent")
        return Response(status_code=204)

    with serving(Starlette(routes=[Route("/{path:path}", take, methods=["PUT"])])) as url:
        box = Outbox(lambda: order.append("stored"))
        box.note_end(Scope(call="rc", servers={(url, "key")}), run())
        box.flush(10)
        box.close(5)
    assert order == ["stored", "sent"]


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process knows no trainer server."""
    monkeypatch.setattr(outbox, "known_servers", list)


def raises() -> str:
    raise RuntimeError("the vault is closed")


@pytest.mark.parametrize(
    ("key", "status", "message"),
    [
        ("key", 507, "refused it: HTTP 507, .*too many"),
        ("key", 404, "refused it: HTTP 404"),
        (raises, 204, "RuntimeError: the vault is closed"),
    ],
)
def test_what_does_not_go_is_said(
    key: str | Callable[[], str], status: int, message: str, sent: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_request: Request) -> Response:
        return JSONResponse({"error": "too many"}, status)

    scope = Scope(call="rc")
    with serving(Starlette(routes=[Route("/{path:path}", refuse, methods=["PUT"])])) as url:
        scope.servers.add((url, key))
        sent.note_end(scope, run())
        sent.flush(10)
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert f"rollout {scope.rollout_id} did not go home" in record.getMessage()
    assert re.search(message, record.getMessage())


def test_without_a_server_a_warning_says_what_to_set(gone: None, sent: Outbox, heard: pytest.LogCaptureFixture) -> None:
    sent.note_end(Scope(call="rc"), run())
    sent.flush(10)
    (warning,) = heard.messages
    assert "cannot go home: this process knows no trainer server" in warning
    assert "Set ART_BASE_URL and ART_API_KEY" in warning


def test_a_record_waits_for_a_server_that_is_away(sent: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []

    async def take(request: Request) -> Response:
        got.append(request.url.path)
        return Response(status_code=204)

    app = Starlette(routes=[Route("/{path:path}", take, methods=["PUT"])])
    with serving(app) as url:
        port = int(url.rpartition(":")[2])
    scope = Scope(call="rc", servers={(url, "key")})
    sent.note_end(scope, run())
    time.sleep(0.2)
    with serving(app, port):
        sent.flush(PATIENCE)
    assert got == [f"/api/rollouts/{scope.rollout_id}/records/rc/{got[0].rpartition('/')[2]}"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_record_waits_for_a_server_that_has_no_time(status: int, sent: Outbox) -> None:
    answered: list[int] = []

    async def take(_request: Request) -> Response:
        answered.append(status if len(answered) < 2 else 204)
        return Response(status_code=answered[-1])

    sent._events._again = 0.01
    with serving(Starlette(routes=[Route("/{path:path}", take, methods=["PUT"])])) as url:
        sent.note_end(Scope(call="rc", servers={(url, "key")}), run())
        sent.flush(PATIENCE)
    assert answered == [status, status, 204]


def test_a_flush_tells_that_records_are_not_sent(sent: Outbox) -> None:
    async def refuse(_request: Request) -> Response:
        return Response(status_code=503)

    with serving(Starlette(routes=[Route("/{path:path}", refuse, methods=["PUT"])])) as url:
        sent.note_end(Scope(call="rc", servers={(url, "key")}), run())
        with pytest.raises(ARTError, match="1 records of remote runs have not gone home"):
            sent.flush(0.1)


def test_no_id_leads_to_another_address(sent: Outbox) -> None:
    paths: list[str] = []

    async def take(request: Request) -> Response:
        paths.append(request.scope["raw_path"].decode())
        return Response(status_code=204)

    with serving(Starlette(routes=[Route("/{path:path}", take, methods=["PUT"])])) as url:
        sent.note_end(Scope(rollout_id="a/../b", call="x?y", servers={(url, "key")}), run())
        sent.flush(PATIENCE)
    assert paths[0].startswith("/api/rollouts/a%2F..%2Fb/records/x%3Fy/tr-")
