"""Two gateway processes on one port: clients cannot tell them from one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.engines.letters import LettersEngine
from tests.support.homes.versions import publish
from tests.support.patience import PATIENCE
from tests.support.servers.gateways import GatewayServer, gateways_on
from trainer_server.common import Home
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.gateways.processes import GatewayProcesses
from trainer_server.wire import ConfigError, PolicySpec

ROLLOUT = "X-ART-Rollout"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[GatewayServer]:
    """With the versions 0 and 1 of the policy `p`."""
    with gateways_on(tmp_path_factory.mktemp("home"), base_model) as running:
        state = running.app.state.server
        state.store.register(PolicySpec(name="p"), state.identity.base.name)
        for number in range(2):
            publish(state.store, "p", number)
            state.names.serve(("p", number))
        yield running


@pytest.fixture(scope="module")
def clients(server: GatewayServer) -> Iterator[list[httpx.Client]]:
    made = server.clients()
    yield made
    for http in made:
        http.close()


def chat(text: str, **body: Any) -> dict[str, Any]:
    return {"model": "base", "max_tokens": 50, "messages": [{"role": "user", "content": text}], **body}


def ask(http: httpx.Client, text: str, rollout: str | None = None, **body: Any) -> dict[str, Any]:
    headers = {ROLLOUT: rollout} if rollout else {}
    answer = http.post("/v1/chat/completions", json=chat(text, **body), headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def error_of(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_rollout_has_one_version_and_one_record_whichever_process_answers(
    server: GatewayServer, clients: list[httpx.Client]
) -> None:
    first, second = clients
    answers = [ask(http, "say a", "ro-1", model="p") for http in (first, second)]
    assert first.put("/api/policies/p/promotion", json={"version": 0}).json()["promoted"] == 0
    answers += [ask(http, "say a", "ro-1", model="p") for http in (second, first)]
    assert [answer["model"] for answer in answers] == ["p@1"] * 4
    assert [ask(http, "say a", "ro-2", model="p")["model"] for http in clients] == ["p@0"] * 2
    assert second.delete("/api/rollouts/ro-1").status_code == 204
    assert ask(first, "say a", "ro-1", model="p")["model"] == "p@0"
    record = first.get("/api/rollouts/ro-1").json()
    assert [one["id"] for one in record["completions"]][:4] == [answer["id"] for answer in answers]
    row = second.get(f"/api/completions/{answers[1]['id']}").json()
    assert (row["status"], row["message"]["content"], row["rollout"]) == ("complete", "a", "ro-1")
    assert len(row["token_ids"]) == len(row["logprobs"]) == answers[1]["usage"]["completion_tokens"]
    first.put("/api/policies/p/promotion", json={"version": None})


def test_a_turn_is_spliced_by_the_process_that_did_not_sample_it(clients: list[httpx.Client]) -> None:
    first, second = clients
    question = {"role": "user", "content": 'turn call f {"b":1,"a":[2]}'}
    turn = first.post("/v1/chat/completions", json=chat("", messages=[question]), headers={ROLLOUT: "ro-turns"}).json()
    message = turn["choices"][0]["message"]
    message["tool_calls"][0]["function"]["arguments"] = '{"b": 1, "a": [2]}'
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "turn say done"}
    body = chat("", messages=[question, message, result])
    later = second.post("/v1/chat/completions", json=body, headers={ROLLOUT: "ro-turns"}).json()
    row = first.get(f"/api/completions/{later['id']}").json()
    assert (row["continues"], row["continuation"]) == (turn["id"], "spliced")


@pytest.mark.parametrize("stream", [False, True])
def test_all_client_apis_are_answered_and_a_response_is_continued_by_another_process(
    clients: list[httpx.Client], stream: bool
) -> None:
    first, second = clients
    with first.stream("POST", "/v1/chat/completions", json=chat("say abc", stream=stream)) as answer:
        text = answer.read().decode()
    assert ("data: [DONE]" in text) == stream
    made = first.post("/v1/responses", json={"model": "base", "input": "say a"}).json()
    more = {"model": "base", "input": "say b", "previous_response_id": made["id"]}
    assert second.post("/v1/responses", json=more).json()["output"][0]["content"][0]["text"] == "b"
    message = {"model": "base", "max_tokens": 9, "messages": chat("say m")["messages"]}
    assert second.post("/v1/messages", json=message).json()["content"][0]["text"] == "m"
    assert first.post("/v1/messages/count_tokens", json=message).json()["input_tokens"] > 0
    assert second.post("/v1/completions", json={"model": "base", "prompt": "x", "max_tokens": 5}).status_code == 200
    below = first.post(f"/rollouts/ro-path-{stream}/v1/chat/completions", json=chat("say p")).json()
    assert second.get(f"/api/rollouts/ro-path-{stream}").json()["completions"][0]["id"] == below["id"]


def test_requests_in_flight_and_tokens_of_a_token_are_counted_together(server: GatewayServer) -> None:
    tokens = TokenRepository(server.home)
    secret = tokens.create("one-at-a-time", Scope.rollout, requests_in_flight=1)
    first, second = server.clients(secret)
    with closing(first), closing(second), ThreadPoolExecutor() as pool:
        server.engine["released"] = False
        waiting = pool.submit(ask, first, "when released say a")
        try:
            until(lambda: server.engine["under_way"])
            assert error_of(second.post("/v1/chat/completions", json=chat("say b"))) == (429, "quota_requests")
        finally:
            server.engine["released"] = True
        waiting.result(PATIENCE)
        until(lambda: second.post("/v1/chat/completions", json=chat("say b")).status_code == 200)
    secret = tokens.create("few", Scope.rollout, tokens_per_minute=10)
    first, second = server.clients(secret)
    with closing(first), closing(second):
        ask(first, "say many words")
        until(lambda: error_of(second.post("/v1/chat/completions", json=chat("say b"))) == (429, "quota_tokens"))


def test_what_a_token_may_not_do_is_refused_as_by_one_process(
    server: GatewayServer, clients: list[httpx.Client]
) -> None:
    tokens = TokenRepository(server.home)
    secrets = [tokens.create(name, Scope.rollout) for name in ("alice", "bob")]
    (alice, _), (_, bob) = (server.clients(secret) for secret in secrets)
    with closing(alice), closing(bob):
        ask(alice, "say a", "ro-alice")
        refused = bob.post("/v1/chat/completions", json=chat("say a"), headers={ROLLOUT: "ro-alice"})
        assert error_of(refused) == (403, "rollout_of_another")
        tokens.revoke("bob")
        assert error_of(bob.post("/v1/chat/completions", json=chat("say a"))) == (401, "invalid_api_key")
    for http in clients:
        other = http.post("/v1/chat/completions", json=chat("say a"), headers={"Host": "elsewhere.example"})
        assert error_of(other) == (400, "unknown_host")
        assert error_of(http.post("/v1/chat/completions", json=chat("", model="nobody"))) == (404, "model_not_found")
        assert http.post("/v1/chat/completions", content=b"{").status_code == 400
        assert http.get("/nowhere").status_code == 404
        assert (
            http.post("/v1/chat/completions", json=chat("say a"), headers={"X-Request-Id": "mine"}).headers[
                "X-Request-Id"
            ]
            == "mine"
        )


def test_an_answer_that_its_client_leaves_is_aborted(server: GatewayServer) -> None:
    before = server.engine["aborted"]
    http = server.clients()[0]
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=chat("slow", stream=True), headers={ROLLOUT: "ro-left"}, timeout=0.3)
    http.close()
    until(lambda: server.engine["aborted"] > before)
    until(lambda: not server.app.state.server.admission.under_way)
    ledger = server.app.state.server.ledger
    until(lambda: [row.status for row in ledger.rollout("ro-left")] == ["aborted"])
    assert all(engine.busy == 0 for engine in server.app.state.server.engines)


def test_an_adapter_that_the_engine_lost_is_loaded_again(server: GatewayServer, clients: list[httpx.Client]) -> None:
    ask(clients[0], "say a", model="p")
    server.engine["loaded"].clear()
    for http in clients:
        assert ask(http, "say a", model="p")["model"].startswith("p@")


def test_pages_are_passed_on_while_they_come_and_end_with_their_client(
    server: GatewayServer, clients: list[httpx.Client]
) -> None:
    """The stream of events of the dashboard has no end."""
    with clients[0].stream("GET", "/ui/events") as answer:
        assert next(answer.iter_lines()) is not None
        ask(clients[1], "say a")
    clients[0].close()

    def count() -> float:
        lines = clients[1].get("/metrics").text.splitlines()
        name = 'art_http_request_seconds_count{method="GET",route="/ui/events"'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    until(lambda: count() == 1)
    clients[0] = server.clients()[0]


def test_a_large_body_and_a_large_answer_are_passed_on(clients: list[httpx.Client]) -> None:
    ids = [f"chatcmpl-{number:0500}" for number in range(1000)]
    assert clients[0].post("/api/completions/find", json={"ids": ids}).json() == {"completions": []}
    contract = clients[1].get("/openapi.json")
    assert len(contract.content) > 50_000
    assert "/v1/chat/completions" in contract.json()["paths"]


def test_completions_and_requests_are_counted_in_one_place(clients: list[httpx.Client]) -> None:
    def counts() -> tuple[float, float]:
        lines = clients[0].get("/metrics").text.splitlines()
        names = ('art_completions_total{policy="",status="complete"}',
                 'art_http_request_seconds_count{method="POST",route="/v1/chat/completions",status="200"}')  # fmt: skip
        completions, requests = (
            sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names
        )
        return completions, requests

    before = counts()
    for http in clients:
        ask(http, "say a")
    until(lambda: counts() == (before[0] + 2, before[1] + 2))


def test_processes_log_through_the_server(
    server: GatewayServer, clients: list[httpx.Client], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        ask(clients[0], "say a", "ro-log", user="somebody")
        until(lambda: any("`user`" in record.getMessage() for record in caplog.records))


def test_an_engine_that_other_processes_cannot_reach_is_refused(tmp_path: Path, base_model: Path) -> None:
    config = ServerConfig(
        Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make", gateways=2
    )
    app = create_app(config, "token")
    with pytest.raises(ConfigError, match=f"--gateways 2 .*{LettersEngine.__name__}, which has no key"):
        GatewayProcesses(app.state.server, app, "token", [None, None])  # type: ignore[list-item]
