"""What requests leave in the audit log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.homes.versions import publish
from tests.support.patience import PATIENCE
from trainer_server.common import Home
from trainer_server.server.access import request_log
from trainer_server.server.access.audit import AuditLog
from trainer_server.server.access.request_log import RequestLog
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import PolicySpec

MARK = "zebra-in-a-body"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def http(home: Home, base_model: Path) -> Iterator[TestClient]:
    """A server with the policy `p`. Its trainer is not started: jobs stay queued."""
    config = ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "key")
    server = app.state.server
    server.store.register(PolicySpec(name="p"), server.identity.base.name, server.fingerprint)
    publish(server.store, "p", 0)
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)


def written(home: Home) -> list[tuple[str, str, str, str, int | None]]:
    return [(one.who, one.action, one.target, one.result, one.status) for one in AuditLog(home).entries()]


def test_a_request_is_in_the_log_before_it_is_answered_with_name_target_and_result(
    home: Home, http: TestClient
) -> None:
    book = TokenRepository(home)
    trainer = {"Authorization": f"Bearer {book.create('tina', Scope.train)}"}
    trajectories = [{"id": f"{MARK}-{at}", "reward": at, "completions": [MARK]} for at in (0.0, 1.0)]
    step = {"groups": [{"scenario_id": MARK, "trajectories": trajectories}]}
    job = http.post("/api/policies/p/steps", json=step, headers=trainer).json()["id"]
    assert written(home)[-1] == ("tina", "step", f"p, {job}", "ok", 202)
    http.post(f"/api/jobs/{job}/cancel", headers={"x-api-key": "key"})
    assert written(home)[-1] == ("server-key", "job.cancel", job, "ok", 200)
    http.put("/api/policies/p/promotion", json={"version": 7}, headers=trainer)
    assert written(home)[-1][:2] == ("tina", "policy.promote")
    assert written(home)[-1][3:] == ("refused", 403)
    http.put("/api/policies/p/promotion", json={"version": 7}, headers={"x-api-key": "key"})
    assert written(home)[-1] == ("server-key", "policy.promote", "p@7 (before: p@latest)", "refused", 404)
    http.delete("/api/policies/p/versions/7", headers={"x-api-key": "key"})
    assert written(home)[-1] == ("server-key", "version.delete", "p@7", "refused", 404)
    http.post("/api/policies", json={"name": "q", "rank": 999, MARK: MARK}, headers=trainer)
    assert written(home)[-1][1:2] == ("policy.create",)
    count = len(written(home))
    http.get("/api/policies", headers=trainer)
    http.get("/api/jobs", headers=trainer)
    assert len(written(home)) == count, "what only reads is not in the log"
    assert not any(MARK in path.read_text() for path in home.audit.iterdir())
    assert not any(trainer["Authorization"][7:] in path.read_text() for path in home.audit.iterdir())


def test_logins_and_requests_without_a_token_are_in_the_log(home: Home, http: TestClient) -> None:
    assert http.post("/ui/login", content="token=wrong").status_code == 401
    assert http.post("/ui/login", content="token=key").status_code == 303
    logins = [entry for entry in written(home) if entry[1] == "login"]
    assert logins == [("-", "login", "", "refused", 401), ("server-key", "login", "", "ok", 303)]
    http.cookies.clear()
    for _ in range(20):
        assert http.get("/v1/models", headers={"x-api-key": "wrong"}).status_code == 401
    refused = [entry for entry in written(home) if entry[1] == "access"]
    assert refused == [("-", "access", "a request without a token that counts", "refused", 401)], "one a minute"


async def test_refused_requests_of_a_minute_have_a_few_lines_and_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line is written to the disk, and a flood of them would end with the deletion of older lines."""
    home, now = Home(tmp_path), [1000.0]
    monkeypatch.setattr(request_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    log, book = RequestLog(AuditLog(home)), TokenRepository(home)
    book.create("tina", Scope.train)
    (tina,) = book.all()
    for number in range(500):
        await log.add({"client": (f"10.0.0.{number % 3}", 1)}, None, "login", "", 401)
        await log.add({}, tina, "policy.promote", f"p@{number}", 403)
        await log.add({}, tina, "policy.delete", f"p@{number}", None)
    await log.add({}, tina, "step", "p", 202)
    assert Counter(entry[1] for entry in written(home)) == {
        "login": 1, "policy.promote": 10, "policy.delete": 10, "step": 1
    }  # fmt: skip
    now[0] += 61
    await log.add({"client": ("10.0.0.9", 1)}, None, "login", "", 401)
    logins = [entry for entry in AuditLog(home).entries() if entry.action == "login"]
    assert [(one.target, one.address) for one in logins] == [
        ("", "10.0.0.0"),
        ("499 more in the same minute, from 3 addresses", "10.0.0.1"),
        ("", "10.0.0.9"),
    ]
    await log.close()
    assert [entry[2:] for entry in written(home) if entry[0] == "tina"][-2:] == [
        ("490 more in the same minute, from the same address", "refused", 403),
        ("490 more in the same minute, from the same address", "failed", None),
    ]


@pytest.mark.parametrize(("action", "status"), [("login", 303), ("version.fetch", 200)])
async def test_repeated_logins_and_fetches_of_a_token_do_not_fill_the_log(
    tmp_path: Path, action: str, status: int
) -> None:
    home = Home(tmp_path)
    log, book = RequestLog(AuditLog(home)), TokenRepository(home)
    book.create("tina", Scope.rollout)
    (tina,) = book.all()
    for _ in range(60):
        await log.add({}, tina, action, "", status)
    await log.add({}, tina, action, "", 403)
    await log.close()
    lines = [(target, result) for _, _, target, result, _ in written(home)]
    assert lines == [("", "ok")] * 10 + [
        ("", "refused"), ("50 more in the same minute, from the same address", "ok")
    ]  # fmt: skip


async def test_the_number_of_refused_requests_is_written_when_no_other_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_WINDOW", 0.05)
    home = Home(tmp_path)
    log = RequestLog(AuditLog(home))
    for _ in range(3):
        await log.add({}, None, "login", "", 401)
    async with asyncio.timeout(PATIENCE):
        while len(written(home)) < 2:
            await asyncio.sleep(0.01)
    assert written(home)[1][2] == "2 more in the same minute, from the same address"
    assert not log._kinds


def test_wrong_logins_keep_nobody_out_and_do_not_fill_the_log(home: Home, http: TestClient) -> None:
    before = len(written(home))
    statuses = [http.post("/ui/login", content="token=wrong").status_code for _ in range(100)]
    assert statuses[-1] == 429
    assert http.post("/ui/login", content="token=key").status_code == 303
    http.cookies.clear()
    assert len(written(home)) <= before + 2


@pytest.mark.parametrize("origin", ["http://[", "http://a]b", "http://℀.example"])
def test_what_is_no_address_is_no_page_of_this_server(http: TestClient, origin: str) -> None:
    headers = {"Origin": origin.encode()}
    assert http.post("/ui/login", content="token=key", headers=headers).status_code == 403
    assert http.get("/ui/login", params={"next": origin}).status_code == 200
    answer = http.post("/ui/login", content="token=key&next=//[")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    for path in ("/api/policies", "/ui/logout"):
        assert http.post(path, headers=headers).status_code in (401, 403)
    http.cookies.clear()


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
                {"Origin": "null"}]
)  # fmt: skip
def test_a_form_of_another_page_is_no_login(http: TestClient, headers: dict[str, str]) -> None:
    for token in ("wrong", "key"):
        answer = http.post("/ui/login", content=f"token={token}", headers=headers)
        assert (answer.status_code, "art_session" in str(answer.headers)) == (403, False)
        assert "page of another server" in answer.text
    for own in ({"Origin": "http://127.0.0.1"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert http.post("/ui/login", content="token=key", headers=own).status_code == 303
    http.cookies.clear()


def test_an_answer_does_not_wait_for_a_log_that_cannot_be_written(
    home: Home, http: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_words: Any, **_more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AuditLog, "add", full)
    answer = http.delete("/api/policies/p/versions/7", headers={"x-api-key": "key"})
    assert answer.status_code == 404
    assert "the audit log could not be written" in caplog.text
    assert "version.delete p@7 by server-key: refused" in caplog.text


def test_the_owner_of_a_token_is_in_the_log_and_in_what_is_said_of_the_token(home: Home, http: TestClient) -> None:
    secret = TokenRepository(home).create("laptop", Scope.admin, owner="ann")
    headers = {"Authorization": f"Bearer {secret}"}
    http.delete("/api/policies/p/versions/7", headers=headers)
    *_, last = AuditLog(home).entries()
    assert (last.who, last.owner, last.action) == ("laptop", "ann", "version.delete")
    http.post("/ui/login", content=f"token={secret}")
    *_, login = AuditLog(home).entries()
    assert (login.who, login.owner, login.action) == ("laptop", "ann", "login")
    told = http.get("/api/token", headers=headers).json()
    assert (told["name"], told["owner"], told["scope"]) == ("laptop", "ann", "admin")
