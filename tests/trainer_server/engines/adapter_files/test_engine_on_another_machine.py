"""An engine on another machine, without a common directory: it fetches versions, also when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from testbed.engine_stand_in import install_stand_in
from testbed.link import Link
from testbed.server_process import KEY
from tests.support.patience import PATIENCE
from tests.support.servers.machines import line, server_at
from trainer_server.engines.vllm.command import free_port

pytestmark = pytest.mark.servers


class Machine:
    """The far machine: an engine with a cache of its own, started by the printed line.

    Args:
        link: To it.
        root: Its directory.
        base: The base model.
        server: The server's address, as it sees it.
    """

    def __init__(self, link: Link, root: Path, base: Path, server: str) -> None:
        self._link, self._root, self.port = link, root, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        root.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ART_CACHE", str(root / "cache"))
            patch.setenv("ART_HOME", str(root / "home"))
            install_stand_in(root / "cache")
            words = ["engine", "command", "--model", str(base), "--host", link.far_host, "--port", str(self.port)]
            printed = CliRunner().invoke(build(), [*words, "--adapters-from", server, "--max-rank", "256"])
        assert printed.exit_code == 0, printed.output
        self._line = printed.stdout

    def start(self) -> None:
        env = {"PATH": os.environ["PATH"], "ART_ENGINE_API_KEY": KEY}
        with (self._root / "log").open("ab") as log:
            line = [*self._link.far.prefix, "sh", "-c", self._line]
            self._process = subprocess.Popen(line, env=env, stdout=log, stderr=log, start_new_session=True)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE)
            self._process = None

    def weights(self, pattern: str) -> list[Path]:
        """Files with weights that were fetched, wholly or in part."""
        return list((self._root / "cache" / "adapters").glob(f"{pattern}/adapter_model.safetensors"))

    def interrupt(self, found: list[int]) -> None:
        """Cuts the line and kills the engine once a part of the weights has arrived, and mends and starts them again;
        `found` gets how many bytes had arrived."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if sizes := [size for path in self.weights("*.part") if (size := path.stat().st_size)]:
                self._link.set(cut=True)
                self.stop()
                found += [path.stat().st_size for path in self.weights("*.part")] or sizes
                self.start()
                self._link.set(cut=False)
                return
            time.sleep(0.001)


def test_a_version_is_fetched_in_spite_of_a_cut_in_the_middle(base_model: Path, tmp_path: Path) -> None:
    home, port, found = tmp_path / "home", free_port(), list[int]()
    with line() as link:
        machine = Machine(link, tmp_path / "far", base_model, f"http://{link.near_host}:{port}")
        options = ("--engine-url", f"http://{link.far_host}:{machine.port}", "--max-rank", "256")
        machine.start()
        try:
            with server_at(
                link.near, link.near_host, home, base_model, seen_from=link.near, port=port, options=options
            ) as server:

                def use() -> dict[str, Any]:
                    with httpx.Client(base_url=server.url, headers=server.headers, timeout=PATIENCE) as http:
                        made = http.post("/api/policies", json={"name": "agent", "rank": 256})
                        assert made.status_code == 201, made.text
                        body = {"model": "agent", "messages": [{"role": "user", "content": "who"}]}
                        answer = http.post("/v1/chat/completions", json=body)
                        assert answer.status_code == 200, answer.text
                        return dict(http.get("/api/engines").json()["engines"][0])

                watch = threading.Thread(target=machine.interrupt, args=(found,))
                watch.start()
                engine = link.near.run(use)
                watch.join(PATIENCE)
        finally:
            machine.stop()
    assert engine["adapters"] == ["agent@0"]
    (fetched,) = machine.weights("*")
    source = home / "policies" / "agent" / "versions" / "0" / "adapter_model.safetensors"
    assert fetched.read_bytes() == source.read_bytes()
    assert 0 < found[0] < source.stat().st_size
    lines = [json.loads(text) for text in (home / "audit" / "audit.jsonl").read_text().splitlines()]
    statuses = [entry["status"] for entry in lines if entry["action"] == "version.fetch"]
    assert 206 in statuses, "what was missing was asked for, and not the whole"
    assert not list(home.glob("policies/agent/versions/*/quarantined.json"))
