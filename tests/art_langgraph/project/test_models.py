"""The lines of a file that make a chat model."""

from __future__ import annotations

from pathlib import Path

from art_langgraph.project.models import model_calls

SOURCE = """
import langchain_openai
model = langchain_openai.ChatOpenAI(model="gpt-4.1")
other = init_chat_model("anthropic:claude-opus-4")
agent = create_agent("openai:gpt-4.1", tools=[])
named = create_agent(model="openai:gpt-4.1")
given = create_agent(model)
ours = ChatART(policy="agent")
"""


def test_models_and_agents_with_a_models_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SOURCE)
    assert model_calls(tmp_path / "agent.py") == [
        (3, "langchain_openai.ChatOpenAI(model='gpt-4.1')"),
        (4, "init_chat_model('anthropic:claude-opus-4')"),
        (5, "create_agent('openai:gpt-4.1', tools=[])"),
        (6, "create_agent(model='openai:gpt-4.1')"),
    ]


def test_a_file_that_is_no_python_has_none(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def (")
    assert model_calls(tmp_path / "agent.py") == model_calls(tmp_path / "missing.py") == []
