"""What the server accepts, it can show: every page, list and export that has it answers, and other runs are there."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.support.fuzzing import thorough
from tests.support.homes.ledger_rows import row
from tests.support.homes.versions import publish
from tests.support.servers.postgres import DATABASES
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import PolicySpec

EXTREME = st.sampled_from(
    [math.inf, -math.inf, math.nan, 1.8e308, -1e308, 1e308, 5e-324, 1e15, -1e15, 1e-12, -0.0, 2**70, -(2**70), 2**63,
     2**31, 10**400, 0, -1, True, None, "", "\ud83d", "\x00", "a\x00\x1b[2J\u202e", "<script>alert(1)</script>",
     "'\"&--", "x" * 100_000, "\ud83d" * 3_000, "/../?#%", "NaN", "9" * 5_000, [], {}, [[]], [{}], {"": None},
     [None, 5], {"function": 5}, {"tool_calls": 5}, {"tool_calls": [5]}, {"content": {"a": [math.nan]}}]
)  # fmt: skip
PLACE = {
    "node": "n", "agent": "a", "path": ["n"], "namespace": "n:1", "step": 1, "branch": 0, "attempt": "at",
    "parent": None, "started": 1.7e9, "seconds": 1.0,
}  # fmt: skip
MESSAGE = {
    "role": "assistant",
    "content": "hi",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
TRACE = {
    "id": "tr", "scenario": {"id": "s", "input": {"messages": [{"role": "user", "content": "x"}]}, "metadata": {}},
    "nodes": [{**PLACE, "error": "e", "interrupted": False}],
    "completions": [
        {**PLACE, "id": None, "model": "other", "version": None, "message": MESSAGE, "messages": [MESSAGE]},
        {**PLACE, "id": "c-1", "model": "p@0", "version": 0, "message": MESSAGE, "error": "e", "superseded": "retry",
         "cached": True, "reward": 1.0},
    ],
    "tool_calls": [
        {**PLACE, "tool": "f", "arguments": {"a": 1}, "result": "r", "structured": {"a": 1}, "content": [{"type": "x"}],
         "is_error": False, "failure": "f", "tool_call_id": "c", "server": "s", "server_version": "1"}
    ],
    "output": {"a": 1}, "error": "e", "reward": 1.0, "reward_error": "e", "reward_reason": "r", "reward_source": "s",
    "judgement": "j", "node_rewards": {"n": 1.0}, "metrics": {"m": 1.0}, "evaluation": False, "hints": {"p": "h"},
    "graph_id": "g", "thread_id": "t",
    "metadata": {"world": {"changes": [{"where": "a", "before": "b", "after": "c"}]}},
    "started": 1.7e9, "seconds": 1.0, "left_out": ["texts"],
}  # fmt: skip
SPEC = {
    "scenario": TRACE["scenario"], "version": {"p": 0}, "temperature": 0.5, "hints": {"p": "h"}, "evaluation": True,
    "metadata": {"a": 1},
}  # fmt: skip
REWARD = {
    "reward": 1.0, "metrics": {"m": 1.0}, "reason": "r", "source": "s", "scenario": {"id": "s", "input": "x"},
}  # fmt: skip
STEP = {
    "groups": [
        {"scenario_id": "s", "baseline": 0.5,
         "trajectories": [{"id": "RUN", "reward": 1.0, "completions": ["c-1"], "run": "RUN", "hint": "h"}]}
    ],
    "config": {"lr": 1e-3, "max_staleness": 3}, "idempotency_key": None, "time_limit": 5.0, "from_version": 0,
}  # fmt: skip
SFT = {
    "conversations": [{"messages": [{"role": "user", "content": "x"}, MESSAGE], "tools": None}],
    "trajectories": [{"id": "RUN", "reward": 1.0, "completions": ["c-1"]}],
    "config": {"lr": 1e-3, "max_seconds": 5.0, "min_reward": 0.5}, "idempotency_key": None, "time_limit": 5.0,
}  # fmt: skip
POLICY = {"name": "p", "alpha": 16.0, "seed": 0, "temperature": 0.5, "fork_of": None}
COMPLETION = row("c-import").model_copy(
    update={"policy": "p", "version": 0, "rollout": "RUN", "request": {"messages": [{"role": "user", "content": "x"}]},
            "message": MESSAGE, "hint": "h", "model": "p", "finish_reason": "stop"}
).model_dump(mode="json")  # fmt: skip
SENT: dict[str, Any] = {
    "PUT /api/rollouts/RUN/trace": TRACE,
    "POST /api/rollouts/traces": {"traces": {"RUN": TRACE}},
    "PUT /api/rollouts/RUN": SPEC,
    "POST /api/rollouts/RUN/reward": REWARD,
    "PUT /api/rollouts/RUN/records/c/r": {"trajectory": TRACE},
    "POST /api/policies/p/steps": STEP,
    "POST /api/policies/p/sft": SFT,
    "POST /api/policies": POLICY,
    "PUT /api/policies/p/versions/0/score": {"score": 0.5},
    "POST /api/completions": {"completions": [COMPLETION]},
}
"""A good body of each route that takes what pages show."""


@pytest.fixture(scope="module", params=DATABASES)
def http(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> TestClient:
    """A server with the policy `p` and the run `plain`. Its trainer is not started: jobs stay queued."""
    home = Home(tmp_path_factory.mktemp("home"))
    ledger = "sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres").new_database()
    config = ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make", ledger=ledger)
    app = create_app(config, "key")
    server = app.state.server
    server.store.register(PolicySpec(name="p"), server.identity.base.name, server.fingerprint)
    publish(server.store, "p", 0)
    server.names.newest["p"] = 0
    identity = server.identity
    COMPLETION.update(base_model=identity.base.name, tokenizer=identity.tokenizer)
    plain = row("plain-c").model_copy(update={"policy": "p", "version": 0, "rollout": "plain"})
    asyncio.run(server.ledger.add(plain))
    client = TestClient(app, base_url="http://127.0.0.1", headers={"x-api-key": "key"}, raise_server_exceptions=False)
    assert client.put("/api/rollouts/plain/trace", json={**TRACE, "id": "tr-plain"}).status_code == 204
    return client


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something may be put in the place of a part of a body."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*at, key))


def put(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    """A body with a part in another one's place."""
    if not path:
        return part
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], part)
    return copy


