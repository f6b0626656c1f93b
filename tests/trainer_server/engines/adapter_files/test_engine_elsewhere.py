"""An engine that shares no directory with the server: started by the printed line, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from testbed.engine_stand_in import install_stand_in
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer, trainer_server_over
from trainer_server.common import Home
from trainer_server.engines.vllm.command import free_port

pytestmark = pytest.mark.slow

KEY = "engine's key"


@dataclass(slots=True)
class Elsewhere:
    """The machine of the engine: its directory, and the shell line that starts it."""

    root: Path
    base: Path
    url: str
    process: subprocess.Popen[bytes] | None = None

    def start(self, server: str, key: str = KEY) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ART_CACHE", str(self.root / "cache"))
            patch.setenv("ART_HOME", str(self.root / "home"))
            install_stand_in(self.root / "cache")
            words = ["engine", "command", "--model", str(self.base), "--port", self.url.rpartition(":")[2]]
            printed = CliRunner().invoke(build(), [*words, "--adapters-from", server])
        assert printed.exit_code == 0, printed.output
        env = {"PATH": os.environ["PATH"], "ART_ENGINE_API_KEY": key}
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", printed.stdout], env=env, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
            self.process = None

    def state(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/state", headers={"Authorization": f"Bearer {KEY}"}).json())


@pytest.fixture
def elsewhere(tmp_path: Path, base_model: Path) -> Iterator[Elsewhere]:
    root = tmp_path / "elsewhere"
    root.mkdir()
    machine = Elsewhere(root, base_model, f"http://127.0.0.1:{free_port()}")
    yield machine
    machine.stop()


def says(server: TrainerServer, text: str) -> str:
    with server.http() as http:
        body = {"model": "agent", "messages": [{"role": "user", "content": text}]}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])


async def until(server: TrainerServer, ready: bool) -> dict[str, Any]:
    """The engine, once it is ready, or is not."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with server.http() as http:
                engine = dict(http.get("/api/engines").json()["engines"][0])
            if engine["ready"] == ready:
                return engine
            await asyncio.sleep(0.05)


async def test_an_engine_without_the_server_s_directory_serves_its_versions(
    elsewhere: Elsewhere, tmp_path: Path, base_model: Path
) -> None:
    port = free_port()
    elsewhere.start(f"http://127.0.0.1:{port}")
    home = tmp_path / "server"
    with trainer_server_over((elsewhere.url,), home, base_model, engine_api_key=KEY, port=port) as server:
        with server.http() as http:
            assert http.post("/api/policies", json={"name": "agent"}, timeout=PATIENCE).status_code == 201
        weights = says(server, "who")
        loaded = elsewhere.state()["loaded"]
        assert list(loaded) == ["agent@0"]
        assert Path(loaded["agent@0"]).is_relative_to(elsewhere.root / "cache" / "adapters")
        loads = elsewhere.state()["loads"]

        elsewhere.stop()
        await until(server, ready=False)
        elsewhere.start(f"http://127.0.0.1:{port}")
        assert (await until(server, ready=True))["adapters"] == ["agent@0"]
        assert says(server, "who") == weights

        server.app.state.server.engines[0].suspect()
        await until(server, ready=True)
        assert elsewhere.state()["loads"] == loads, "what it holds is known by its digest, and is not loaded again"
    audit = Home(home).audit.joinpath("audit.jsonl").read_text()
    assert '"who":"engine-key"' in audit.replace(" ", "")


async def test_an_engine_that_cannot_fetch_is_not_used_until_it_can_and_the_version_is_not_blamed(
    elsewhere: Elsewhere, tmp_path: Path, base_model: Path
) -> None:
    port, wrong = free_port(), free_port()
    elsewhere.start(f"http://127.0.0.1:{wrong}")
    home = tmp_path / "server"
    with trainer_server_over((elsewhere.url,), home, base_model, engine_api_key=KEY, port=port) as server:
        with server.http() as http:
            creating = asyncio.create_task(
                asyncio.to_thread(http.post, "/api/policies", json={"name": "agent"}, timeout=PATIENCE)
            )
            failure = ""
            async with asyncio.timeout(PATIENCE):
                while "could not be fetched" not in failure:
                    failure = str((await asyncio.to_thread(http.get, "/api/engines")).json()["engines"][0]["error"])
                    await asyncio.sleep(0.01)
            assert f"agent@0 could not be fetched from http://127.0.0.1:{wrong}" in failure
            assert "Is that its address as this machine sees it?" in failure
            elsewhere.stop()
            elsewhere.start(f"http://127.0.0.1:{port}")
            assert (await creating).status_code == 201
        assert says(server, "who")
        assert not list(home.glob("policies/agent/versions/*/quarantined.json"))
