"""A file that is not there is said before a server is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import art
from trainer_server.wire import ConfigError

AGENT = "from art_langgraph import ChatART\n\ngraph = ChatART(policy='agent')\n"
GRAPH = ("--graph-object", "no_server_agent:graph", "--reward", "no_server_agent:graph")


@pytest.mark.parametrize(
    "words",
    [
        ("sft", "agent", "none.jsonl"),
        ("sft", "agent", "there.jsonl", "--validation", "none.jsonl"),
        ("evaluate", "--scenarios", "none.jsonl", *GRAPH),
        ("train", "--policy", "agent", "--scenarios", "none.jsonl", *GRAPH),
        ("train", "--policy", "agent", "--scenarios", "there.jsonl", "--held-out", "none.jsonl", *GRAPH),
        ("autorl", "a task", "--graph", "m:g", "--judge", "a/b", "--scenarios", "none.jsonl"),
        ("autorl", "a task", "--graph", "m:g", "--judge", "a/b", "--examples", "none.jsonl"),
        ("autopilot", "--policy", "agent", "--gate", "none.jsonl", *GRAPH),
    ],
)
def test_the_file_is_named_before_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ART_HOME", str(tmp_path / "home"))
    for name in ("ART_BASE_URL", "ART_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "no_server_agent.py").write_text(AGENT)
    (tmp_path / "there.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'
    )
    error = art(*words).exception
    assert isinstance(error, ConfigError)
    assert str(error) == "none.jsonl cannot be read: No such file or directory"