def listed(http: TestClient) -> set[str]:
    """The runs on all pages of the list."""
    found: set[str] = set()
    link = "/ui/runs"
    for _ in range(50):
        answer = http.get(link)
        assert answer.status_code == 200, answer.text
        found |= set(re.findall(r'href="/ui/runs/([^"/?]+)"', answer.text))
        more = re.search(r'"(/ui/runs(?:/rows)?\?[^"]*before=[^"]*)"', answer.text)
        if more is None:
            return found
        link = unescape(more[1])
    raise AssertionError("the list has no end")


def assert_shown(http: TestClient, run: str, started: float) -> None:
    pages = [
        f"/api/rollouts/{run}", f"/api/rollouts/{run}/trace", f"/api/rollouts/{run}/records/c", "/api/rollouts",
        f"/ui/runs/{run}", f"/ui/diff?a={run}&b=plain", "/ui/runs?q=x", "/ui/runs?policy=p&min_reward=0", "/",
        "/ui/now", "/ui/jobs", "/ui/policies/p", "/ui/groups?scenario=s&policy=p", "/ui/scenarios?id=s",
        "/api/policies/p/curves", "/api/policies/p/curves?scenario=s", "/api/policies", "/api/policies/p/versions",
        "/api/jobs", "/api/status", "/metrics", "/api/completions/c-import", "/ui/completions/c-import",
    ]  # fmt: skip
    jobs = [one["id"] for one in http.get("/api/jobs").json()["jobs"] if one["created"] >= started]
    pages += [f"{prefix}/{one}" for one in jobs for prefix in ("/ui/jobs", "/api/jobs")]
    for page in pages:
        answer = http.get(page)
        assert answer.status_code in (200, 404), (page, answer.status_code, answer.text[:2000])
        if answer.status_code == 404:
            assert "no " in answer.text, page
        elif answer.headers["content-type"].startswith("application/json"):
            answer.json()
    assert "plain" in listed(http)


