"""Servers that nobody here wrote, in worlds: nothing of the originals changes, and what runs did is seen."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from art_langgraph import Trajectory, rollout
from art_mcp import MCPScenario, Server, connect, generate_scenarios, read_catalog, verify
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.trials import execute
from art_mcp.specialization.verify import solved
from art_mcp.worlds.change import Change
from testbed.environments import environment
from tests.support.mcp.graphs import calling
from tests.support.mcp.originals import digest, git, make_database, make_repository
from tests.support.mcp.real_servers import of_npm
from trainer_server.common import Home

pytestmark = pytest.mark.servers

REPO = {"repo_path": "/world/repo"}
BRANCH = ("git_create_branch", {**REPO, "branch_name": "login"})
CHECKOUT = ("git_checkout", {**REPO, "branch_name": "login"})
SETTINGS = {"npm_config_cache": str(Home.find().cache / "test-envs" / "npm")}


def git_server() -> list[str]:
    return [str(environment("mcp-server-git", "mcp-server-git") / "python"), "-m", "mcp_server_git"]


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Path]:
    """A repository, which is the same at the end of the test: contents, modes, times."""
    made = make_repository(tmp_path / "repo")
    before = digest(tmp_path)
    yield made
    assert digest(tmp_path) == before


def changes(trajectory: Trajectory) -> list[str]:
    assert trajectory.error is None
    assert not any(call.is_error for call in trajectory.tool_calls), trajectory.tool_calls
    return [str(Change.model_validate(change)) for change in trajectory.metadata["world"]["changes"]]


async def scenario(server: Server, *calls: tuple[str, dict[str, object]]) -> MCPScenario:
    steps = [Step(tool=tool, arguments=arguments) for tool, arguments in calls]
    draft = MCPScenario.make("Do it.", Plan(reference=steps))
    [kept], dropped = await execute(server, [draft], await read_catalog(server))
    assert dropped == []
    return kept


async def test_git_a_branch_is_made_and_checked_out_and_no_other_run_sees_it(repository: Path) -> None:
    main = git(repository, "rev-parse", "main")
    async with connect([*git_server(), "--repository", "{world}"], worlds=repository) as server:
        task = await scenario(server, BRANCH, CHECKOUT)
        assert [str(change) for change in task.plan.changes or []] == [
            "/world/repo: HEAD was main and is now login",
            f"/world/repo: branch login is new: {main}",
        ]
        acting, reading = await asyncio.gather(
            rollout(calling(server, BRANCH, CHECKOUT), task, verify()),
            rollout(calling(server, ("git_status", REPO), ("git_branch", {**REPO, "branch_type": "local"})), "Look."),
        )
        assert solved(acting)
        assert changes(reading) == []
        assert "On branch main" in str(reading.tool_calls[0].result)
        assert "login" not in str(reading.tool_calls[1].result)
        half = await rollout(calling(server, BRANCH), task, verify())
        assert not solved(half)
        assert half.metadata["world"]["differences"] == [
            "should have changed and did not: /world/repo: HEAD was main and is now login"
        ]
    assert git(repository, "branch", "--list", "login") == ""


async def test_git_a_commit_is_the_same_whenever_it_is_made(repository: Path) -> None:
    calls = [("git_add", {**REPO, "files": ["notes.txt"]}), ("git_commit", {**REPO, "message": "More notes"})]
    async with connect([*git_server(), "--repository", "{world}"], worlds=[repository]) as server:
        task = await scenario(server, *calls)
        [commit] = task.plan.changes or []
        assert (commit.what, commit.varies) == ("branch main", False)
        assert str(commit.after).startswith("new commit 'More notes' by ")
        assert solved(await rollout(calling(server, *calls), task, verify()))
        other = [calls[0], ("git_commit", {**REPO, "message": "Less notes"})]
        assert not solved(await rollout(calling(server, *other), task, verify()))


async def test_git_a_server_without_the_path_cannot_reach_the_original_by_its_name(repository: Path) -> None:
    """It takes any path. That of the original means the copy."""
    async with connect(git_server(), worlds=repository) as server:
        named = {"repo_path": str(repository)}
        run = await rollout(
            calling(server, ("git_checkout", {**named, "branch_name": "feature"}), ("git_status", {"repo_path": "."})),
            "Go.",
        )
        assert changes(run) == ["/world/repo: HEAD was main and is now feature"]
        assert "On branch feature" in str(run.tool_calls[1].result)


async def test_git_scenarios_that_act_are_generated(repository: Path) -> None:
    command = [*git_server(), "--repository", "{world}"]
    found = await generate_scenarios(command, 10, seconds=300, worlds=repository, progress=False)
    assert any(one.plan.changes for one in found.scenarios), found.report()
    assert any(one.plan.changes == [] for one in found.scenarios), found.report()
    assert {arguments["repo_path"] for one in found.scenarios for arguments in _arguments(one)} == {"/world/repo"}


def _arguments(one: MCPScenario) -> list[dict[str, object]]:
    return [step.arguments for step in one.plan.reference if "repo_path" in step.arguments]


async def test_sqlite_rows_are_added_to_a_copy_of_a_database_in_use(tmp_path: Path) -> None:
    """A server of SDK 1, in an environment of its own."""
    program = environment("mcp-server-sqlite", "mcp-server-sqlite==2025.4.25", "mcp<2") / "mcp-server-sqlite"
    insert = ("write_query", {"query": "insert into users (name) values ('Cid')"})
    count = ("read_query", {"query": "select count(*) as n from users"})
    (tmp_path / "data").mkdir()
    with closing(make_database(tmp_path / "data" / "shop.db")) as database:
        before = digest(tmp_path / "data")
        async with connect([str(program), "--db-path", "{world}"], worlds=tmp_path / "data" / "shop.db") as server:
            task = await scenario(server, insert)
            found = {change.what: change for change in task.plan.changes or []}
            assert found.keys() == {"users[id=3].id", "users[id=3].name", "users[id=3].made"}
            assert [change.what for change in found.values() if change.varies] == ["users[id=3].made"]
            acting, reading = await asyncio.gather(
                rollout(calling(server, insert), task, verify()), rollout(calling(server, count), "How many?")
            )
            assert solved(acting)
            assert "2" in str(reading.tool_calls[0].result)
            assert changes(reading) == []
            remove = ("write_query", {"query": "delete from users"})
            wrong = await rollout(calling(server, insert, remove), task, verify())
            assert "should not have changed: /world/shop.db: users[id=1].name is gone" in str(wrong.metadata["world"])
        assert digest(tmp_path / "data") == before
        assert database.execute("select count(*) from users").fetchone() == (2,)
    with closing(sqlite3.connect(tmp_path / "data" / "shop.db")) as after:
        assert after.execute("select name from users").fetchall() == [("Ada",), ("Bob",)]


@pytest.mark.skipif(shutil.which("npx") is None, reason="the server comes from npm, and npx is missing")
async def test_files_are_moved_in_a_copy_and_paths_are_aliases_in_every_answer(tmp_path: Path) -> None:
    (tmp_path / "papers" / "old").mkdir(parents=True)
    (tmp_path / "papers" / "a.txt").write_text("text")
    os.chmod(tmp_path / "papers" / "old", 0o750)
    before = digest(tmp_path)
    move = ("move_file", {"source": "/world/papers/a.txt", "destination": "/world/papers/old/b.txt"})
    command = [*of_npm("server-filesystem"), "{world}"]
    async with connect(command, worlds=tmp_path / "papers", env=SETTINGS, start_timeout=300) as server:
        task = await scenario(server, move)
        assert [str(change) for change in task.plan.changes or []] == [
            "/world/papers/a.txt: content is gone; it was text",
            "/world/papers/old/b.txt: content is new: text",
        ]
        allowed = await server.call("list_allowed_directories", {})
        assert allowed.text == "Allowed directories:\n/world/papers"
        run = await rollout(
            calling(server, move, ("read_text_file", {"path": "/world/papers/old/b.txt"})), task, verify()
        )
        assert run.tool_calls[1].result == "text"
        assert solved(run)
        outside = await server.call("read_text_file", {"path": str(tmp_path.parent)})
        assert outside.is_error
        assert "not in /world/papers" in outside.text
    assert digest(tmp_path) == before
