"""What is found of a run that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from langchain_openai import ChatOpenAI

from art_langgraph.llm.llm import Usage
from art_mcp import MCPScenario, ScenarioSet
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.settings import GenerationSettings, RunSettings, TrainingSettings, fingerprint
from art_mcp.specialization.stage_runner import Budget, StageRunner
from trainer_server.wire import ConfigError

SETTINGS = {"seed": 0, "policy": "agent"}


def scenario(number: int) -> MCPScenario:
    return MCPScenario.make(f"task {number}", Plan(reference=[Step(tool="look")]))


def test_a_directory_with_files_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty \(letter.txt, …\): it is no run .* another --output"):
        RunDirectory(tmp_path, SETTINGS, resume=False)
    with pytest.raises(ConfigError, match="no run to resume"):
        RunDirectory(tmp_path, SETTINGS, resume=True)
    with pytest.raises(ConfigError, match="needs output="):
        RunDirectory(None, SETTINGS, resume=True)
    with pytest.raises(ConfigError, match="is a file"):
        RunDirectory(tmp_path / "letter.txt", SETTINGS, resume=False)


def test_a_run_is_continued_with_the_same_settings_only(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "out", SETTINGS, resume=True)
    assert not first.resumed, "an empty directory is begun"
    with pytest.raises(ConfigError, match="another process works on the run"):
        RunDirectory(tmp_path / "out", SETTINGS, resume=True)
    first.close()
    again = RunDirectory(tmp_path / "out", SETTINGS, resume=True)
    assert again.resumed
    assert again.name == first.name
    again.close()
    with pytest.raises(ConfigError, match="seed was 0, is 1"):
        RunDirectory(tmp_path / "out", {**SETTINGS, "seed": 1}, resume=True)
    with pytest.raises(ConfigError, match="continue it by --resume"):
        RunDirectory(tmp_path / "out", SETTINGS, resume=False)


def test_half_a_line_spoils_no_other(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, SETTINGS, resume=True)
    for number in range(3):
        run.add_scenario(scenario(number))
        run.journal.note("part", stage="before", runs=number)
    for name in ("scenarios.jsonl", "progress.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"event": "end", "sta')
    run.close()
    again = RunDirectory(tmp_path, SETTINGS, resume=True)
    assert [one.id for one in again.kept_scenarios()] == [scenario(number).id for number in range(3)]
    assert [line["runs"] for line in again.journal.of("part", "before")] == [0, 1, 2]
    again.journal.note("end", stage="before")
    again.close()
    third = RunDirectory(tmp_path, SETTINGS, resume=True)
    assert third.journal.end_event("before") is not None
    third.save_scenarios(ScenarioSet([scenario(7)]))
    assert len(third.scenarios()) == 1


def test_stages_know_their_seconds_over_several_processes(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, SETTINGS, resume=True)
    for event, spent in (("begin", 10.0), ("step", 25.0), ("resume", 25.5), ("end", 40.0)):
        run.journal.seconds_spent = lambda spent=spent: spent
        run.journal.note(event, stage="rl")
    assert run.journal.seconds == {"rl": 30.0}
    assert run.journal.last == 40.0


def test_settings_are_compared_by_their_names() -> None:
    found = fingerprint(
        training=TrainingSettings(steps=3, config=fingerprint), runs=RunSettings(), output=Path("a"), graph=None
    )
    assert found["training.steps"] == 3
    assert found["training.config"] == "art_mcp.specialization.settings.fingerprint"
    assert found["runs.max_concurrency"] == 48
    assert (found["output"], found["graph"]) == ("a", None)


@pytest.mark.usefixtures("own_cache")
def test_keys_of_a_chat_model_are_not_kept() -> None:
    model = ChatOpenAI(model="gpt-x", api_key="sk-1", default_headers={"Authorization": "Bearer sk-2"})
    found = fingerprint(generation=GenerationSettings(model=model), judge=model)
    assert found["generation.model"] == found["judge"]
    assert "gpt-x" in found["judge"]
    assert "sk-" not in json.dumps(found)


def test_what_killed_processes_asked_of_language_models_counts(tmp_path: Path) -> None:
    for resumed in (False, True, True):
        run = RunDirectory(tmp_path / "out", SETTINGS, resume=resumed)
        before = run.journal.last_usage
        asked = {"judge": Usage(calls=2, prompt_tokens=30, cost=0.5)}
        run.journal.usage = lambda before=before, asked=asked: {
            name: before.get(name, Usage()) + now for name, now in asked.items()
        }
        run.journal.note("begin", stage="rl")
        asked["judge"].calls += 1
        asked["judge"].cost = None if resumed else 0.75
        run.journal.note("step", stage="rl")
        run.close()
    assert run.journal.last_usage == {"judge": Usage(calls=9, prompt_tokens=90, cost=None)}


def test_remarks_survive_a_kill_and_the_latest_about_a_thing_counts(tmp_path: Path) -> None:
    for resumed in (False, True):
        run = RunDirectory(tmp_path / "out", SETTINGS, resume=resumed)
        stage_runner = StageRunner(run, Budget(60.0), lambda line: None, lambda: None)
        notes = stage_runner.notes
        stage_runner.remark("rl", f"rl was left out: only {7 - resumed} s are left for it")
        if not resumed:
            stage_runner.remark("before", "version 0 could not be measured")
        run.close()
    assert (
        notes == stage_runner.notes == ["rl was left out: only 6 s are left for it", "version 0 could not be measured"]
    )
