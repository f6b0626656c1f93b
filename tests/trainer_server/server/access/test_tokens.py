"""Named tokens: kept as hashes, in force at once, refused at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.support.clock import Clock
from trainer_server.common import Home
from trainer_server.server.access.tokens import Keyring, Scope, TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def http(home: Home, base_model: Path) -> TestClient:
    config = ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make")
    return TestClient(create_app(config, "key"), base_url="http://127.0.0.1", follow_redirects=False)


def status(http: TestClient, token: str) -> int:
    return http.get("/api/policies", headers={"Authorization": f"Bearer {token}"}).status_code


def test_a_token_counts_from_its_creation_until_it_is_revoked_while_the_server_runs(
    http: TestClient, home: Home
) -> None:
    book = TokenRepository(home)
    secret = book.create("alice", Scope.rollout)
    other = book.create("bob", Scope.rollout)
    assert (status(http, secret), status(http, other), status(http, "key")) == (200, 200, 200)
    book.revoke("alice")
    assert (status(http, secret), status(http, other), status(http, "key")) == (401, 200, 200)
    answer = http.get("/v1/models", headers={"x-api-key": secret})
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert "was revoked" in answer.json()["error"]["message"]


def test_no_token_is_in_the_home_and_only_its_owner_reads_their_hashes(home: Home) -> None:
    secret = TokenRepository(home).create("alice", Scope.admin, seconds=60, requests_in_flight=2, tokens_per_minute=100)
    assert len(secret) >= 4 + 43, "256 bits in base 64"
    for path in home.root.rglob("*"):
        assert secret.removeprefix("art-") not in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (kept,) = TokenRepository(home).all()
    assert (kept.requests_in_flight, kept.tokens_per_minute, kept.expires) == (2, 100, kept.created + 60)


def test_an_expired_token_is_refused_with_the_day(home: Home, http: TestClient) -> None:
    secret = TokenRepository(home).create("alice", Scope.rollout, seconds=0)
    answer = http.get("/api/policies", headers={"Authorization": f"Bearer {secret}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_expired")
    assert "'alice' expired on 20" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["", "server-key", "-x", "a b", "a/b", "x" * 65, "ä"])
def test_names_that_would_confuse_are_refused(home: Home, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a token"):
        TokenRepository(home).create(name, Scope.rollout)


def test_a_name_has_one_token_and_may_be_used_again_after_it(home: Home) -> None:
    book = TokenRepository(home)
    first = book.create("alice", Scope.rollout)
    with pytest.raises(ConfigError, match="revoke it first"):
        book.create("alice", Scope.admin)
    book.revoke("alice")
    assert book.create("alice", Scope.admin) != first
    with pytest.raises(ConfigError, match="no token 'carol'; there are: alice"):
        book.revoke("carol")


def test_a_damaged_file_opens_nothing_and_the_servers_key_still_works(home: Home, http: TestClient) -> None:
    secret = TokenRepository(home).create("alice", Scope.admin)
    home.tokens.write_text("[{]")
    answer = http.get("/api/policies", headers={"Authorization": f"Bearer {secret}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "tokens_unreadable")
    assert status(http, "key") == 200
    assert http.get("/health", headers={"Authorization": f"Bearer {secret}"}).status_code in (200, 503)
    with pytest.raises(ConfigError, match="Repair it, or delete it"):
        TokenRepository(home).all()


def test_the_last_use_is_written_down_and_forgotten_with_the_token(home: Home) -> None:
    clock = Clock()
    book = TokenRepository(home, clock.monotonic)
    first, second = book.create("alice", Scope.rollout), book.create("bob", Scope.rollout)
    keys = Keyring("key", book, clock.monotonic)
    for secret in (first, second, "key", "wrong"):
        keys.find(secret)
    clock.sleep(50)
    keys.find(second)
    keys.write_uses()
    by_name = {token.name: TokenRepository(home).last_used().get(token.digest) for token in book.all()}
    assert by_name == {"alice": 1000.0, "bob": 1050.0}
    book.revoke("alice")
    keys.find(second)
    keys.write_uses()
    assert len(book.last_used()) == 1


def test_the_key_of_engines_fetches_and_is_no_name_for_others(home: Home) -> None:
    keys = Keyring("key", TokenRepository(home), engine_key="engines")
    found = keys.find("engines")
    assert found is not None
    assert (found.name, found.scope) == ("engine-key", Scope.engine)
    assert keys.find_by_name("engine-key") == found
    assert Keyring("key", TokenRepository(home)).find("engines") is None
    same = Keyring("key", engine_key="key").find("key")
    assert same is not None
    assert same.scope == Scope.admin, "the server's own key stays what it is, where both are the same"
    with pytest.raises(ConfigError, match="'engine-key', which are the server's own key and that of its engines"):
        TokenRepository(home).create("engine-key", Scope.engine)


def test_the_scope_of_engines_is_apart_from_that_of_rollouts() -> None:
    assert [scope for scope in Scope if scope.covers(Scope.engine)] == [Scope.engine, Scope.train, Scope.admin]
    assert [scope for scope in Scope if scope.covers(Scope.rollout)] == [Scope.rollout, Scope.train, Scope.admin]
    assert [scope for scope in Scope if scope.covers(Scope.train)] == [Scope.train, Scope.admin]
    assert [scope for scope in Scope if scope.covers(Scope.admin)] == [Scope.admin]


def test_a_login_ends_with_its_token(home: Home, http: TestClient) -> None:
    book = TokenRepository(home)
    secret = book.create("alice", Scope.train)
    answer = http.post("/ui/login", content=f"token={secret}&next=/ui/runs")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/runs")
    assert http.get("/ui/runs").status_code == 200
    page = {"Sec-Fetch-Site": "same-origin"}
    assert http.put("/api/policies/x/promotion", json={}, headers=page).status_code == 403, "the token's scope counts"
    book.revoke("alice")
    book.create("alice", Scope.train)
    answer = http.get("/ui/runs")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/login?next=/ui/runs")


def test_a_file_that_others_could_read_is_made_private_by_the_next_change(home: Home) -> None:
    TokenRepository(home).create("alice", Scope.rollout)
    os.chmod(home.tokens, 0o644)
    TokenRepository(home).create("bob", Scope.rollout)
    assert stat.S_IMODE(home.tokens.stat().st_mode) == 0o600
