"""What becomes of imported runs: the store, scenarios, demonstrations, rewards; again and again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import TrajectoryGroup, TrajectoryStore
from art_langgraph.client.demonstrations import load_conversations, sft_request
from art_langgraph.credit import compare, group_refs
from art_langgraph.datasets import load_scenarios
from art_langgraph.traces import import_runs
from tests.support.runs.foreign_runs import ANSWER, ASKED, CALLS, CONVERSATION, RAIN, WEATHER, essence, write
from trainer_server.wire import ConfigError


def generation(id: str, question: str = "Weather in Oslo?", **more: Any) -> dict[str, Any]:
    """A trace of Langfuse with one generation."""
    return {
        "id": f"o-{id}",
        "trace_id": id,
        "type": "GENERATION",
        "start_time": f"2026-03-0{more.pop('day', 1)} 12:00:00.000000",
        "end_time": None,
        "input": json.dumps([ASKED[0], {"role": "user", "content": question}]),
        "output": json.dumps(more.pop("said", ANSWER)),
        **more,
    }


def score(id: str, name: str, value: float) -> dict[str, Any]:
    return {"id": f"s-{id}-{name}", "trace_id": id, "name": name, "value": value, "data_type": "NUMERIC"}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    return {
        "store": TrajectoryStore(tmp_path / "runs.sqlite"),
        "scenarios": tmp_path / "scenarios.jsonl",
        "demonstrations": tmp_path / "demonstrations.jsonl",
    }


def test_an_export_becomes_runs_scenarios_demonstrations_and_rewards(tmp_path: Path, places: dict[str, Any]) -> None:
    rows = [
        *(generation(f"t{number}", f"Question {number % 3}") for number in range(6)),
        *(score(f"t{number}", "good", number % 2) for number in range(4)),
        "oops",
    ]
    file = write(tmp_path / "x.jsonl", *rows)
    for again in (False, True):
        found = import_runs("langfuse", file, **places)
        new = {"runs": 6, "scenarios": 3, "demonstrations": 3, "rewards": 4} if not again else {}
        for name, total in {"runs": 6, "scenarios": 6, "demonstrations": 4, "rewards": 4}.items():
            expected = new.get(name, 0)
            assert found.as_json()[name] == {"new": expected, "known": total - expected}, (again, name)
        assert found.skips.counts == {"not JSON": 1, "runs without a reward above 0, which are no demonstrations": 2}
    assert [scenario.input["messages"][1]["content"] for scenario in load_scenarios(places["scenarios"])] == [
        "Question 0",
        "Question 1",
        "Question 2",
    ]
    demonstrations = load_conversations(places["demonstrations"])
    assert sft_request(demonstrations).conversations == demonstrations
    assert {run.reward for run in places["store"]} == {0.0, 1.0, None}


def test_an_imported_run_is_never_trained(tmp_path: Path, places: dict[str, Any]) -> None:
    import_runs("langfuse", write(tmp_path / "x.jsonl", generation("t1"), score("t1", "good", 1)), **places)
    (run,) = places["store"].list()
    assert (run.imported, run.reward, run.reward_source) == ("langfuse", 1.0, "langfuse: good")
    assert (run.completion_ids, [call.id for call in run.completions]) == ([], [None])
    (group,) = group_refs([TrajectoryGroup(scenario=run.scenario, trajectories=[run])])
    assert [(ref.reward, ref.completions) for ref in group.trajectories] == [(None, [])]
    assert compare([run], "agent").groups == []
    with pytest.raises(ConfigError, match=f"{run.id} was imported from langfuse"):
        sft_request([run])
    places["store"].score(run.id, 0.5)  # no warning that nothing can be trained: that is known


def test_feedback_that_came_later_is_stored(tmp_path: Path, places: dict[str, Any]) -> None:
    import_runs("langfuse", write(tmp_path / "x.jsonl", generation("t1")), **places)
    later = write(tmp_path / "y.jsonl", generation("t1"), score("t1", "good", 0.75))
    assert import_runs("langfuse", later, **places).as_json()["rewards"] == {"new": 1, "known": 0}
    assert import_runs("langfuse", later, **places).as_json()["rewards"] == {"new": 0, "known": 1}
    assert [(run.reward, run.reward_source) for run in places["store"]] == [(0.75, "langfuse: good")]


def test_several_kinds_of_feedback_need_a_choice(tmp_path: Path, places: dict[str, Any]) -> None:
    file = write(tmp_path / "x.jsonl", generation("t1"), score("t1", "good", 1), score("t1", "polite", 0))
    found = import_runs("langfuse", file, **places)
    assert list(found.skips) == [
        "runs with several kinds of feedback, which get no reward (1: line 1); "
        "name one by --feedback NAME: good, polite"
    ]
    assert import_runs("langfuse", file, **places, feedback="polite").rewards.new == 1
    assert [(run.reward, run.metrics) for run in places["store"]] == [(0.0, {"good": 1.0, "polite": 0.0})]


def test_a_run_is_no_demonstration_before_its_feedback_is_chosen(tmp_path: Path, places: dict[str, Any]) -> None:
    """The file is only added to: a bad answer would stay in it when the feedback is named."""
    file = write(tmp_path / "x.jsonl", generation("t1"), score("t1", "good", 1), score("t1", "polite", 0))
    assert import_runs("langfuse", file, **places).demonstrations.new == 0
    assert import_runs("langfuse", file, **places, feedback="polite").demonstrations.new == 0
    assert not places["demonstrations"].exists()
    assert import_runs("langfuse", file, **places, feedback="good").demonstrations.new == 1


def test_a_dry_run_writes_nothing(tmp_path: Path, places: dict[str, Any]) -> None:
    found = import_runs("langfuse", write(tmp_path / "x.jsonl", generation("t1")), **places, dry_run=True)
    assert (found.read, found.scenarios.new, found.demonstrations.new) == (1, 1, 1)
    assert len(places["store"]) == 0
    assert not places["scenarios"].exists()
    assert not places["demonstrations"].exists()


def test_limit_since_and_the_least_reward(tmp_path: Path, places: dict[str, Any]) -> None:
    days = [generation(f"t{day}", f"Question {day}", day=day) for day in range(1, 6)]
    file = write(tmp_path / "x.jsonl", *days, score("t4", "good", 0.5), score("t5", "good", 0.9))
    from datetime import UTC, datetime

    since = datetime(2026, 3, 3, tzinfo=UTC).timestamp()
    found = import_runs("langfuse", file, **places, since=since, limit=2, dry_run=True)
    assert (found.read, found.skips.counts) == (2, {"runs that began before --since": 2})
    found = import_runs("langfuse", file, **places, min_reward=0.8, system_messages=False)
    assert (found.demonstrations.new, found.skips.counts) == (
        4,
        {"runs without a reward of 0.8 or more, which are no demonstrations": 1},
    )
    assert load_scenarios(places["scenarios"])[0].input == {"messages": [{"role": "user", "content": "Question 1"}]}


def test_what_cannot_be_imitated_is_a_scenario_all_the_same(tmp_path: Path, places: dict[str, Any]) -> None:
    image = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
    ]
    wrong = {**ANSWER, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{oops"}}]}
    file = write(
        tmp_path / "x.jsonl",
        {"messages": [{"role": "user", "content": image}, ANSWER], "tools": [WEATHER]},
        {"messages": [*ASKED, wrong]},
        {"messages": ASKED},
    )
    found = import_runs("openai-jsonl", file, **places)
    assert (found.read, found.scenarios.new, found.demonstrations.new) == (3, 2, 0)
    reasons = list(found.skips)
    assert "a list as content must hold text parts" in reasons[0]
    assert "arguments of f must be a JSON object" in reasons[1]
    assert reasons[2].startswith("runs without an answer, which are no demonstrations (1: line 3)")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"role": "assistant", "content": None}, "an answer has neither content nor calls of tools"),
        ({"role": "assistant", "content": None, "refusal": "No."}, "an answer has neither content nor calls of tools"),
        ({"role": "assistant", "content": "[HumanMessage(content='Hi')]"}, "an answer is Python's text of objects"),
        ({"role": "assistant", "content": "Foo(a='x')"}, "an answer is Python's text of objects"),
        (
            {"role": "assistant", "content": "content='Hi' additional_kwargs={}"},
            "an answer is Python's text of objects",
        ),
    ],
)
def test_what_nobody_said_is_not_imitated(tmp_path: Path, places: dict[str, Any], answer: Any, why: str) -> None:
    file = write(tmp_path / "x.jsonl", {"messages": [*ASKED, answer]})
    found = import_runs("openai-jsonl", file, **places)
    assert (found.read, found.scenarios.new, found.demonstrations.new) == (1, 1, 0)
    assert found.skips.counts == {f"runs that cannot be imitated: {why}": 1}


def test_what_a_tool_returned_may_be_pythons_text_of_objects(tmp_path: Path, places: dict[str, Any]) -> None:
    texts = {**RAIN, "content": "[Document(page_content='rain')]"}
    file = write(tmp_path / "x.jsonl", {"messages": [*ASKED, CALLS, texts, ANSWER], "tools": [WEATHER]})
    assert import_runs("openai-jsonl", file, **places).demonstrations.new == 1


def test_a_call_in_openais_older_form_is_a_call(tmp_path: Path, places: dict[str, Any]) -> None:
    call = {"role": "assistant", "content": None, "function_call": CALLS["tool_calls"][0]["function"]}
    file = write(tmp_path / "x.jsonl", {"messages": [*ASKED, call], "tools": [WEATHER]})
    import_runs("openai-jsonl", file, **places)
    (demonstration,) = load_conversations(places["demonstrations"])
    assert essence(demonstration.messages) == essence([*ASKED, CALLS])


def test_failed_calls_are_counted(tmp_path: Path, places: dict[str, Any]) -> None:
    failed = {"level": "ERROR", "status_message": "timeout", "parent_observation_id": "o"}
    inside = {"trace_id": "t2", "parent_observation_id": "o"}
    root = {**generation("t2"), "id": "o", "type": "SPAN"}
    file = write(
        tmp_path / "x.jsonl",
        {**root, "trace_id": "t1", "id": "o1"},
        generation("t1", **failed),
        root,
        {**generation("t2", **inside), "id": "o2"},
        {**generation("t2", "And then?", **inside), **failed, "id": "o3"},
    )
    found = import_runs("langfuse", file, **places)
    assert (found.read, found.demonstrations.new) == (2, 1)
    assert found.skips.counts == {"runs whose calls all failed, which are no demonstrations": 1}
    assert found.gaps.counts == {"runs with failed calls, whose answers are in no demonstration": 1}


def test_a_file_of_another_kind_is_not_appended_to(tmp_path: Path, places: dict[str, Any]) -> None:
    places["demonstrations"].write_text('{"x": 1}\n')
    with pytest.raises(ConfigError, match=r"demonstrations.jsonl, line 1 is no conversation"):
        import_runs("langfuse", write(tmp_path / "x.jsonl", generation("t1")), **places)


def test_many_runs_in_any_order(tmp_path: Path, places: dict[str, Any]) -> None:
    rows = [generation(f"t{number}", f"Question {number}") for number in range(450)]
    scores = [score(f"t{number}", "good", 1) for number in range(450)]
    seen: list[int] = []
    file = write(tmp_path / "x.jsonl.gz", *scores, *reversed(rows))
    found = import_runs("langfuse", file, **places, advance=seen.append)
    assert (found.runs.new, found.demonstrations.new, found.rewards.new) == (450, 450, 450)
    assert seen == sorted(seen)
    assert seen[-1] == file.stat().st_size


def test_an_imported_run_reads_like_any_other(tmp_path: Path, places: dict[str, Any]) -> None:
    import_runs("openai-jsonl", write(tmp_path / "x.jsonl", {"messages": CONVERSATION, "tools": [WEATHER]}), **places)
    (run,) = places["store"].list()
    assert run.final_text == ANSWER["content"]
    assert essence(load_conversations(places["demonstrations"])[0].messages) == essence(CONVERSATION)


def test_an_unknown_system_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no system 'wandb': langsmith, langfuse, otel, openai-jsonl"):
        import_runs("wandb", "x.jsonl")
