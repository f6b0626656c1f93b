"""Rollouts over HTTP: registered, asked by base URL, read as a trajectory, rewarded, listed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from art_langgraph.trajectory import CompletionCall, ToolCall, Trajectory
from tests.support.homes.ledger_rows import row
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.routes import rollouts
from trainer_server.wire import RolloutCompletion, RolloutRecord, RolloutToolCall


def say(http: httpx.Client, rollout: str, text: str, *before: dict[str, Any], **options: Any) -> dict[str, Any]:
    body = {"model": "agent", "max_tokens": 60, "messages": [*before, {"role": "user", "content": text}], **options}
    answer = http.post(f"/rollouts/{rollout}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def test_a_registered_rollout_is_answered_as_it_says(server: TrainerServer) -> None:
    with server.http() as http:
        spec = {"scenario": "task-1", "version": 0, "temperature": 0.25, "evaluation": True, "metadata": {"k": 1}}
        registered = http.put("/api/rollouts/pinned", json=spec)
        assert registered.status_code == 200
        assert "agent" in registered.json()["policies"]
        assert http.get("/api/rollouts/pinned").json()["calls"] == 0
        say(http, "pinned", "say x", temperature=0.9)
        record = http.get("/api/rollouts/pinned").json()
        assert (record["versions"], record["temperatures"]) == ({"agent": [0]}, [0.25])
        assert record["scenario"] == {"id": "task-1", "input": None, "metadata": {}}
        assert (record["evaluation"], record["metadata"]) == (True, {"k": 1})
        assert http.put("/api/rollouts/pinned", json={"version": 99}).status_code == 200
        body = {"model": "agent", "messages": [{"role": "user", "content": "x"}]}
        missing = http.post("/rollouts/pinned/v1/chat/completions", json=body)
        assert (missing.status_code, "no version '99'" in missing.text) == (404, True)
        named = http.post("/rollouts/pinned/v1/chat/completions", json={**body, "model": "agent@0"})
        assert named.status_code == 200, "a request that names a version keeps it"


def test_a_header_counts_more_than_the_registration(server: TrainerServer) -> None:
    with server.http() as http:
        http.put("/api/rollouts/headed", json={"temperature": 0.25, "version": 7})
        headers = {"X-ART-Temperature": "0.5", "X-ART-Version": "agent=0,other=3"}
        body = {"model": "agent", "messages": [{"role": "user", "content": "say x"}], "max_tokens": 9}
        answer = http.post("/rollouts/headed/v1/chat/completions", json=body, headers=headers)
        assert answer.json()["model"] == "agent@0"
        assert http.get("/api/rollouts/headed").json()["temperatures"] == [0.5]
        odd = http.post("/rollouts/headed/v1/chat/completions", json=body, headers={"X-ART-Version": "new"})
        assert (odd.status_code, odd.json()["error"]["param"]) == (400, "X-ART-Version")


@pytest.mark.parametrize("version", ["follow", {"agent": "follow"}])
def test_a_rollout_that_follows_holds_no_version(server: TrainerServer, version: Any) -> None:
    with server.http() as http:
        name = f"following-{type(version).__name__}"
        assert http.put(f"/api/rollouts/{name}", json={"version": version}).status_code == 200
        base, *_ = (model["id"] for model in http.get("/v1/models").json()["data"])
        body = {"messages": [{"role": "user", "content": "say x"}], "max_tokens": 9}
        newest = http.get("/api/policies/agent").json()["latest"]
        for model, expected in (("agent", f"agent@{newest}"), ("agent@latest", f"agent@{newest}"), (base, base)):
            answer = http.post(f"/rollouts/{name}/v1/chat/completions", json={"model": model, **body})
            assert (answer.status_code, answer.json()["model"]) == (200, expected)
        assert http.get(f"/api/rollouts/{name}").json()["versions"] == {"agent": [newest]}
        missing = http.post(f"/rollouts/{name}/v1/chat/completions", json={"model": "nobody", **body})
        assert (missing.status_code, "nobody" in missing.text) == (404, True)


def test_a_rollout_is_a_trajectory(server: TrainerServer) -> None:
    """The wire's record and the client's class are two, because the server knows no client."""
    for wire, client in (
        (RolloutCompletion, CompletionCall),
        (RolloutToolCall, ToolCall),
        (RolloutRecord, Trajectory),
    ):
        extra = {"calls", "versions", "temperatures", "rewards"} if wire is RolloutRecord else set()
        assert wire.model_fields.keys() - client.model_fields.keys() == extra
    with server.http() as http:
        first = say(http, "tools", 'call double {"value": 2}')
        asked = {"role": "user", "content": 'call double {"value": 2}'}
        result = {
            "role": "tool",
            "tool_call_id": first["tool_calls"][0]["id"],
            "content": [{"type": "text", "text": "4"}],
        }
        assert say(http, "tools", "say four", asked, first, result)["content"] == "four"
        http.post("/api/rollouts/tools/reward", json={"reward": 1, "metrics": {"exact": 1.0}, "reason": "right"})
        trajectory = Trajectory.model_validate(http.get("/api/rollouts/tools").json())
    assert trajectory.final_text == "four"
    assert [message.type for message in trajectory.messages] == ["human", "ai", "tool", "human", "ai"]
    (call,) = trajectory.tool_calls
    assert (call.tool, call.arguments, call.result) == ("double", {"value": 2}, "4")
    assert [(one.policy, one.version, one.trainable) for one in trajectory.completions] == [("agent", 0, True)] * 2
    assert (trajectory.reward, trajectory.metrics, trajectory.reward_reason) == (1.0, {"exact": 1.0}, "right")
    assert (trajectory.id, trajectory.rollout_id, trajectory.reward_source) == ("tools", "tools", "http")
    assert trajectory.scenario.input == {"messages": [asked]}


def test_the_last_reward_counts_and_earlier_ones_are_kept(server: TrainerServer) -> None:
    with server.http() as http:
        say(http, "twice", "say x")
        for reward in (0.5, -1):
            answer = http.post("/api/rollouts/twice/reward", json={"reward": reward, "scenario": f"s{reward}"})
            assert answer.status_code == 200
        record = answer.json()
        assert (record["reward"], record["scenario"]["id"]) == (-1.0, "s-1")
        assert [given["reward"] for given in record["rewards"]] == [0.5, -1.0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"reward": NaN}', "reward is nan, and has to be a finite number: post none"),
        ('{"reward": null}', "reward is null, and has to be a finite number"),
        ('{"reward": -Infinity}', "reward is -inf"),
        ('{"reward": 1, "metrics": {"a": NaN}}', "metrics.a is nan"),
        ('{"reward": 1e308}', "reward is 1e+308, beyond ±1e+06: scale the rewards down"),
        ('{"reward": "good"}', "reward"),
        ("{}", "Field required"),
        ('{"reward": 1, "other": 2}', "other"),
        ('{"reward": 1, "reason": "\\ud83d"}', "half of a character"),
    ],
)
def test_what_is_no_reward_is_refused(server: TrainerServer, body: str, message: str) -> None:
    with server.http() as http:
        http.put("/api/rollouts/refused", json={})
        answer = http.post("/api/rollouts/refused/reward", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)
        assert message in answer.json()["error"]["message"]
        assert http.get("/api/rollouts/refused").json()["rewards"] == []


def test_an_unknown_rollout_is_named_with_the_remedy(server: TrainerServer) -> None:
    with server.http() as http:
        for answer in (http.get("/api/rollouts/nobody"), http.post("/api/rollouts/nobody/reward", json={"reward": 1})):
            assert answer.status_code == 404
            assert "there is no rollout 'nobody'" in answer.json()["error"]["message"]
            assert "/rollouts/ID/v1" in answer.json()["error"]["message"]


def test_rollouts_are_listed_in_pages(server: TrainerServer) -> None:
    with server.http() as http:
        for number in range(5):
            http.put(f"/api/rollouts/page-{number}", json={"scenario": "paged"})
        for number in (1, 3):
            say(http, f"page-{number}", "say x")
            http.post(f"/api/rollouts/page-{number}/reward", json={"reward": number})
        found: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = http.get("/api/rollouts", params={"after": after, "limit": 2}).json()
            assert len(page["rollouts"]) <= 2
            found, after = found + page["rollouts"], page["next"]
        mine = [one for one in found if one["scenario"] == "paged"]
        assert [one["id"] for one in mine] == [f"page-{number}" for number in range(5)]
        assert [(one["reward"], one["policies"]) for one in mine[:2]] == [(None, []), (1.0, ["agent"])]
        rewarded = http.get("/api/rollouts", params={"policy": "agent", "rewarded": True, "limit": 1000}).json()
        assert [one["id"] for one in rewarded["rollouts"] if one["scenario"] == "paged"] == ["page-1", "page-3"]
        assert http.get("/api/rollouts", params={"policy": "nobody"}).json() == {"rollouts": [], "next": None}


@pytest.mark.slow
def test_a_restart_loses_neither_registration_nor_reward(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model) as running, running.http() as http:
        http.post("/api/policies", json={"name": "agent"})
        http.put("/api/rollouts/kept", json={"temperature": 0.25})
        say(http, "kept", "say a")
        http.post("/api/rollouts/kept/reward", json={"reward": 0.5})
    with trainer_server_on(tmp_path, base_model) as running, running.http() as http:
        say(http, "kept", "say b")
        record = http.get("/api/rollouts/kept").json()
        assert (record["calls"], record["temperatures"], record["reward"]) == (2, [0.25], 0.5)


@pytest.fixture
def own(tmp_path: Path, base_model: Path) -> TestClient:
    """A server in this process."""
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    return TestClient(create_app(config, "key"), base_url="http://127.0.0.1", headers={"x-api-key": "key"})


def rows(http: TestClient, rollout: str, count: int, size: int) -> list[str]:
    """Rows of a rollout whose requests, which call a tool and have its result, have texts of a size. Returns ids."""
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    made = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [{"role": "user", "content": "x" * size}, made, {"role": "tool", "tool_call_id": "c", "content": "seen"}]
    changes = {"rollout": rollout, "message": made, "request": {"messages": messages}}
    added = [row(f"{rollout}-{at}", 100.0 - at).model_copy(update=changes) for at in range(count)]
    asyncio.run(http.app.state.server.ledger.add(*added))  # type: ignore[attr-defined]
    return [completion.id for completion in reversed(added)]


def test_the_messages_of_a_rollout_have_a_bound(own: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "MOST_ANSWER", 20_000)
    ids = rows(own, "large", 20, 2000)
    refused = own.get("/api/rollouts/large")
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "answer_too_large")
    assert "?messages=false" in refused.json()["error"]["message"]
    record = own.get("/api/rollouts/large?messages=false").json()
    assert [completion["id"] for completion in record["completions"]] == ids, "in the order of their creation"
    assert [len(completion["messages"]) for completion in record["completions"]] == [3] + [0] * 19
    assert {(one["prompt_tokens"], one["sampled_tokens"]) for one in record["completions"]} == {(2, 2)}
    assert (record["calls"], len(record["tool_calls"]), record["scenario"]["input"] is None) == (20, 20, False)
    rewarded = own.post("/api/rollouts/large/reward", json={"reward": 1})
    assert (rewarded.status_code, rewarded.json()) == (200, own.get("/api/rollouts/large?messages=false").json())
    rows(own, "small", 3, 2000)
    whole = own.get("/api/rollouts/small").json()
    assert [len(completion["messages"]) for completion in whole["completions"]] == [3, 3, 3]
    assert [call["result"] for call in whole["tool_calls"]] == ["seen", "seen", None]
    monkeypatch.setattr(rollouts, "MOST_ANSWER", 10)
    brief = own.get("/api/rollouts/small?messages=false")
    assert (brief.status_code, "messages=false" in brief.json()["error"]["message"]) == (413, False)


def test_of_a_large_rollout_few_rows_are_in_memory(own: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "MOST_ANSWER", 20_000)
    rows(own, "read", 100, 2000)
    ledger, reads = own.app.state.server.ledger, list[int]()  # type: ignore[attr-defined]
    read = ledger.read
    monkeypatch.setattr(ledger, "read", lambda ids: (reads.append(len(ids)), read(ids))[1])
    monkeypatch.setattr(ledger, "rollout", lambda rollout: pytest.fail("all are read"))
    assert own.get("/api/rollouts/read").status_code == 413
    assert (max(reads), sum(reads) < 20) == (8, True)
