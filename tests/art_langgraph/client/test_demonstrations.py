"""Warm starts from the client: files, conversations and recorded runs, by Python and by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AnyMessage
from langgraph.graph import START, MessagesState, StateGraph
from typer.testing import CliRunner

from art_langgraph import ChatART, SFTConfig, TrainerClient, gather, load_conversations
from art_langgraph.cli.main import build
from art_langgraph.client.demonstrations import sft_request
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.jobs.queue import JobQueue
from trainer_server.wire import ConfigError, Conversation

LINES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
    {"messages": [{"role": "user", "content": "é\x85"}, {"role": "assistant", "content": "ja"}], "tools": []},
]
CONFIG = SFTConfig(lr=1e-2, num_train_epochs=2)


def written(path: Path, *lines: Any) -> Path:
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    )
    return path


def test_a_file_has_one_conversation_a_line(tmp_path: Path) -> None:
    found = load_conversations(written(tmp_path / "d.jsonl", LINES[0], "", LINES[1]))
    assert [one.model_dump(exclude_none=True) for one in found] == LINES


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 3 is not JSON"),
        (
            {"messages": [{"role": "ai", "content": "x"}]},
            "line 3 is no conversation: messages: message 0 .* 'ai' is none of",
        ),
        ({"prompt": "x", "completion": "y"}, "line 3 is no conversation: messages: Field required"),
        (["x"], "line 3 is no conversation: .*valid dictionary"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load_conversations(written(tmp_path / "d.jsonl", LINES[0], "", line))


def test_nothing_to_imitate_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no conversations"):
        load_conversations(written(tmp_path / "d.jsonl", ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_conversations(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="nothing to imitate"):
        sft_request([])
    with pytest.raises(ConfigError, match="demonstration 1"):
        sft_request([LINES[0], {"messages": "x"}])


def test_a_share_is_set_aside_for_validation_and_the_seed_draws_it() -> None:
    lines = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"{n}"}]} for n in range(20)
    ]
    request = sft_request(lines, validation=0.1)
    assert (len(request.conversations), len(request.validation)) == (18, 2)
    together = [*request.conversations, *request.validation]
    assert sorted(one.messages[1]["content"] for one in together) == sorted(f"{n}" for n in range(20))
    assert request == sft_request(lines, validation=0.1)
    assert request.validation != sft_request(lines, SFTConfig(seed=1), validation=0.1).validation
    given = sft_request(lines, validation=lines[:1])
    assert (len(given.conversations), [one.messages for one in given.validation]) == (20, [lines[0]["messages"]])


def test_tools_that_all_demonstrations_have_are_sent_once() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    request = sft_request([{**LINES[0], "tools": tools}] * 3, validation=[{**LINES[0], "tools": tools}])
    assert request.tools == tools
    assert [one.tools for one in (*request.conversations, *request.validation)] == [None] * 4
    mixed = sft_request([{**LINES[0], "tools": tools}, LINES[1]])
    assert (mixed.tools, [one.tools for one in mixed.conversations]) == (None, [tools, []])
    assert sft_request(LINES[:1]).tools is None


@pytest.mark.parametrize(
    ("validation", "what"),
    [
        (1, "validation=1: as a share it must be between 0 and 1"),
        (0.9, "would measure all of the 2 demonstrations and imitate none"),
        ([], "validation is empty"),
        ([{"messages": "x"}], "demonstration of the validation 0"),
        ("none.jsonl", "cannot be read"),
    ],
)
def test_a_validation_that_cannot_be_is_refused_before_it_is_sent(validation: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        sft_request(LINES, validation=validation)


async def test_conversations_and_files_start_a_policy_warm(connected: TrainerServer, tmp_path: Path) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("d1")
        result = await trainer.sft("d1", [LINES[0], Conversation(**LINES[1])], CONFIG)
        assert (result.version, result.metrics["turns"]) == (1, 2)
        assert set(result.metrics["job"]["seconds"]) == {"render", "train", "swap"}
        result = await trainer.sft("d1", written(tmp_path / "d.jsonl", *LINES), CONFIG, progress=False)
        assert result.version == 2


async def test_of_recorded_runs_the_sampled_tokens_are_imitated(connected: TrainerServer) -> None:
    async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await ChatART(policy="d2").ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
    async with TrainerClient() as trainer:
        await trainer.create_policy("d2")
        groups = await gather(
            graph, ["say yes", "say no"], 1, lambda one: float("yes" in one.output["messages"][-1].content),
            progress=False,
        )  # fmt: skip
        runs = [run for group in groups for run in group.trajectories]
        runs[0].evaluation = runs[0].reward == 0.0
        result = await trainer.sft("d2", runs, SFTConfig(min_reward=1.0))
        assert result.metrics["turns"] == 1
        assert result.metrics["trajectories_skipped"] == {"low_reward": 1}
        rows = JobQueue(connected.home.jobs).rows(result.metrics["job"]["id"])
        good = next(run for run in runs if run.reward == 1.0)
        kept = await trainer.completion(good.completion_ids[0])
    assert rows is not None
    assert rows.rows[0].ids == kept.prompt_token_ids + kept.token_ids


async def test_evaluations_are_not_imitated(connected: TrainerServer) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("d3")
        graph = StateGraph(MessagesState)
        model = ChatART(policy="d3")
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        runs = await gather(graph.add_edge(START, "model").compile(), ["say a"], 1, progress=False, evaluation=True)
        result = await trainer.sft("d3", runs)
    assert result.version == 0
    assert result.metrics["skipped"] == "nothing to imitate: 1 no_completions"


def test_the_command_line_says_what_was_done(connected: TrainerServer, tmp_path: Path) -> None:
    with connected.http() as http:
        http.post("/api/policies", json={"name": "d4"})
    unanswered = {"messages": [{"role": "user", "content": "hi"}]}
    file = written(tmp_path / "d.jsonl", *LINES, unanswered)
    done = CliRunner().invoke(build(), ["sft", "d4", str(file), "--lr", "1e-2", "--epochs", "2"])
    assert done.exit_code == 0, done.output
    assert "d4@1 is served: 2 answers of 6 tokens" in done.output
    assert "left out: 1 no_answer" in done.output
    assert "ended after 2 updates: all epochs" in done.output
    done = CliRunner().invoke(build(), ["sft", "d4", str(file), "--lr", "1e-2", "--validation", str(file)])
    assert done.exit_code == 1
    assert "d4 stays at version 1: nothing to imitate" in done.output
    apart = written(tmp_path / "v.jsonl", LINES[0])
    options = ["--epochs", "2", "--lr", "1e-2", "--validation", str(apart), "--patience", "0", "--max-seconds", "600"]
    done = CliRunner().invoke(build(), ["sft", "d4", str(written(tmp_path / "t.jsonl", LINES[0], LINES[1])), *options])
    assert "left out: 1 in_validation" in done.output or "the held-out loss did not fall" in done.output
    done = CliRunner().invoke(build(), ["sft", "d4", str(written(tmp_path / "e.jsonl", unanswered))])
    assert done.exit_code == 1
    assert "d4 stays at version 1: nothing to imitate" in done.output
