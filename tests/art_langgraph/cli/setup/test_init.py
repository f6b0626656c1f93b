"""`art-langgraph init`: what it writes beside a langgraph.json trains, and nothing is overwritten."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import TrainerClient
from tests.support.cli import art
from tests.support.servers.trainer_server import TrainerServer

AGENT = """
from langchain.chat_models import init_chat_model
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART


def production():
    return init_chat_model("openai:gpt-4.1")


async def answer(state: MessagesState):
    return {"messages": [await ChatART(policy="scaffolded", max_tokens=50).ainvoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project, as `langgraph new` lays it out."""
    package = tmp_path / "src" / "talker"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "graph.py").write_text(AGENT)
    given = {"dependencies": ["."], "graphs": {"talker": "./src/talker/graph.py:graph"}, "env": ".env"}
    (tmp_path / "langgraph.json").write_text(json.dumps(given))
    (tmp_path / ".env").write_text("OTHER=1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("OTHER", "1")
    monkeypatch.setenv("ART_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_what_it_writes_takes_a_step(
    folder: Path, connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = art("init", "--policy", "scaffolded")
    assert done.exit_code == 0, done.output
    assert "Written: train.py, scenarios.jsonl, .env." in done.output
    assert "src/talker/graph.py:9  init_chat_model('openai:gpt-4.1')" in done.output
    assert f"cd {folder} && python train.py --steps 1" in done.output
    assert f"The trainer server at {connected.url} answers." in done.output
    assert "art-langgraph serve" not in done.output
    assert (folder / ".env").read_text() == f"OTHER=1\nART_BASE_URL={connected.url}\n"
    scenarios = [json.loads(line) for line in (folder / "scenarios.jsonl").read_text().splitlines()]
    assert [one["input"] for one in scenarios] == ["The first task", "The second task"]

    monkeypatch.setitem(connected.engine, "answers", ["what a good answer has in it", "no"] * 8)
    await runpy.run_path(str(folder / "train.py"))["main"](steps=1)
    async with TrainerClient() as trainer:
        assert [version.version for version in await trainer.versions("scaffolded")] == [0, 1]


def test_without_a_server_it_says_so_and_so_does_what_it_wrote(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://127.0.0.1:9"
    for name, value in (("ART_BASE_URL", url), ("ART_API_KEY", "art-1"), ("ART_RETRY_FOR", "0")):
        monkeypatch.setenv(name, value)
    assert f"Start the server in another terminal: art-langgraph serve. None answers at {url}." in art("init").output
    done = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"no trainer server answers at {url}" in done.stderr.splitlines()[-1]


def test_nothing_is_overwritten(folder: Path, connected: TrainerServer) -> None:
    for name, text in (("train.py", "mine"), ("scenarios.jsonl", "mine"), (".env", "export ART_BASE_URL=http://mine")):
        (folder / name).write_text(text)
    done = art("init")
    assert "Kept, because it is there: train.py, scenarios.jsonl, .env." in done.output
    assert "Written" not in done.output
    (folder / "src" / "talker" / "graph.py").write_text(AGENT.replace("init_chat_model(", "len("))
    assert "Let the graph ask" in done.output
    assert "Let the graph ask" not in art("init").output
    assert [(folder / name).read_text() for name in ("train.py", "scenarios.jsonl")] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("graph", "inputs", "problem"),
    [
        ("class State(TypedDict):\n    question: str\n    count: int\n", [{"question": "…", "count": 0}] * 2, None),
        ("raise RuntimeError('no key')\n", ["The first task", "The second task"], "RuntimeError: no key"),
    ],
)
def test_scenarios_have_the_form_of_the_graphs_input(
    folder: Path, connected: TrainerServer, graph: str, inputs: list[Any], problem: str | None
) -> None:
    (folder / "src" / "talker" / "graph.py").write_text(
        "from typing import TypedDict\nfrom langgraph.graph import START, StateGraph\n" + graph +
        "graph = StateGraph(State).add_node('a', lambda state: {}).add_edge(START, 'a').compile()\n"
    )  # fmt: skip
    told = json.loads(art("init", "--json").output)
    assert (told["graph"], told["place"], told["problem"]) == ("talker", "src/talker/graph.py:graph", problem)
    assert [json.loads(line)["input"] for line in (folder / "scenarios.jsonl").read_text().splitlines()] == inputs


def test_one_of_two_graphs_in_a_folder_with_a_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:9")
    place = folder.rename(folder.parent / "my agent")
    graphs = {"talker": "./src/talker/graph.py:graph", "other": "./src/talker/a.py:graph"}
    (place / "langgraph.json").write_text(json.dumps({"graphs": graphs}))
    (place / "src" / "talker" / "a.py").write_text("model = init_chat_model('openai:other')\n" + AGENT)
    assert "say which, by `art-langgraph init --graph talker`" in str(art("init", str(place)).exception)
    output = art("init", str(place), "--graph", "talker").output
    assert f"cd '{place}' && python train.py" in output
    assert output.index("src/talker/graph.py:9") < output.index("src/talker/a.py:1"), "its own file comes first"


def test_the_policy_is_the_one_that_the_graph_asks(folder: Path, connected: TrainerServer) -> None:
    assert art("init").exit_code == 0
    assert 'POLICY = "scaffolded"' in (folder / "train.py").read_text()
    (folder / "src" / "talker" / "other.py").write_text('model = ChatART(policy="second@3")')
    refused = art("init").exception
    assert "the graph's files name several policies, scaffolded, second: choose one by --policy" in str(refused)
    assert art("init", "--policy", "second").exit_code == 0


def test_variables_in_the_file_itself_are_left_to_the_user(folder: Path, connected: TrainerServer) -> None:
    given = json.loads((folder / "langgraph.json").read_text()) | {"env": {"OTHER": "1"}}
    (folder / "langgraph.json").write_text(json.dumps(given))
    assert f'Add "ART_BASE_URL": "{connected.url}" to "env" in langgraph.json.' in art("init").output


def test_a_folder_without_a_project_is_named(tmp_path: Path) -> None:
    done = art("init", str(tmp_path))
    assert done.exit_code == 1
    assert "name the folder of a project that has one" in str(done.exception)
