"""Whatever JSON a client sends to whatever route, it is answered, and in OpenAI's shape where that is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.support.fuzzing import BIG, json_values, scalars, thorough
from tests.support.homes.versions import publish
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import Completion, GRPOConfig, PolicySpec, SFTConfig

HOLDER = {"Authorization": "Bearer token", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[TestClient]:
    """A server with the policy `p`. Its trainer is not started: jobs stay queued."""
    home = Home(tmp_path_factory.mktemp("home"))
    config = ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "token")
    server = app.state.server
    server.store.register(PolicySpec(name="p"), server.identity.base.name, server.fingerprint)
    publish(server.store, "p", 0)
    server.names.newest["p"] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer_server.server.routes.policies._CREATION", 0.0)
        yield TestClient(app, base_url="http://127.0.0.1", headers=HOLDER, raise_server_exceptions=False)


names = st.sampled_from(
    ["name", "rank", "fork_of", "policy", "version", "groups", "config", "trajectories", "conversations", "messages",
     "role", "content", "tools", "function", "id", "reward", "completions", "scenario_id", "score", "idempotency_key",
     *GRPOConfig.model_fields, *SFTConfig.model_fields]
)  # fmt: skip
values = json_values(names)
trajectories = st.lists(
    st.fixed_dictionaries({"id": values, "reward": scalars, "completions": values | st.lists(st.text(), max_size=2)})
)
groups = st.lists(st.fixed_dictionaries({"scenario_id": values | st.text(), "trajectories": values | trajectories}))
message = st.fixed_dictionaries({"role": scalars, "content": values}, optional={"tool_calls": values, "extra": values})
conversations = st.lists(
    st.fixed_dictionaries(
        {"messages": values | st.lists(message)}, optional={"tools": values, "chat_template_kwargs": values}
    )
)
config = values | st.dictionaries(names, scalars, max_size=2)
request = st.fixed_dictionaries(
    {}, optional={"messages": values | st.lists(message), "instructions": values, "prompt": values, "tools": values}
)
completion = st.fixed_dictionaries(
    {name: values for name in Completion.model_fields if name in ("id", "policy", "version", "sampling")},
    optional={"token_ids": values, "logprobs": values, "request": values | request, "message": values | message},
)
trace = st.fixed_dictionaries(
    {"id": values, "scenario": values | st.fixed_dictionaries({"id": values}), "started": values},
    optional={"completions": values | st.lists(message), "nodes": values, "tool_calls": values, "metadata": values},
)
BODIES = {
    "POST /api/policies": st.fixed_dictionaries(
        {"name": values | st.just("p")}, optional={"fork_of": values, "alpha": values}
    ),
    "POST /api/policies/p/steps": st.fixed_dictionaries(
        {"groups": values | groups}, optional={"config": config, "idempotency_key": values}
    ),
    "POST /api/policies/p/sft": st.fixed_dictionaries(
        {"conversations": values | conversations}, optional={"trajectories": values | trajectories, "config": config}
    ),
    "PUT /api/rollouts/r": st.fixed_dictionaries(
        {}, optional={"scenario": values, "version": values, "temperature": values, "metadata": values}
    ),
    "POST /api/rollouts/r/reward": st.fixed_dictionaries(
        {"reward": values}, optional={"metrics": values, "scenario": values, "reason": values}
    ),
    "PUT /api/rollouts/r/trace": trace,
    "POST /api/rollouts/traces": st.fixed_dictionaries(
        {"traces": values | st.lists(st.fixed_dictionaries({"rollout": values, "trace": values | trace}))}
    ),
    "POST /api/rollouts/release": values | st.lists(st.text()),
    "POST /api/rollouts/erase": st.fixed_dictionaries({}, optional={"rollouts": values, "completions": values}),
    "POST /api/completions": st.fixed_dictionaries({"completions": values | st.lists(completion)}),
    "POST /api/completions/find": st.fixed_dictionaries({"ids": values | st.lists(st.text())}),
    "PUT /api/policies/p/versions/0/score": st.fixed_dictionaries({"score": values}),
    "PUT /api/policies/p/candidate": st.fixed_dictionaries({"version": values}, optional={"share": values}),
    "POST /v1/chat/completions": values,
    "POST /v1/responses": values,
    "POST /v1/messages": values,
    "POST /v1/messages/count_tokens": values,
    "POST /v1/completions": values,
}


@pytest.mark.slow
@pytest.mark.parametrize("route", BODIES)
@thorough(60)
@given(data=st.data())
def test_any_body_is_answered(http: TestClient, route: str, data: st.DataObject) -> None:
    body = data.draw(values | BODIES[route])
    answer = http.request(*route.split(), content=json.dumps(body))
    if answer.status_code == 503:
        assert answer.json()["error"]["code"] == "busy"  # a policy that waits for the trainer
    else:
        assert answer.status_code < 500, (body, answer.text)


@pytest.mark.parametrize("record", [b"", b"{}", b"5", b"[" * 100_000, b"\xff"])
def test_a_record_is_an_object_or_empty(http: TestClient, record: bytes) -> None:
    answer = http.put("/api/rollouts/r/records/c/x", content=record)
    assert answer.status_code == (204 if record in (b"", b"{}") else 422)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe", b"[" * 100_000, b'{"groups": ' + b"1" * 5_000 + b"}", b'{"a":' * 2_000]
)
@pytest.mark.parametrize("route", BODIES)
def test_what_is_no_json_is_answered(http: TestClient, route: str, raw: bytes) -> None:
    answer = http.request(*route.split(), content=raw)
    assert answer.status_code in (400, 422), answer.text
    assert {"message", "type", "param", "code"} == set(answer.json()["error"])


def test_a_method_that_a_route_has_not_is_answered_with_those_that_it_has(http: TestClient) -> None:
    for path, allowed in (("/v1/models", "GET"), ("/api/rollouts/r", "DELETE, GET, PUT")):
        answer = http.request("TRACE", path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
        assert answer.json()["error"]["message"] == f"TRACE {path}: Method Not Allowed"


@pytest.mark.parametrize(
    "path",
    [
        "/api/policies/{}", "/api/policies/{}/versions",
        "/api/policies/p/versions/{}", "/api/policies/p/versions/{}/export",
        "/api/policies/p/versions/0/export?format={}", "/api/policies/p/steps?idempotency_key={}", "/api/jobs/{}",
        "/api/jobs?limit={}", "/api/jobs?status={}", "/api/jobs/job-1?wait={}", "/api/completions/{}",
        "/api/rollouts/{}", "/api/rollouts?after={}", "/api/rollouts?policy={}&rewarded={}", "/rollouts/{}/v1/models",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "part",
    ["²", str(BIG), "-1", "nan", "1e400", "\x00", "..%2f..", "\udc80", "x" * 5_000, "p@0"],
    ids=lambda part: ascii(part)[:12],
)
def test_any_address_is_answered(http: TestClient, path: str, part: str) -> None:
    answer = http.get(path.replace("{}", quote(part, errors="surrogatepass")))
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_without_its_content_type_is_answered_with_the_header_to_send(http: TestClient) -> None:
    """As `curl -d` sends it."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = http.post("/api/rollouts/run-1/reward", content='{"reward": 1}', headers=headers)
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert "Content-Type is application/x-www-form-urlencoded" in message
    assert "send the header `Content-Type: application/json`" in message
