"""Who may ask: hosts by which the server is known, and holders of the token."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from trainer_server.common import Home
from trainer_server.server.access.auth import KnownHosts, ensure_token
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError


@pytest.fixture
def http(tmp_path: Path, base_model: Path) -> TestClient:
    config = ServerConfig(
        Home(tmp_path),
        model=str(base_model),
        engine="tests.support.engines.letters:make",
        host="10.1.2.3",
        allowed_hosts=("Trainer.example",),
    )
    return TestClient(create_app(config, "token"), headers={"Authorization": "Bearer token"})


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8400", "127.0.0.1:8400", "127.8.9.1", "[::1]:8400", "10.1.2.3:8400", "trainer.example:80"],
)
def test_the_servers_own_names_are_known(http: TestClient, host: str) -> None:
    assert http.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8400", "10.1.2.4", "localhost.evil.example", "", "[::1"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/"])
def test_another_host_is_refused_with_the_remedy(http: TestClient, path: str, host: str) -> None:
    """A page whose name was rebound to this machine is such a host."""
    answer = http.get(path, headers={"Host": host})
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("unknown_host", "Host")
    assert "--allowed-host" in answer.json()["error"]["message"]


@pytest.mark.parametrize("arrived", ["192.168.0.7", "::ffff:192.168.0.7"])
def test_the_address_at_which_a_connection_arrived_is_known(arrived: str) -> None:
    hosts = KnownHosts(app=None, hosts=("0.0.0.0",))  # type: ignore[arg-type]
    assert hosts._is_own("192.168.0.7:8400", (arrived, 8400))
    assert not hosts._is_own("192.168.0.8:8400", (arrived, 8400))


@pytest.mark.parametrize("content", [b"", b"\x80", "schlüssel".encode(), b"a\nb", b"a\0b"])
def test_a_damaged_token_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.delenv("ART_API_KEY", raising=False)
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError, match=r"token .*delete it, and a new token is made"):
        ensure_token(Home(tmp_path))
