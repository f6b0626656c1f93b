"""What the ledger has of programs outlives kill -9 of the server, and reaches into child processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from art_langgraph import Run, TrainerClient, rollout, session
from tests.support.patience import PATIENCE
from tests.support.servers.processes import processes
from tests.support.servers.trainer_server import TrainerServer

pytestmark = pytest.mark.slow


async def test_kill_nine_loses_nothing(base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with processes(tmp_path / "home", base_model) as running:
        running.start()
        url, key = f"http://127.0.0.1:{running._port}", running.home.token.read_text().strip()
        monkeypatch.setenv("ART_BASE_URL", url)
        monkeypatch.setenv("ART_API_KEY", key)
        starting: list[asyncio.Task[None]] = []

        async def restart() -> None:
            await asyncio.gather(*starting)  # those that wait for the server must not see it killed
            assert running.server is not None
            running.server.kill()
            running.server.wait(PATIENCE)
            running.revive()
            starting.append(asyncio.create_task(asyncio.to_thread(running.until_ready)))

        async def ask(text: str) -> None:
            async with openai.AsyncOpenAI(max_retries=0) as client:
                messages: Any = [{"role": "user", "content": text}]
                await client.chat.completions.create(model="p", messages=messages, max_tokens=9, temperature=0.9)

        async def killed_behind(question: str) -> str:
            await ask(question)
            await restart()
            return question

        async with TrainerClient() as client:
            await client.create_policy("p")
            found = await rollout(killed_behind, "say a", lambda _: 1.0, temperature=0.5)
            assert (found.error, [(call.message or {})["content"] for call in found.completions]) == (None, ["a"])
            async with session("say b", temperature=0.25) as run:
                await ask("say b")
                await restart()
                await starting[-1]
                await ask("say c")
                run.reward = 1.0
                await restart()
            kept = await client.rollout(run.rollout_id)
            assert [(call.message or {})["content"] for call in kept.completions] == ["b", "c"]
            assert (kept.reward, kept.temperature) == (1.0, 0.25)
            rows = [await client.completion(str(call.id)) for call in kept.completions]
            assert [row.sampling.temperature for row in rows] == [0.25, 0.25], "the registration outlived the server"
            by_http = httpx.post(
                f"{url}/api/rollouts/{found.rollout_id}/reward", json={"reward": 0.0},
                headers={"Authorization": f"Bearer {key}"},
            )  # fmt: skip
            assert by_http.status_code == 200
            await asyncio.gather(*starting)


CHILD = """
from art_langgraph import ChatART
print(ChatART(policy="agent", max_tokens=20).invoke("say grandchild").text)
"""


async def test_chat_models_of_a_child_process_belong_to_the_rollout(connected: TrainerServer) -> None:
    def program(question: str, run: Run) -> str:
        child = subprocess.run([sys.executable, "-c", CHILD], env={**os.environ, **run.environment},
                               capture_output=True, text=True, timeout=120)  # fmt: skip
        return child.stdout.strip() or child.stderr

    found = await rollout(program, "x", temperature=0.5)
    assert (found.error, found.output) == (None, "grandchild")
    assert [(call.message or {})["content"] for call in found.completions] == ["grandchild"]
