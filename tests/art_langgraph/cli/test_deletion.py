"""`trajectories delete`, `threads delete`, `policies delete`: what is left of runs, here and at the trainer server."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, Trajectory, TrajectoryStore, rollout
from art_langgraph.background.reports import flush
from tests.support.cli import art
from tests.support.homes.files import files_with
from tests.support.runs.groups import run
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

MARK = "quetzalbird"


def made(store: TrajectoryStore, text: str, thread: str | None = None) -> Trajectory:
    """A run of a graph that asks the policy `agent`, stored, and reported to the server."""
    model = ChatART(policy="agent", max_tokens=40)

    async def node(state: MessagesState) -> dict[str, list[object]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model")
    config = {"configurable": {"thread_id": thread}} if thread else None
    compiled = graph.compile(checkpointer=InMemorySaver() if thread else None)
    found = asyncio.run(rollout(compiled, f"say {text}", store=store, config=config))  # type: ignore[arg-type]
    assert found.error is None
    flush()
    return found


def test_a_deleted_run_is_in_no_file_of_store_and_server(connected: TrainerServer, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    first, other = made(store, f"{MARK}-one"), made(store, f"{MARK}-two")
    store.score(first.id, 1.0, error=f"{MARK}-one")
    assert files_with(connected.home.root, f"{MARK}-one") != []
    assert files_with(tmp_path, f"{MARK}-one") != []
    asked = art("trajectories", "delete", first.id, "--store", str(store.path))
    assert asked.exit_code == 1, "nobody said yes"
    assert store.get(first.id) is not None

    done = art("trajectories", "delete", first.id[:20], "--yes", "--store", str(store.path))
    assert done.exit_code == 0, done.output
    assert "deleted 1 rollouts, 1 completions" in done.stdout
    assert files_with(tmp_path, f"{MARK}-one") == []
    assert files_with(connected.home.root, f"{MARK}-one") == []
    assert store.get(first.id) is None
    assert store.get(other.id) is not None

    nowhere = str(tmp_path / "none.sqlite")
    elsewhere = art("trajectories", "delete", str(other.rollout_id), "--yes", "--json", "--store", nowhere)
    told = json.loads(elsewhere.stdout)
    assert (told["store"], told["runs"]) == (nowhere, 0)
    assert (told["server"]["rollouts"], told["server"]["completions"]) == (1, 1)
    assert files_with(connected.home.root, f"{MARK}-two") == []
    unknown = art("trajectories", "delete", "tr-unknown", "--yes", "--store", str(store.path))
    assert isinstance(unknown.exception, ConfigError)


def test_a_run_is_deleted_by_its_rollout_too(connected: TrainerServer, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    first, second = made(store, "by its rollout"), made(store, "here alone")
    words = ("--yes", "--store", str(store.path))
    done = art("trajectories", "delete", str(first.rollout_id), *words)
    assert "deleted 1 rollouts, 1 completions" in done.stdout, done.output
    assert [run.id for run in store.list()] == [second.id]
    assert art("trajectories", "delete", str(second.rollout_id), "--local", *words).exit_code == 0
    assert store.list() == []


def test_a_thread_is_deleted_with_all_of_its_runs(connected: TrainerServer, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    for text in ("first", "second"):
        made(store, f"{MARK}-{text}", thread="thread-7")
    kept = made(store, "kept", thread="thread-8")
    done = art("threads", "delete", "thread-7", "--yes", "--store", str(store.path))
    assert "deleted 2 rollouts, 2 completions" in done.stdout, done.output
    assert [one.id for one in store.list()] == [kept.id]
    assert files_with(tmp_path, MARK) == []
    assert files_with(connected.home.root, MARK) == []
    assert isinstance(art("threads", "delete", "thread-7", "--yes", "--store", str(store.path)).exception, ConfigError)


def test_without_a_server_nothing_is_deleted_unless_only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ART_API_KEY", "key")
    monkeypatch.setenv("ART_RETRY_FOR", "0")
    store = TrajectoryStore(tmp_path / "store.sqlite")
    stored = run("say a", 1.0)
    store.add(stored)
    refused = art("trajectories", "delete", stored.id, "--yes", "--store", str(store.path))
    assert "nothing was deleted" in str(refused.exception)
    assert "--local" in str(refused.exception)
    assert store.get(stored.id) is not None
    assert art("trajectories", "delete", stored.id, "--yes", "--local", "--store", str(store.path)).exit_code == 0
    assert store.get(stored.id) is None


def test_nobody_is_asked_about_a_policy_that_is_not_there(connected: TrainerServer) -> None:
    done = art("policies", "delete", "nobody")
    assert "there is no policy 'nobody'" in str(done.exception)
    assert "[y/N]" not in done.output


def test_a_policy_is_deleted_with_the_runs_here(connected: TrainerServer, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    with connected.http() as http:
        assert http.post("/api/policies", json={"name": "cli-gone"}).status_code == 201
    store.add(run("a", 1.0, policy="cli-gone"))
    store.add(kept := run("b", 1.0))
    misspelt = art("policies", "delete", "cli-gone", "--yes", "--store", str(tmp_path / "stor.sqlite"))
    assert "does not exist" in str(misspelt.exception)
    assert "cli-gone" in art("policies").stdout
    done = art("policies", "delete", "cli-gone", "--yes", "--json", "--store", str(store.path))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["policy"], told["runs"], told["server"]["versions"]) == ("cli-gone", 1, 1)
    assert "cli-gone: 1 versions deleted, and 1 runs" in done.stderr
    assert [one.id for one in store.list()] == [kept.id]
    assert "cli-gone" not in art("policies").stdout


def test_old_runs_are_pruned_by_age_and_by_size(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    now = time.time()
    for days in (200, 100, 10, 1):
        old = run(f"{MARK}-{days}", 1.0)
        store.add(old.model_copy(update={"started": now - days * 86400, "output": "x" * 50_000}))
    nothing = art("trajectories", "prune", "--yes", "--store", str(store.path))
    assert "give --keep-days, --keep-gib, or both" in str(nothing.exception)
    endless = art("trajectories", "prune", "--keep-gib", "inf", "--yes", "--store", str(store.path))
    assert "inf: a number must be finite" in str(endless.exception)
    done = art("trajectories", "prune", "--keep-days", "90", "--yes", "--store", str(store.path))
    assert "2 runs deleted" in done.stdout, done.output
    assert files_with(tmp_path, f"{MARK}-200") == []
    assert len(store) == 2
    store.prune(most_bytes=80_000)
    assert [one.scenario.input for one in store] == [f"{MARK}-1"]
