"""`trajectories export` with tokens and in the formats of other trainers, over the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from fastapi import FastAPI

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.cli import trajectories
from art_langgraph.exports import TrainerFormat
from art_langgraph.exports.answers import trl_rows
from art_langgraph.exports.export import Export
from art_langgraph.trajectory import CompletionCall
from tests.support.cli import art
from tests.support.homes.ledger_rows import row as ledger_row
from tests.support.runs.recorded_run import TOOLS, recorded_run
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.gateway.recorder import Identity
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.server.errors import add_error_handlers
from trainer_server.server.imported_completions import ImportedCompletions
from trainer_server.server.routes import completions as routes
from trainer_server.wire import Completion, Conversation


@pytest.fixture
def run(connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trajectory:
    """A recorded run, in the store."""
    monkeypatch.setenv("ART_HOME", str(tmp_path / "art"))
    with connected.http() as http:
        run = recorded_run(http)
    TrajectoryStore().add(run)
    return run


@dataclass
class Other:
    """The routes and the ledger of another server."""

    url: str
    ledger: SQLiteLedger


@pytest.fixture
def other(tmp_path: Path, connected: TrainerServer) -> Iterator[Other]:
    yield from another(tmp_path, connected.app.state.server.identity.tokenizer, connected)


class Anybody:
    """Every token may use every rollout."""

    async def check(self, scope: object, rollouts: object, *, begins: bool) -> None:
        pass


def another(home: Path, tokenizer: str, server: TrainerServer) -> Iterator[Other]:
    ledger = SQLiteLedger(home / "other.sqlite")
    identity = Identity("srv-b", server.app.state.server.identity.base, tokenizer)
    app = FastAPI()
    app.state.server = SimpleNamespace(
        ledger=ledger,
        imported_completions=ImportedCompletions(identity, ledger),
        owners=Anybody(),
    )
    app.include_router(routes.router)
    add_error_handlers(app)
    with serving(app) as url:
        yield Other(url, ledger)
    ledger.close()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def rows_of(server: TrainerServer, run: Trajectory) -> list[Completion]:
    rows = server.app.state.server.ledger.read([one.id for one in run.completions if one.id])
    return [rows[one.id] for one in run.completions if one.id]


def test_runs_move_to_another_server_with_their_tokens(
    run: Trajectory, connected: TrainerServer, other: Other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moved.jsonl"
    said = art("trajectories", "export", str(file), "--with-tokens")
    assert said.exit_code == 0, said.output
    assert "1 trajectories, with the tokens of 2 completions" in said.output
    own = rows_of(connected, run)
    assert [row["token_ids"] for row in lines(file)[0]["tokens"]] == [row.token_ids for row in own]

    monkeypatch.setenv("ART_BASE_URL", other.url)
    there = tmp_path / "there.sqlite"
    said = art("trajectories", "import", str(file), "--store", str(there))
    assert said.exit_code == 0, said.output
    assert "tokens of 2 completions brought to" in said.output
    assert TrajectoryStore(there).get("tr-1") == run
    found = other.ledger.read([row.id for row in own])
    assert [found[row.id].model_copy(update={"created": row.created}) for row in own] == own
    again = art("trajectories", "import", str(file), "--store", str(there)).output
    assert "0 added, 1 were there already" in again
    assert "of 0 completions brought" in again
    assert "of 2 were there already" in again


def test_a_server_with_another_tokenizer_takes_nothing_and_names_the_way_out(
    run: Trajectory, connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, there = tmp_path / "moved.jsonl", tmp_path / "there.sqlite"
    assert art("trajectories", "export", str(file), "--with-tokens").exit_code == 0
    for other in another(tmp_path, "f" * 64, connected):
        monkeypatch.setenv("ART_BASE_URL", other.url)
        refused = art("trajectories", "import", str(file), "--store", str(there))
        assert refused.exit_code != 0
        assert "--no-tokens" in str(refused.exception)
        assert TrajectoryStore(there).get("tr-1") is None
        assert not other.ledger.read([one.id for one in run.completions if one.id])
    assert art("trajectories", "import", str(file), "--store", str(there), "--no-tokens").exit_code == 0
    assert TrajectoryStore(there).get("tr-1") == run


def test_rows_that_the_server_has_no_more_are_named(run: Trajectory, tmp_path: Path) -> None:
    gone = run.completions[0].model_copy(update={"id": "chatcmpl-gone"})
    TrajectoryStore().add(run.model_copy(update={"id": "tr-2", "completions": [gone]}))
    said = art("trajectories", "export", str(tmp_path / "moved.jsonl"), "--with-tokens").output
    assert "1 answers have no tokens in the file" in said
    assert "chatcmpl-gone" in said


def test_without_a_server_tokens_are_an_error_and_formats_say_what_they_lack(
    run: Trajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ART_RETRY_FOR", "0")
    file = tmp_path / "rows.jsonl"
    failed = art("trajectories", "export", str(file), "--with-tokens")
    assert "no trainer server answers" in str(failed.exception)
    assert not file.exists()
    said = art("trajectories", "export", str(file), "--format", "trl")
    assert "no tokens and no tools" in said.output
    assert [(row["reward"], row["prompt_ids"]) for row in lines(file)] == [(0.5, None)] * 2


def test_rows_for_trl_load_with_datasets(run: Trajectory, connected: TrainerServer, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    file = tmp_path / "rows.jsonl"
    said = art("trajectories", "export", str(file), "--format", "trl").output
    assert "1 trajectories as 2 answers, with the tokens of 2 completions" in said
    table = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))
    own = rows_of(connected, run)
    assert list(table["prompt_ids"]) == [row.prompt_token_ids for row in own]
    assert list(table["completion_ids"]) == [row.token_ids for row in own]
    assert list(table["logprobs"]) == [pytest.approx(row.logprobs) for row in own]
    assert table[0]["tools"] == TOOLS  # no field of one tool in another
    (made,) = [one["tool_calls"] for one in table[1]["prompt"] if one.get("tool_calls")]
    assert made[0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert table[1]["model"] == "agent@0"


def test_conversations_for_openai_are_whole_and_weigh_what_the_run_said(run: Trajectory, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    said = art("trajectories", "export", str(file), "--format", "openai-sft").output
    assert "1 trajectories as 1 conversations" in said
    (line,) = lines(file)
    conversation = Conversation.model_validate(line)
    assert conversation.tools == TOOLS
    assert [one.get("weight") for one in conversation.messages if one["role"] == "assistant"] == [None, 0, None]
    assert conversation.messages[-1]["role"] == "assistant"


def test_an_episode_for_verifiers_has_the_exact_tokens_along_each_path(
    run: Trajectory, connected: TrainerServer, tmp_path: Path
) -> None:
    file = tmp_path / "traces.jsonl"
    said = art("trajectories", "export", str(file), "--format", "verifiers").output
    assert "1 trajectories as 1 episodes" in said
    (episode,) = lines(file)
    (trace,) = episode["traces"]
    assert trace["rewards"] == {"reward": {"score": 0.5, "weight": 1.0}}
    assert [tool["name"] for tool in trace["tools"]] == ["weather", "add"]
    for made, row in zip(trace["calls"], rows_of(connected, run), strict=True):
        path = path_to(trace["nodes"], made["node"])
        assert [token for node in path for token in node.get("token_ids", [])] == [
            *row.prompt_token_ids, *row.token_ids,
        ]  # fmt: skip
        last = path[-1]
        assert sum(last["mask"]) == len(row.token_ids) == len(last["logprobs"])
        assert made["usage"] == {"prompt_tokens": len(row.prompt_token_ids), "completion_tokens": len(row.token_ids)}


def path_to(nodes: list[dict[str, Any]], at: int | None) -> list[dict[str, Any]]:
    path = []
    while at is not None:
        path.append(nodes[at])
        at = nodes[at]["parent"]
    return path[::-1]


def test_formats_and_tokens_are_written_as_lines(run: Trajectory, tmp_path: Path) -> None:
    for words in (["--with-tokens"], ["--format", "trl"]):
        refused = art("trajectories", "export", str(tmp_path / "x.parquet"), *words)
        assert "write .jsonl" in str(refused.exception)


def test_an_answer_has_the_reward_of_its_node_and_missing_tokens_are_none() -> None:
    said = {"role": "assistant", "content": "yes"}
    calls = [
        CompletionCall(id=f"c{at}", model="agent", version=2, node=node, message=said, started=1.0)
        for at, node in enumerate(("planner", "worker"))
    ]
    run = Trajectory(scenario=Scenario(input="?"), completions=calls, reward=0.5, node_rewards={"planner": 1.0})
    cut = ledger_row("c0").model_copy(update={"untrainable": "a token has no log-probability"})
    first, second = trl_rows(run, {"c0": cut, "c1": ledger_row("c1")})
    assert (first["reward"], first["prompt_ids"], first["model"]) == (1.0, None, "agent@2")
    assert (second["reward"], second["completion_ids"]) == (None, [3, 4])


@pytest.mark.parametrize("format", TrainerFormat)
def test_another_trainer_gets_no_evaluation_and_no_run_with_hints(format: TrainerFormat, tmp_path: Path) -> None:
    call = CompletionCall(
        id=None,
        model="agent",
        messages=[{"role": "user", "content": "?"}],
        message={"role": "assistant", "content": "yes"},
        started=1.0,
    )
    kinds: list[dict[str, Any]] = [{}, {"evaluation": True}, {"evaluation": True}, {"hints": {"agent": "say yes"}}]
    runs = [Trajectory(scenario=Scenario(input="?"), completions=[call], reward=1.0, **facts) for facts in kinds]
    export = Export(format, tokens=False)
    export.write(tmp_path / "rows.jsonl", runs)
    assert len(lines(tmp_path / "rows.jsonl")) == 1
    assert export.summary.startswith("1 trajectories as 1 ")
    assert export.notes[0].startswith("left out: runs that evaluate a version (2); ")
    assert export.notes[1].startswith("left out: runs with hints (1); ")
    whole = Export(None, tokens=False)
    whole.write(tmp_path / "all.jsonl", runs)
    assert len(lines(tmp_path / "all.jsonl")) == 4


def test_the_command_line_has_the_formats_of_the_extension() -> None:
    assert get_args(trajectories.TrainerFormat) == tuple(TrainerFormat)
