"""`trajectories list | show | stats`, `feedback`, `score`: what people see of recorded runs, and how they name one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from typer.testing import CliRunner, Result

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.cli.main import build
from art_langgraph.trajectory import CompletionCall, NodeRun
from tests.support.patience import PATIENCE
from tests.support.runs.groups import group
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common.jsonl import write_jsonl
from trainer_server.wire import ConfigError


def recorded(id: str, question: str = "How far is the moon?", **facts: Any) -> Trajectory:
    calls = [
        CompletionCall(
            id="chatcmpl-1", model="agent", version=3, started=1.0, message={"role": "assistant", "content": "Far."}
        ),
        CompletionCall(id=None, model="gpt-4o", started=2.0),
    ]
    return Trajectory(id=id, scenario=Scenario.of(question), completions=calls, graph_id="chat", **facts)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrajectoryStore:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    return TrajectoryStore()


def art(*words: str) -> Result:
    return CliRunner().invoke(build(), list(words))


def test_ids_are_whole_on_a_narrow_terminal(store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    trajectory = recorded(f"tr-{'0123456789abcdef' * 2}", "Why? " * 100, error="ValueError: " + "x" * 300)
    store.add(trajectory)
    for columns in ("80", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        for terminal in ("0", "1"):
            monkeypatch.setenv("TTY_COMPATIBLE", terminal)
            assert trajectory.id in art("trajectories", "list").output


_ALL = """
import sys
from art_langgraph.cli.main import main
for words in ("list", "list --json", "show run-1", "export all.jsonl", "export all.parquet",
              "import all.jsonl --store other.sqlite", "import all.parquet --store third.sqlite"):
    sys.argv = ["art-langgraph", "trajectories", *words.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
"""


def test_half_a_surrogate_pair_in_a_run_can_be_printed_and_exported(store: TrajectoryStore, tmp_path: Path) -> None:
    run = recorded("run-1", "half \ud83d", error="broken \ud83d", output={"b": "\ud83d"})
    store.add(run)
    done = subprocess.run(
        [sys.executable, "-c", _ALL], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict", "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("half \\ud83d") == 3
    assert TrajectoryStore(tmp_path / "other.sqlite").get("run-1") == run
    assert TrajectoryStore(tmp_path / "third.sqlite").get("run-1") == run
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("all.jsonl", "all.parquet")} == {0o600}


def test_a_long_text_of_a_tree_says_how_much_is_left_out(store: TrajectoryStore) -> None:
    run = recorded("run-1")
    run.completions[0].message = {"role": "assistant", "content": "x" * 1000}
    store.add(run)
    assert "200 more characters]" in art("trajectories", "show", "run-1").output


def test_list_and_show_name_the_question_and_who_answered(store: TrajectoryStore) -> None:
    store.add(recorded("tr-1", run_id="run-1"))
    store.add(recorded("tr-2", "Why? " * 100))
    listed = art("trajectories", "list").output
    for part in ("How far is the moon?", "agent@3", "gpt-4o", "Why? Why?", "…"):
        assert part in listed
    shown = art("trajectories", "show", "tr-1").output
    assert "question: How far is the moon?" in shown
    assert "answered by: agent@3, gpt-4o" in shown


@pytest.mark.parametrize(
    ("given", "question"),
    [
        ({"messages": [HumanMessage("first"), {"role": "assistant", "content": "a"}, ("user", "last")]}, "last"),
        ("a text", "a text"),
        ({"city": "Oslo"}, '{"city": "Oslo"}'),
        ({"messages": [3]}, '{"messages": [3]}'),
    ],
)
def test_the_question_of_any_input(store: TrajectoryStore, given: Any, question: str) -> None:
    store.add(Trajectory(id="tr-1", scenario=Scenario(input=given)))
    (row,) = json.loads(art("trajectories", "list", "--json").output)
    assert row["question"] == question


def test_lists_are_json_for_programs(store: TrajectoryStore) -> None:
    store.add(recorded("tr-1", reward=0.5))
    (row,) = json.loads(art("trajectories", "list", "--json").output)
    assert (row["id"], row["versions"], row["reward"], row["tool_calls"]) == ("tr-1", ["agent@3", "gpt-4o"], 0.5, 0)
    (row,) = json.loads(art("trajectories", "stats", "--json").output)
    assert (row["graph"], row["runs"], row["mean reward"]) == ("chat", 1, 0.5)


EMPTY = ("trajectories list", "trajectories stats", "trajectories export all.jsonl", "score --reward math:exp")


@pytest.mark.parametrize("command", EMPTY)
def test_where_there_is_no_run_a_command_says_what_writes_them(
    command: str, store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = art(*command.split()).output
    assert f"{store.name} has no runs" in said
    assert "train(…, store=TrajectoryStore())" in said
    with store.session() as session, session.batch() as batch:
        batch.begin(recorded("tr-1"))
    assert "1 have begun, and are under way or were cut off" in art(*command.split()).output
    store.add(recorded("tr-1", reward=0.5))
    assert "none of them fits these options" in art(*command.split(), "--graph", "other").output
    assert "fits" not in art(*command.split()).output


@pytest.mark.parametrize("command", [*EMPTY, "trajectories show tr-1", "trajectories prune --keep-days 1 --yes"])
def test_a_store_that_does_not_exist_is_not_made_by_a_query(command: str, tmp_path: Path) -> None:
    refusal = art(*command.split(), "--store", str(tmp_path / "runs.sqlite")).exception
    assert "runs.sqlite does not exist: name the store" in str(refusal)
    assert not list(tmp_path.iterdir())


def test_the_beginning_of_an_id_names_a_run(store: TrajectoryStore) -> None:
    store.add(recorded("tr-aa1", run_id="0198-x"))
    store.add(recorded("tr-aa", run_id="0199-y"))
    store.add(recorded("tr-b_1"))
    for given, id in (("tr-b", "tr-b_1"), ("0198", "tr-aa1"), ("tr-aa1", "tr-aa1"), ("tr-aa", "tr-aa")):
        assert f"{id}: reward 1" in art("feedback", given, "--score", "1").output
        assert id in art("trajectories", "show", given).output


def test_a_run_that_has_not_ended_takes_no_reward(store: TrajectoryStore) -> None:
    with store.session() as session, session.batch() as batch:
        batch.begin(recorded("tr-open"))
    for given in ("tr-o", "tr-open"):
        error = art("feedback", given, "--score", "1").exception
        assert isinstance(error, ConfigError)
        assert str(error).startswith("tr-open has not ended, or was cut off")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("tr-a", r"2 ids begin with 'tr-a': tr-aa1, tr-aa2\. Give more characters"),
        ("01", r"2 ids begin with '01': 0198-x, 0199-y"),
        ("tr-%", r"no run 'tr-%'; `art-langgraph trajectories list`"),
        ("nothing", "no run 'nothing'"),
    ],
)
def test_an_id_that_names_no_single_run_is_an_error(store: TrajectoryStore, given: str, why: str) -> None:
    store.add(recorded("tr-aa1", run_id="0198-x"))
    store.add(recorded("tr-aa2", run_id="0199-y"))
    for words in (("trajectories", "show", given), ("feedback", given, "--score", "1")):
        error = art(*words).exception
        assert isinstance(error, ConfigError)
        with pytest.raises(ConfigError, match=why):
            raise error


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_half_a_surrogate_pair_survives_a_file(store: TrajectoryStore, tmp_path: Path, kind: str) -> None:
    half = "half a pair \ud83d"
    trajectory = recorded("tr-1", half, error=half)
    store.add(trajectory)
    file = tmp_path / f"out.{kind}"
    assert "1 trajectories" in art("trajectories", "export", str(file)).output
    assert "1 added" in art("trajectories", "import", str(file), "--store", str(tmp_path / "other.sqlite")).output
    assert TrajectoryStore(tmp_path / "other.sqlite").get("tr-1") == trajectory


def test_score_keeps_rewards_by_node_and_of_completions(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scores_parts.py").write_text(
        "from art_langgraph import NodeRewards\n"
        "def by_node(run):\n    return NodeRewards(planner=1.0, worker=0.5)\n"
        "def by_completion(run):\n    run.completions[0].reward = 0.25\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    store.add(recorded("tr-1"))
    assert "1 scored, 0 failed" in art("score", "--reward", "scores_parts:by_node").output
    (run,) = store.list()
    assert (run.reward, run.node_rewards) == (1.5, {"planner": 1.0, "worker": 0.5})
    assert "rewards by node: planner 1.000 · worker 0.500" in art("trajectories", "show", "tr-1").output
    assert "1 scored, 0 failed" in art("score", "--reward", "scores_parts:by_completion", "--again").output
    (run,) = store.list()
    assert (run.reward, run.node_rewards, run.completions[0].reward) == (None, None, 0.25)
    assert "0 scored, 0 failed" in art("score", "--reward", "scores_parts:by_node").output
    art("feedback", "tr-1", "--score", "0")
    (run,) = store.list()
    assert (run.reward, run.completions[0].reward) == (0.0, None)


def test_score_says_which_runs_it_left_alone(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scored_by.py").write_text("def reward(run):\n    return 0.25\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    store.add(recorded("tr-1", reward=1.0))
    store.add(recorded("tr-2"))
    done = art("score", "--reward", "scored_by:reward").output
    assert "1 scored, 0 failed" in done
    assert "1 runs had a reward already; --again" in done
    assert "2 scored" in art("score", "--reward", "scored_by:reward", "--again").output


def test_a_reward_stays_where_a_new_score_fails(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's, say, where a judge has no other run of the scenario to compare with."""
    (tmp_path / "scored_badly.py").write_text("def reward(run):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    store.add(recorded("tr-1", reward=1.0))
    for words in (("--reward", "scored_badly:reward"), ("--judge", "art/base", "--judge-url", "http://127.0.0.1:1/v1")):
        done = art("score", *words, "--again")
        assert "0 scored, 1 failed" in done.output
        assert "; the earlier reward stays" in done.output
        assert [run.reward for run in store] == [1.0]


def test_score_leaves_out_a_run_that_waits_for_an_answer(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scored_when_ended.py").write_text("def reward(run):\n    return 0.25\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    node = NodeRun(node="n", namespace="n:1", attempt="a", interrupted=True, started=1.0, seconds=1.0)
    store.add(recorded("tr-1", nodes=[node]))
    store.add(recorded("tr-2"))
    done = art("score", "--reward", "scored_when_ended:reward").output
    assert "1 scored, 0 failed" in done
    assert "1 runs are left out: they wait for the answer to an interrupt" in done


@pytest.mark.usefixtures("connected")
def test_a_run_without_the_question_of_its_thread_is_not_replayed(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replays.py").write_text(
        "from langchain_core.runnables import RunnableLambda\ngraph = RunnableLambda(str)"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    store.add(recorded("tr-1", "Command(resume='yes')", resumes="newest", thread_id="t"))
    replay = ("--replay", "2", "--graph-object", "replays:graph", "--reward", "replays:graph")
    done = art("train", "--from-store", "--policy", "agent", *replay)
    assert "1 runs are left out: they resumed a thread" in done.output
    assert "replaying 0 scenarios" in done.output


def test_show_says_how_much_of_what_was_sampled_the_next_prompts_have(connected: TrainerServer, tmp_path: Path) -> None:
    store, messages, calls = TrajectoryStore(tmp_path / "runs.sqlite"), [], []
    for number, content in enumerate(["say a", "say b", "say c"]):
        messages.append({"role": "user", "content": content})
        with connected.http() as http:
            body = {"model": "agent", "max_tokens": 9, "messages": messages}
            answer = http.post("/v1/chat/completions", json=body, headers={"X-ART-Rollout": "shown"}).json()
        messages.append(answer["choices"][0]["message"])
        calls.append(CompletionCall(id=answer["id"], model="agent", version=0, started=float(number)))
    trajectory = recorded("tr-1").model_copy(update={"completions": calls})
    store.add(trajectory)
    shown = art("trajectories", "show", "tr-1", "--store", str(store.path)).output
    assert "prefix drift: 0.0%, 0 of 2 sampled tokens; next prompts: 2 extended" in " ".join(shown.split())


def test_show_needs_no_server(store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ART_BASE_URL", raising=False)
    monkeypatch.delenv("ART_API_KEY", raising=False)
    run = recorded("tr-1")
    run.completions[1].id = "chatcmpl-2"
    store.add(run)
    shown = art("trajectories", "show", "tr-1").output
    assert "prefix drift: not known, the server has the tokens: no token for" in " ".join(
        shown.replace("│", "").split()
    )
    assert "answered by" in shown


def test_dead_groups_are_reported_with_their_cause_and_remedy(store: TrajectoryStore) -> None:
    told = "Error: get_town is not a valid tool, try one of [city]."
    for name, rewards in (("lost", (0.0, 0.0)), ("alive", (0.0, 1.0))):
        for one in group(
            Scenario(id=name, input=f"question of {name}"), *rewards, calls=[("get_town", told)]
        ).trajectories:
            store.add(one)
    text = art("trajectories", "dead-groups").output
    assert "1 of 2 groups taught nothing; 1 of 2 scenarios never taught anything:" in text
    assert "called the tool 'get_town', which does not exist" in text
    assert "What to do: tell the policy the names of the tools" in text
    (only,) = json.loads(art("trajectories", "dead-groups", "--json").output)["scenarios"]
    assert (only["id"], only["why"], only["runs"]) == ("lost", "failed", 2)
    missing = art("trajectories", "dead-groups", "--policy", "other")
    assert isinstance(missing.exception, ConfigError)
    assert "has no run of 'other'" in str(missing.exception)


def test_a_run_that_had_only_begun_is_imported(store: TrajectoryStore, tmp_path: Path) -> None:
    with store.session() as session, session.batch() as batch:
        batch.begin(recorded("tr-1"))
    file = tmp_path / "store.not-stored-1.jsonl"
    write_jsonl(file, [recorded("tr-1", reward=0.5)])
    assert "1 added, 0 were there already" in art("trajectories", "import", str(file)).output
    assert [run.reward for run in store] == [0.5]
    assert store.unfinished() == []
    assert "0 added, 1 were there already" in art("trajectories", "import", str(file)).output


@pytest.mark.parametrize("words", [("x.jsonl",), ("x.jsonl", "--format", "trl"), ("folder.parquet",)])
def test_a_file_that_cannot_be_written_is_named(store: TrajectoryStore, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "folder.parquet").mkdir()
    folder = tmp_path if words[0].startswith("folder") else tmp_path / "missing"
    error = art("trajectories", "export", str(folder / words[0]), *words[1:]).exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{folder / words[0]} cannot be written: ")


def test_a_file_that_is_no_parquet_of_runs_is_named(store: TrajectoryStore, tmp_path: Path) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    (tmp_path / "text.parquet").write_text("text")
    parquet.write_table(arrow.table({"question": ["?"]}), tmp_path / "other.parquet")
    for name, why in (
        ("none.parquet", " cannot be read: No such file or directory"),
        ("text.parquet", " is no Parquet file: "),
        ("other.parquet", ", row 1 is no trajectory: it has no 'record'"),
    ):
        error = art("trajectories", "import", str(tmp_path / name)).exception
        assert isinstance(error, ConfigError)
        assert str(error).startswith(f"{tmp_path / name}{why}")


def test_a_reward_that_is_no_function_is_refused(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scored_by_a_number.py").write_text("reward = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    store.add(recorded("tr-1"))
    done = art("score", "--reward", "scored_by_a_number:reward")
    assert "scored_by_a_number:reward is no function, but int: 1" in str(done.exception)
    assert [run.reward_error for run in store] == [None]