def send(http: TestClient, route: str, change: Callable[[Any], Any]) -> None:
    """Sends a changed body. It is refused, or all that shows it answers."""
    run, started = f"ro-{uuid.uuid4().hex[:12]}", time.time()
    good = json.loads(json.dumps(SENT[route]).replace("RUN", run))
    method, path = route.replace("RUN", run).split()
    body = change(good)
    answer = http.request(method, path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code < 500, (body, answer.text)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["param"] or error["code"], answer.text
    else:
        assert_shown(http, run, started)


@pytest.mark.slow
@pytest.mark.parametrize("route", SENT)
@thorough(5)
@given(data=st.data())
def test_what_is_accepted_can_be_shown(http: TestClient, route: str, data: st.DataObject) -> None:
    # A policy of a new name waits for the trainer, which is not started here.
    places = [place for place in paths(SENT[route]) if (route, place) != ("POST /api/policies", ("name",))]
    changes = data.draw(st.lists(st.tuples(st.sampled_from(places), EXTREME), min_size=1, max_size=2))

    def change(body: Any) -> Any:
        for place, part in changes:
            try:
                body = put(body, place, part)
            except (LookupError, TypeError, AttributeError, ValueError):  # an earlier change took the place away
                continue
        return body

    send(http, route, change)


CASES: list[tuple[str, tuple[Any, ...], Any]] = [
    ("nodes.0.seconds", ("nodes", 0, "seconds"), math.inf),
    ("seconds", ("seconds",), math.nan),
    ("seconds", ("seconds",), math.inf),
    ("started", ("started",), 1e15),
    ("started", ("started",), math.inf),
    ("started", ("started",), -1.0),
    ("nodes.0.started", ("nodes", 0, "started"), 1e15),
    ("completions.1.version", ("completions", 1, "version"), 2**70),
    ("completions.1.version", ("completions", 1, "version"), 2**40),
    ("tool_calls.0.step", ("tool_calls", 0, "step"), 2**70),
    ("completions.0.message", ("completions", 0, "message"), {"tool_calls": 5}),
    ("id", ("id",), "x" * 5_000),
    ("reward", ("reward",), 1e308),
]


@pytest.mark.parametrize(("field", "place", "value"), CASES, ids=lambda value: ascii(value)[:20])
def test_a_trace_that_could_not_be_read_is_refused_by_the_name_of_its_field(
    http: TestClient, field: str, place: tuple[Any, ...], value: Any
) -> None:
    """Alone, and among others, which are taken."""
    body = put(TRACE, place, value)
    answer = http.put("/api/rollouts/refused/trace", content=json.dumps(body))
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, field), answer.text
    many = {"traces": {"refused": body, "taken": {**TRACE, "id": "tr-taken"}}}
    taken = http.post("/api/rollouts/traces", content=json.dumps(many)).json()
    assert (taken["taken"], list(taken["refused"])) == (1, ["refused"])
    assert taken["refused"]["refused"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [("reward", math.nan), ("reward", math.inf), ("metrics", {"m": math.nan}), ("node_rewards", {"n": math.inf}),
     ("output", {"a": math.inf}), ("started", 0.0), ("started", 1e-12), ("seconds", -3.0), ("error", "\ud83d\x00")],
)  # fmt: skip
def test_what_runs_may_have_is_taken_and_shown(http: TestClient, field: str, value: Any) -> None:
    send(http, "PUT /api/rollouts/RUN/trace", lambda body: {**body, field: value})


def test_runs_of_earlier_releases_with_impossible_times_hide_no_others(http: TestClient) -> None:
    """Such rows are in the books: pages go on behind them, also where a hundred stand before all others."""
    books = http.app.state.server.books  # type: ignore[attr-defined]
    ids = [f"odd-{number}" for number in range(120)]
    with books.writing() as db:
        for number, one in enumerate(ids):
            moment = (1e15, math.inf, 1e-12)[number % 3]
            db.execute("INSERT INTO runs (id, started, changed) VALUES (?, ?, ?)", (one, moment, 1.0))
    assert listed(http) >= {*ids, "plain"}
    with books.writing() as db:
        db.execute("DELETE FROM runs WHERE id LIKE 'odd-%'")
