"""What the children of the server get of its environment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer_server.process.child import Child, check_present, inherited_environment
from trainer_server.wire import ConfigError

SECRETS = (
    "OPENAI_API_KEY",
    "ART_API_KEY",
    "ART_ENGINE_API_KEY",
    "ART_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "HUGGINGFACE_HUB_TOKEN",
    "NVIDIA_SIGNING_KEY",
    "XDG_SECRET",
    "PYTHON_KEYRING_PASSWORD",
    "LEDGER_DSN",
)
NEEDED = (
    "LC_ALL", "TMPDIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NCCL_DEBUG", "HF_HOME",
    "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "https_proxy", "HTTPS_PROXY", "XDG_CACHE_HOME", "PYTHONPATH", "ART_FAULT",
    "TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH",
)  # fmt: skip


async def test_a_child_gets_what_it_needs_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRETS, *NEEDED):
        monkeypatch.setenv(name, "")
    line = [sys.executable, "-c", "import json, os; print(json.dumps(sorted(os.environ)))"]
    child = Child("child", line, tmp_path, inherited_environment(["LEDGER_DSN"]))
    await child.start()
    assert await child.wait() == 0
    told = set(json.loads(child.tail(1)))
    await child.stop()
    assert told >= {"PATH", *NEEDED}
    assert told & set(SECRETS) == {"LEDGER_DSN"}
    kept_back = child.log.read_text().splitlines()[0]
    assert kept_back.startswith("variables of the server's environment that this process does not get: ")
    assert {"OPENAI_API_KEY", "ART_TOKEN"} <= set(kept_back.replace(",", "").split())


async def test_what_a_child_does_not_get_is_logged_before_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec

    async def started_and_ended(*line: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*line, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started_and_ended)
    monkeypatch.setenv("ART_TOKEN", "")
    child = Child("child", [sys.executable, "-c", "print('its own words')"], tmp_path, inherited_environment())
    await child.start()
    assert child.tail() == "its own words"
    assert len(child.log.read_text().splitlines()) == 2


def test_a_variable_that_is_to_be_passed_on_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "here")
    check_present("--engine-env", ["RAY_ADDRESS"])
    with pytest.raises(ConfigError, match="--engine-env RAY_ADRESS: the server's environment has no such variable"):
        check_present("--engine-env", ["RAY_ADRESS"])
    with pytest.raises(ConfigError, match=r"--trainer-env DSN=…: give the name only") as refused:
        check_present("--trainer-env", ["DSN=postgres://secret"])
    assert "secret" not in str(refused.value)
    assert os.environ["RAY_ADDRESS"] == "here"
