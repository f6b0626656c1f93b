"""Whatever JSON a client sends to whatever route, it is answered, and in OpenAI's shape where that is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.support.versions import publish
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import GRPOConfig, Home, PolicySpec, SFTConfig

HOLDER = {"Authorization": "Bearer token", "Content-Type": "application/json"}
BIG = 10**300


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[TestClient]:
    """A server with the policy `p`. Its trainer is not started: jobs stay queued."""
    home = Home(tmp_path_factory.mktemp("home"))
    app = create_app(ServerConfig(home, model=str(base_model), engine="tests.support.letters_engine:make"), "token")
    server = app.state.server
    server.store.register(PolicySpec(name="p"), server.identity.base.name, server.fingerprint)
    publish(server.store, "p", 0)
    server.names.newest["p"] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer_server.server.routes.policies._CREATION", 0.0)
        yield TestClient(app, base_url="http://127.0.0.1", headers=HOLDER, raise_server_exceptions=False)


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


scalars = (
    st.none() | st.booleans() | st.integers() | st.sampled_from([BIG, -BIG, 2**63]) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["p", "\ud83d", "\x00", "user", "assistant", "function"])
)  # fmt: skip
names = st.sampled_from(
    ["name", "rank", "fork_of", "policy", "version", "groups", "config", "trajectories", "conversations", "messages",
     "role", "content", "tools", "function", "id", "reward", "completions", "scenario_id", "score", "idempotency_key",
     *GRPOConfig.model_fields, *SFTConfig.model_fields]
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=3), inner, max_size=3),
) | st.sampled_from([deep(90), deep(200), deep(300)])
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
BODIES = {
    "/api/policies": st.fixed_dictionaries(
        {"name": values | st.just("p")}, optional={"fork_of": values, "alpha": values}
    ),
    "/api/policies/p/steps": st.fixed_dictionaries(
        {"groups": values | groups}, optional={"config": config, "idempotency_key": values}
    ),
    "/api/policies/p/sft": st.fixed_dictionaries(
        {"conversations": values | conversations}, optional={"trajectories": values | trajectories, "config": config}
    ),
    "/api/rollouts/r": st.fixed_dictionaries(
        {}, optional={"scenario": values, "version": values, "temperature": values, "metadata": values}
    ),
    "/api/rollouts/r/reward": st.fixed_dictionaries(
        {"reward": values}, optional={"metrics": values, "scenario": values, "reason": values}
    ),
    "/api/rollouts/release": values | st.lists(st.text()),
    "/api/policies/p/versions/0/score": st.fixed_dictionaries({"score": values}),
    "/v1/chat/completions": values,
}


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_body_is_answered(http: TestClient, path: str, data: st.DataObject) -> None:
    body = data.draw(values | BODIES[path])
    answer = http.request("PUT" if path.endswith(("score", "/r")) else "POST", path, content=json.dumps(body))
    if answer.status_code == 503:
        assert answer.json()["error"]["code"] == "busy"  # a policy that waits for the trainer
    else:
        assert answer.status_code < 500, (body, answer.text)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe", b"[" * 100_000, b'{"groups": ' + b"1" * 5_000 + b"}", b'{"a":' * 2_000]
)
@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_json_is_answered(http: TestClient, path: str, raw: bytes) -> None:
    answer = http.request("PUT" if path.endswith(("score", "/r")) else "POST", path, content=raw)
    assert answer.status_code in (400, 422), answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


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
