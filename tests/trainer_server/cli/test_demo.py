"""`art-langgraph demo`: serves its pages at once, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.patience import PATIENCE
from trainer_server.engines.vllm.command import free_port

CODE = "from art_langgraph.cli.main import main; main()"


@pytest.mark.slow
def test_the_demo_serves_its_pages_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "torch.py").write_text("raise ImportError('the demo needs no torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    words = ["demo", "--port", str(free_port()), "--json"]
    with subprocess.Popen([sys.executable, "-c", CODE, *words], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            facts = json.loads(program.stdout.readline())
            assert Path(facts["home"]).is_relative_to(tmp_path)
            with httpx.Client(base_url=facts["url"], timeout=60) as http:
                deadline = time.monotonic() + PATIENCE
                while True:
                    try:
                        assert http.post("/ui/login", data={"token": facts["token"]}).status_code == 303
                        break
                    except httpx.ConnectError:
                        assert time.monotonic() < deadline
                        time.sleep(0.1)
                assert f"{facts['policy']}@10" in http.get(f"/ui/policies/{facts['policy']}").text
        finally:
            program.send_signal(signal.SIGINT)
            program.wait(PATIENCE)
    assert not list(tmp_path.glob("art-demo-*"))
