"""litellm is an extra: what works without it, and what those who need it are told."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from pydantic import BaseModel

from art_langgraph import LLM
from art_langgraph.llm import target
from art_langgraph.llm.target import check_litellm
from tests.support.proxies.refusing_proxy import refusing_proxy, without_proxies
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.wire import ConfigError, LLMError

WITHOUT = """
import asyncio, importlib, pkgutil, sys
sys.modules["litellm"] = None
import art_langgraph, art_mcp
for package in (art_langgraph, art_mcp):
    for name in package.__all__:
        getattr(package, name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name != "art_langgraph.dev":  # captures the process
            importlib.import_module(module.name)
from art_langgraph import LLM, ARTError, ChatART, Ruler
from pydantic import BaseModel

class Answer(BaseModel):
    value: int

async def main():
    print((await ChatART(policy="agent", max_tokens=20).ainvoke("say hello")).text)
    llm = LLM(ChatART(policy="agent", max_tokens=50), cache=None)
    print(await llm.ask([{"role": "user", "content": 'say {"value": 3}'}], Answer), llm.usage)

asyncio.run(main())
for judge in (lambda: Ruler("openai/gpt-4o-mini"), lambda: LLM("art/base"), lambda: LLM("x", base_url="http://x")):
    try:
        judge()
    except ARTError as error:
        print(error)
"""


@pytest.mark.usefixtures("connected")
def test_everything_but_models_by_name_works_without_litellm() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr
    said, answer, *errors = done.stdout.splitlines()
    assert said == "hello"
    assert answer.startswith("value=3 1 calls")
    assert len(errors) == 3
    assert all("pip install 'art-langgraph[judge]'" in error for error in errors)


async def test_a_judge_is_asked_by_the_proxy_and_the_trainer_server_directly(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer(BaseModel):
        value: int

    without_proxies(monkeypatch)
    question: Any = [{"role": "user", "content": 'say {"value": 3}'}]
    with refusing_proxy() as proxy:
        for name, value in {**proxy.environment, "NO_PROXY": "corp", "no_proxy": "corp"}.items():
            monkeypatch.setenv(name, value)
        here = connected.url.replace("127.0.0.1", "localhost")  # litellm remembers the proxy of a host
        judge = LLM("art/agent", base_url=here, api_key=TOKEN, cache=None, max_tokens=50)
        assert (await judge.ask(question, Answer)).value == 3
        assert proxy.asked == []
        with pytest.raises(LLMError):
            await LLM("openai/judge", base_url="http://judge.example/v1", cache=None, retries=0).ask(question, Answer)
    assert proxy.asked == ["POST http://judge.example/v1/chat/completions"]


def test_the_command_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"'openai/gpt-5' is asked through litellm, which is not installed"):
        check_litellm("openai/gpt-5")


def test_releases_that_were_compromised_are_excluded(pytestconfig: pytest.Config) -> None:
    project = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text())["project"]
    assert not [needed for needed in project["dependencies"] if Requirement(needed).name == "litellm"]
    (litellm,) = map(Requirement, project["optional-dependencies"]["judge"])
    assert [version for version in ("1.82.6", "1.82.7", "1.82.8", "1.82.9") if version in litellm.specifier] == [
        "1.82.6",
        "1.82.9",
    ]
