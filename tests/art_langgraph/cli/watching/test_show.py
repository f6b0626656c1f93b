"""`trajectories show`: the tree of the dashboard's viewer, and the messages, on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.cli import run_tree
from art_langgraph.trajectory import CompletionCall, NodeRun, ToolCall
from tests.support.cli import art
from tests.support.homes.ledger_rows import row
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common.run_tree import tree as common_tree


def at(name: str, started: float, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """Where and when something happened."""
    return {"node": name, "attempt": f"{name}-{started}", "parent": parent, "started": started, "seconds": 0.5, **more}


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrajectoryStore:
    """Has a run with a retried branch, a subgraph, an MCP call, and a conversation of two turns."""
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    store = TrajectoryStore()
    asked = said("user", "Look, then write.")
    wants = said("assistant", "", tool_calls=[{"function": {"name": "write_note", "arguments": '{"path": "a.md"}'}}])
    answer = said("tool", "written \x1b[31mred\u202e")
    nodes = [
        at("look", 1.0, namespace="look:1", branch=0, error="ConnectionError: no weather"),
        at("look", 2.0, namespace="look:1", branch=0),
        at("writer", 3.0, namespace="writer:1"),
        at("act", 3.1, "writer-3.0", namespace="writer:1|act:1"),
        at("tools", 3.2, "writer-3.0", namespace="writer:1|tools:1"),
        at("act", 3.3, "writer-3.0", namespace="writer:1|act:2"),
    ]
    calls = [
        {**at("look", 1.0), "id": "c-1", "superseded": "retry", "message": said("assistant", "fog")},
        {**at("look", 2.0), "id": "c-2", "message": said("assistant", "sunny")},
        {**at("act", 3.1), "id": "c-3", "messages": [asked], "message": wants},
        {**at("act", 3.3), "id": "c-4", "messages": [asked, wants, answer], "message": said("assistant", "Done.")},
    ]
    tool = {"tool": "write_note", "arguments": {"path": "a.md"}, "result": answer["content"], "server": "notes"}
    run = Trajectory(
        id="tr-tree",
        scenario=Scenario(input="Write today's note."),
        nodes=[NodeRun(**node) for node in nodes],
        completions=[CompletionCall(**{"model": "agent", "version": 3, **call}) for call in calls],
        tool_calls=[ToolCall(**at("tools", 3.2), **tool, server_version="2")],
        reward=0.5,
    )
    store.add(run)
    return store


def test_a_run_is_a_tree_with_branches_attempts_subgraphs_and_mcp_calls(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = art("trajectories", "show", "tr-tree").output.splitlines()
    places = {
        part: (at, lines[at].index(part))
        for part in (
            "look branch 0 · attempt 1 of 2",
            "look branch 0 · attempt 2 of 2",
            "writer 0.50 s",
            "act 0.50 s",
            "✓ MCP write_note",
        )
        for at, line in enumerate(lines)
        if part in line
    }
    assert len(places) == 5
    rows, columns = zip(*places.values(), strict=True)
    assert sorted(rows[:3]) == list(rows[:3])
    assert columns[2] < columns[3] < columns[4], "what is in a subgraph stands under its node"
    text = "\n".join(lines)
    for part in ("ConnectionError: no weather", "repeated: retry", "of notes 2", "● 3", "→ write_note("):
        assert part in text, part


def test_messages_follow_and_a_conversation_is_told_once(store: TrajectoryStore) -> None:
    text = art("trajectories", "show", "tr-tree").output
    told = text[text.index("\n1 ") :]
    assert told.count("Look, then write.") == 1
    assert "goes on from 3" in " ".join(told.split())
    assert "Done." in told
    assert "Done." not in art("trajectories", "show", "tr-tree", "--no-messages").output.split("writer")[0]


def test_what_a_model_wrote_commands_no_terminal(store: TrajectoryStore) -> None:
    text = art("trajectories", "show", "tr-tree").output
    assert "\x1b[31m" not in text
    assert "\u202e" not in text
    assert "<U+001B>[31mred<U+202E>" in text


def test_an_answer_that_looks_like_a_call_says_so() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    answer = said("assistant", '{"name": "look", "arguments": {}}')
    answers = [row("a").model_copy(update={"message": answer, "request": {"tools": tools}})]
    console = Console(width=200)
    with console.capture() as captured:
        console.print(run_tree.tree(Trajectory(scenario=Scenario(input="x")), common_tree(None, answers)))
    assert "this looks like a call of look that the parser did not take" in captured.get()


def test_programs_get_the_same_tree(store: TrajectoryStore) -> None:
    told = json.loads(art("trajectories", "show", "tr-tree", "--json").output)
    assert (told["reward"], told["question"]) == (0.5, "Write today's note.")
    first, again, writer = told["tree"]
    assert [(one["label"], one["attempt_number"], one["attempts"]) for one in (first, again)] == [
        ("look", 1, 2),
        ("look", 2, 2),
    ]
    assert [one["kind"] for node in writer["inside"] for one in node["inside"]] == ["call", "tool", "call"]


def test_a_run_that_only_the_server_knows_is_asked_of_it(connected: TrainerServer, store: TrajectoryStore) -> None:
    with connected.http() as http:
        body = {"model": "agent", "messages": [{"role": "user", "content": "say far"}], "max_tokens": 20}
        answer = http.post("/rollouts/elsewhere/v1/chat/completions", json=body).json()
        node = {"node": "think", "attempt": "a", "namespace": "t", "started": 2.0, "seconds": 1.0}
        call = {"id": answer["id"], "model": "agent", "version": 0, "attempt": "a", "started": 2.1}
        call["message"] = answer["choices"][0]["message"]
        trace = {"id": "tr-far", "scenario": {"input": "x"}, "started": 1.0, "nodes": [node], "completions": [call]}
        assert http.put("/api/rollouts/elsewhere/trace", json=trace).status_code == 204
        http.post("/rollouts/untraced/v1/chat/completions", json=body)
    for name in ("elsewhere", "tr-far"):
        text = art("trajectories", "show", name).output
        assert "think" in text
        assert f"{answer['usage']['completion_tokens']} tokens" in text
        assert "user      say far" in text, "the ledger has the messages"
    assert "say far" in art("trajectories", "show", "untraced").output
    assert "The trainer server: it has none either" in str(art("trajectories", "show", "nowhere").exception)
