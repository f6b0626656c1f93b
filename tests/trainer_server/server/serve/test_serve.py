"""`serve`: what is missing is said before anything is downloaded."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.homes.model_directories import installed_vllm
from tests.support.patience import PATIENCE
from trainer_server.common import Home
from trainer_server.common.plugins import check_loss_place
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.postgres import TrainerLock
from trainer_server.server.config import ServerConfig
from trainer_server.server.serve import _check_writable, _sole_trainer, serve, uvicorn_config
from trainer_server.wire import ConfigError, EngineError

URL = "http://10.0.0.1:8400"
GATEWAY = {"gateway_of": URL, "ledger": "postgresql://art@127.0.0.1:1/art"}


def test_a_missing_engine_is_said_before_the_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    with pytest.raises(EngineError, match="art-langgraph engine install"):
        serve(ServerConfig(Home(tmp_path / "home"), model="embedded", port=0))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "sglang"}, "--engine sglang: there is vllm"),
        ({"ledger": "duckdb"}, "--ledger duckdb: there is sqlite"),
        ({"ledger": "postgres"}, "--ledger postgres: name the database by its address"),
        ({"gateway_of": "10.0.0.1:8400"}, "--gateway-of 10.0.0.1:8400: give the URL"),
        ({"gateway_of": URL}, f"--gateway-of {URL}: servers do not share --ledger sqlite: give both .* ART_LEDGER"),
        (GATEWAY | {"engine_urls": ()}, f"--gateway-of {URL}: start the engines yourself, and .* same --engine-url"),
        (GATEWAY | {"share_gpu": True}, f"--gateway-of {URL} with --share-gpu: .* Leave --share-gpu out"),
        (GATEWAY, f"--gateway-of {URL}: no server has trained with the home .*/home yet. Start that server first"),
        ({"losses": ("mine",)}, "--loss mine: give NAME=MODULE:ATTRIBUTE"),
        ({"losses": ("mine=no_such_module:LOSS",)}, "there is no module 'no_such_module'. Is it on PYTHONPATH"),
        ({"losses": ("mine=tests.no_such_module:LOSS",)}, "there is no module 'tests.no_such_module'"),
        ({"losses": ("dapo=tests.support.losses:REINFORCE",)}, "there is a loss named 'dapo' already"),
        ({"losses": ("a=tests.support.losses:REINFORCE",) * 2}, "there is a loss named 'a' already"),
    ],
)
def test_a_wrong_name_is_said_before_the_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    settings = {"engine_urls": ("http://127.0.0.1:1",), **settings}
    config = ServerConfig(Home(tmp_path / "home"), port=0, **settings)
    with pytest.raises(ConfigError, match=words):
        serve(config)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_parser_is_said_before_the_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    installed_vllm(tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"--tool-call-parser herms: .* Did you mean hermes"):
        serve(ServerConfig(Home(tmp_path / "home"), model="embedded", port=0, tool_call_parser="herms"))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_second_server_that_trains_on_a_database_is_refused(tmp_path: Path, postgres_url: str) -> None:
    first, config = TrainerLock(postgres_url, "/first"), ServerConfig(Home(tmp_path), ledger=postgres_url)
    assert first.acquire()
    refused = pytest.raises(ConfigError, match=r"used by another server .*home /first.* --gateway-of URL")
    with refused, _sole_trainer(config):
        pass
    first.release()
    with _sole_trainer(config), pytest.raises(ConfigError, match=f"home {tmp_path}"), _sole_trainer(config):
        pass


def test_a_server_that_loses_the_database_ends_with_an_error(tmp_path: Path, postgres_url: str) -> None:
    config, second = ServerConfig(Home(tmp_path), ledger=postgres_url), TrainerLock(postgres_url, "/second")

    def train() -> None:
        with _sole_trainer(config):
            with psycopg.connect(postgres_url, autocommit=True) as db:
                while not second.acquire():
                    db.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
            time.sleep(PATIENCE)

    with pytest.raises(LedgerError, match=r"another server trains since .* home /second"):
        train()
    second.release()


def test_the_module_of_a_loss_lies_in_the_working_directory_or_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "losses.py").write_text("raise AssertionError('imported')")
    with pytest.raises(ConfigError, match=r"no module 'mine\.losses'"):
        check_loss_place("a=mine.losses:A")
    monkeypatch.chdir(tmp_path)
    check_loss_place("a=mine.losses:A")
    check_loss_place("a=tests.support.losses:REINFORCE")


def test_a_home_that_can_only_be_read_is_said() -> None:
    with pytest.raises(ConfigError, match=r"/proc/self/fdinfo cannot be written .*--home or ART_HOME"):
        _check_writable(Home(Path("/proc/self/fdinfo")))


@pytest.mark.parametrize(("proxies", "seen"), [(None, "127.0.0.1 http"), ("127.0.0.1", "10.9.8.7 https"),
                                               ("10.0.0.1", "127.0.0.1 http")])  # fmt: skip
async def test_an_address_is_that_of_the_connection_unless_a_proxy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxies: str | None, seen: str
) -> None:
    """Otherwise any program of this machine could write any address into the audit log."""
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if proxies:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        text = f"{scope['client'][0]} {scope['scheme']}"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})

    settings = uvicorn_config(app, ServerConfig(Home(tmp_path), model="m"))
    settings.load()
    forwarded = {"X-Forwarded-For": "10.9.8.7", "X-Forwarded-Proto": "https"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(settings.loaded_app)) as http:
        assert (await http.get("http://art", headers=forwarded)).text == seen


def test_gateways_share_a_port_with_no_other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = ServerConfig(
            Home(tmp_path / "home"), engine_urls=("http://127.0.0.1:1",), port=port, gateways=2, model="testbed:none"
        )
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .* choose another --port"):
            serve(config)
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(ConfigError, match=r"--gateways 2: this system has no SO_REUSEPORT.* Serve with --gateways 1"):
        serve(config)
