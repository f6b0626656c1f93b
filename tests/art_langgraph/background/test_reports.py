"""What clients tell the trainer server of runs that have ended, and what they say where they cannot."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from art_langgraph import ChatART, TrajectoryGroup, gather, rollout, session
from art_langgraph.background import reports
from art_langgraph.background.background import Background
from art_langgraph.background.reports import report, trace_of, unsent
from art_langgraph.trajectory import CompletionCall, NodeRun, Scenario, ToolCall, Trajectory
from tests.support.runs.graphs import counting
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common import Connection
from trainer_server.wire import RunTrace
from trainer_server.wire.rollouts import TraceCall, TraceNode, TraceTool


def told(server: TrainerServer, run: Trajectory) -> RunTrace:
    """What a server was told of a run. Reports to servers of other tests, which have ended, are not waited for."""
    assert reports._reports[server.url].flush(30)
    found = server.app.state.server.runs.find_trace(run.rollout_id)
    assert isinstance(found, RunTrace)
    return found


def test_a_trace_has_no_field_that_a_trajectory_lacks() -> None:
    for wire, client in (
        (RunTrace, Trajectory),
        (TraceCall, CompletionCall),
        (TraceNode, NodeRun),
        (TraceTool, ToolCall),
    ):
        extra = {"left_out"} if wire is RunTrace else set()
        assert wire.model_fields.keys() - client.model_fields.keys() == extra


async def test_a_run_is_told_when_it_has_ended(connected: TrainerServer) -> None:
    run = await rollout(counting(), "say so", lambda run: {"good": 0.5, "short": 0.25})
    trace = told(connected, run)
    assert (trace.id, trace.reward, trace.metrics) == (run.id, 0.75, {"good": 0.5, "short": 0.25})
    assert [(call.id, call.node, call.messages) for call in trace.completions] == [(run.completions[0].id, "model", [])]
    assert [node.node for node in trace.nodes] == ["model"]


async def test_a_reward_of_the_group_is_told_too(connected: TrainerServer) -> None:
    def judge(group: TrajectoryGroup) -> TrajectoryGroup:
        for run, value in zip(group.trajectories, (1.0, 0.0), strict=True):
            run.reward, run.reward_reason = value, "the first one is best"
        return group

    (group,) = await gather(counting(), ["say so"], 2, group_reward=judge, progress=False)
    traces = [told(connected, run) for run in group.trajectories]
    assert [(one.reward, one.reward_reason) for one in traces] == [
        (1.0, "the first one is best"),
        (0.0, "the first one is best"),
    ]


async def test_a_session_and_a_run_that_raised_are_told(connected: TrainerServer) -> None:
    runs = []

    async def work() -> None:
        async with session("do it") as run:
            runs.append(run)
            await ChatART(policy="agent", max_tokens=20).ainvoke("say this")
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        await work()
    (run,) = runs
    assert run.trajectory is not None
    trace = told(connected, run.trajectory)
    assert (trace.error, len(trace.completions)) == ("ValueError: enough", 1)


def test_half_a_surrogate_pair_is_told_as_its_escape() -> None:
    tool = ToolCall(tool="read", arguments={"ü": "\ud83d"}, started=1)
    trace = trace_of(Trajectory(scenario=Scenario(input="hi \ud83d"), tool_calls=[tool]))
    assert trace.scenario.input == "hi \\ud83d"
    assert trace.tool_calls[0].arguments == {"ü": "\\ud83d"}


def test_a_run_that_is_too_large_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_MOST_BYTES", 100_000)
    tool = ToolCall(tool="read", result="x" * 300_000, arguments={"a": "b"}, started=1)
    run = Trajectory(scenario=Scenario(input="hello", id="y" * 300), tool_calls=[tool], output={"z": "w" * 50_000})
    trace = trace_of(run)
    assert len(trace.tool_calls[0].result or "") < 21_000
    assert (trace.left_out, len(trace.scenario.id)) == (["texts beyond their first 20,000 characters"], 200)
    many = run.model_copy(update={"tool_calls": [tool] * 10})
    trace = trace_of(many)
    assert (trace.tool_calls[9].result, trace.output, len(trace.left_out)) == (None, None, 2)


def test_a_run_that_cannot_be_told_is_counted_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reports, "_GIVE_UP", 0.0)
    monkeypatch.setattr("art_langgraph.notices._notices", set())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    before, nobody = unsent(), Connection(f"http://127.0.0.1:{port}", "key")
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            report(Trajectory(scenario=Scenario(input="x"), rollout_id=f"r{number}"), (), nobody)
        assert reports._reports[nobody.url].flush(30)
    assert unsent() == before + 3
    assert [one.levelname for one in caplog.records if "dashboard" in one.message] == ["WARNING"]
    assert "ART_REPORT_RUNS=0" in caplog.text


async def test_a_server_that_does_not_answer_keeps_no_other_waiting(connected: TrainerServer) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        gone = Connection(f"http://127.0.0.1:{listener.getsockname()[1]}", "key")
    report(Trajectory(scenario=Scenario(input="x"), rollout_id="r-gone"), (), gone)
    run = await rollout(counting(), "say so")
    told_soon = reports._reports[connected.url]
    assert told_soon.flush(30)
    assert connected.app.state.server.runs.find_trace(run.rollout_id) is not None
    assert reports._reports[gone.url].waiting() == 1, "it is tried again for a while"


async def test_a_run_that_was_deleted_is_not_told_of_again(
    connected: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    run = await rollout(counting(), "say so")
    told(connected, run)
    with connected.http() as http:
        assert http.post("/api/rollouts/erase", json={"rollouts": [run.rollout_id]}).status_code == 200
    before = unsent()
    with caplog.at_level(logging.INFO):
        reports.report_again(run.model_copy(update={"reward": 1.0}))
        assert reports._reports[connected.url].flush(30)
    assert connected.app.state.server.runs.find_trace(run.rollout_id) is None
    assert unsent() == before
    assert "was deleted at" in caplog.text


def test_what_is_not_to_be_told_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Connection("http://127.0.0.1:1", "key")
    waiting: Background[Any] = Background("art-reports", reports._open_worker, pause=0.0)
    sent: list[Any] = []
    monkeypatch.setattr(waiting, "put", sent.append)
    monkeypatch.setitem(reports._reports, server.url, waiting)
    run = Trajectory(scenario=Scenario(input="x"), rollout_id="r")
    report(run, ())
    report(run.model_copy(update={"rollout_id": None}), (), server)
    report(run.model_copy(update={"imported": "langsmith"}), (), server)
    monkeypatch.setenv("ART_REPORT_RUNS", "0")
    report(run, (), server)
    assert sent == []
    monkeypatch.delenv("ART_REPORT_RUNS")
    report(run, (), server)
    assert len(sent) == 1


class Receiver:
    """A server that takes traces, or says that it has no time."""

    def __init__(self) -> None:
        self.busy = 0
        """Requests that are still answered with 503."""
        self.batches: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.refused: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.json()
        if self.busy:
            self.busy -= 1
            await JSONResponse({"error": "busy"}, 503)(scope, receive, send)
            return
        self.batches.append(body["traces"])
        taken = len(body["traces"]) - len(self.deleted) - len(self.refused)
        answer = {"taken": taken, "deleted": self.deleted, "refused": self.refused}
        await JSONResponse(answer)(scope, receive, send)

    @property
    def told(self) -> list[str]:
        return [rollout for batch in self.batches for rollout in batch]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Receiver, Connection]]:
    monkeypatch.setattr("art_langgraph.notices._notices", set())
    app = Receiver()
    with serving(app, lifespan="off") as url:
        yield app, Connection(url, "key")


def ended(number: int, **more: Any) -> Trajectory:
    return Trajectory(id=f"t{number}", scenario=Scenario(input="x"), rollout_id=f"r{number}", **more)


def test_runs_that_wait_are_sent_together_each_once_in_its_last_form(receiver: tuple[Receiver, Connection]) -> None:
    app, server = receiver
    app.busy, before = 2, unsent()
    for number in range(350):
        report(ended(number), (), server)
    report(ended(7, reward=0.5), (), server)
    assert reports._reports[server.url].flush(60)
    assert sorted(app.told) == sorted({f"r{number}" for number in range(350)}), "none is lost and none is doubled"
    assert len(app.batches) < 20
    (last,) = [batch["r7"] for batch in app.batches if "r7" in batch]
    assert last["reward"] == 0.5
    assert unsent() == before


def test_a_request_is_no_larger_than_one_run_may_be(
    receiver: tuple[Receiver, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, server = receiver
    monkeypatch.setattr(reports, "_MOST_BYTES", 20_000)
    for number in range(20):
        report(ended(number, output="x" * 5_000), (), server)
    assert reports._reports[server.url].flush(60)
    assert sorted(app.told) == sorted(f"r{number}" for number in range(20))
    assert max(len(batch) for batch in app.batches) <= 3


def test_what_a_server_refuses_of_many_is_counted_and_what_was_deleted_is_not(
    receiver: tuple[Receiver, Connection], caplog: pytest.LogCaptureFixture
) -> None:
    app, server = receiver
    app.deleted, app.refused, before = ["r1"], {"r2": "nodes: not a list"}, unsent()
    with caplog.at_level(logging.INFO):
        for number in range(4):
            report(ended(number), (), server)
        assert reports._reports[server.url].flush(60)
    assert unsent() == before + 1
    assert "r1 was deleted at" in caplog.text
    assert "nodes: not a list" in caplog.text


def test_a_run_that_cannot_be_written_keeps_no_other_back_and_is_counted_once(
    receiver: tuple[Receiver, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    def redact(run: Trajectory) -> Trajectory:
        if run.id == "t2":
            raise ValueError("the redaction fails")
        return run

    app, server = receiver
    monkeypatch.setattr(reports, "redact", redact)
    app.busy, before = 2, unsent()
    for number in range(5):
        report(ended(number), (), server)
    assert reports._reports[server.url].flush(60)
    assert sorted(app.told) == ["r0", "r1", "r3", "r4"]
    assert unsent() == before + 1


def test_more_runs_than_may_wait_are_left_out_and_counted(
    receiver: tuple[Receiver, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, server = receiver
    monkeypatch.setattr(reports, "_MOST", 10)
    app.busy, before = 2, unsent()
    for number in range(50):
        report(ended(number), (), server)
    left_out = unsent() - before
    assert reports._reports[server.url].flush(60)
    assert len(app.told) == 50 - left_out
    assert left_out > 0
    assert reports._unsent["too many wait"] >= left_out


async def test_the_server_keeps_each_of_many_runs_and_names_those_that_it_does_not(connected: TrainerServer) -> None:
    with connected.http() as http:
        assert http.post("/api/rollouts/erase", json={"rollouts": ["ro-gone"]}).status_code == 200
        trace = {"id": "t", "scenario": {"id": "s"}, "started": 1.0}
        told = {"ro-1": trace, "ro-gone": trace, "ro-2": {**trace, "nodes": 5}, "../x": trace}
        answer = http.post("/api/rollouts/traces", json={"traces": told}).json()
        assert (answer["taken"], answer["deleted"]) == (1, ["ro-gone"])
        assert answer["refused"].keys() == {"ro-2", "../x"}
        assert "nodes" in answer["refused"]["ro-2"]
        assert http.get("/api/rollouts/ro-1/trace").json()["id"] == "t"
        assert http.get("/api/rollouts/ro-2/trace").status_code == 404
