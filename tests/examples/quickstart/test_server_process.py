"""The quickstart's trainer server: started, waited for and asked behind a proxy that refuses everything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from art_examples.quickstart.server_process import trainer_server

from art_langgraph import ChatART, TrainerClient
from testbed.engine_app import make_app
from tests.support.proxies.refusing_proxy import refusing_proxy, without_proxies
from tests.support.servers.serving import serving


@pytest.mark.slow
async def test_server_and_engine_are_asked_directly_behind_a_proxy(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_proxies(monkeypatch)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "corp")
    log = tmp_path / "server.log"
    with refusing_proxy() as proxy, serving(make_app(base=base_model.name)) as engine:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        arguments = ("--model", str(base_model), "--engine-url", engine, "--trainer-on-demand")
        with trainer_server(tmp_path / "home", log, lambda _line: None, *arguments) as server:
            async with TrainerClient(server.url, server.api_key) as trainer:
                await trainer.create_policy("agent")
            model = ChatART(policy="agent", base_url=server.url, api_key=server.api_key, max_tokens=20)
            assert (await model.ainvoke("say hello")).text == "hello"
        assert proxy.asked == []
    assert os.environ["NO_PROXY"] == "corp"
    assert "pass-word" not in log.read_text()
