"""Which tools a set covers, why it does not cover the others, and what helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art_mcp import Catalog, MCPScenario, ScenarioSet, generate_scenarios
from art_mcp.scenarios.catalog import CatalogTool, parameter_forms
from art_mcp.scenarios.coverage import (
    EMPTY_REMEDY,
    MAX_LINES,
    NEED_REMEDY,
    UNSTABLE_CHANGES,
    UNSTABLE_REMEDY,
    WORLD_REMEDY,
    ToolCoverage,
    change_risk,
    coverage_json,
    coverage_warning,
    unknown_value,
    unreadable_tool,
)
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.scenarios.scenario_set import DroppedTask
from trainer_server.common.jsonl import read_jsonl, write_jsonl

WORLD = "/world/book.xlsx"


def scenario(*calls: tuple[str, dict[str, Any]], executed: bool = True, **plan: Any) -> MCPScenario:
    steps = [Step(tool=tool, arguments=arguments) for tool, arguments in calls]
    error = plan.get("reply") == "refusal"
    observations = [Observation(text="x", is_error=error) for _ in steps] if executed else []
    return MCPScenario.make(f"Task of {calls} {plan}", Plan(reference=steps, observations=observations, **plan))


def dropped(tool: str, error: str, kind: Any = "error") -> DroppedTask:
    return DroppedTask(task="x", tools=["first", tool], kind=kind, reason=f"call 2, {tool}: {error}")


def of(tool: str, *scenarios: MCPScenario, **facts: Any) -> ToolCoverage:
    """The coverage of one tool."""
    (coverage,) = ScenarioSet(list(scenarios), offered=[tool], **facts).tool_coverage
    return coverage


def test_two_different_calls_that_worked_cover_a_tool() -> None:
    twice = of("a", scenario(("a", {"n": 1})), scenario(("a", {"n": 2}), ("a", {"n": 1})))
    assert twice == ToolCoverage("a", "covered", 2, 2)
    same = of("a", scenario(("a", {"n": 1})), scenario(("a", {"n": 1}), ("a", {"n": 1})))
    assert (same.status, same.calls, same.scenarios) == ("partly", 1, 2)
    assert same.reason == 'only one call of it worked, {"n":1}'


@pytest.mark.parametrize(
    ("arguments", "parameters", "status"),
    [
        ({}, None, "covered"),
        ({}, {}, "covered"),
        ({}, {"limit": "json"}, "partly"),
        ({"path": WORLD}, None, "covered"),
        ({"path": WORLD}, {"path": "text"}, "covered"),
        ({"path": "{world:book}"}, None, "covered"),
        ({"path": f"{WORLD}/inner"}, None, "partly"),
        ({"path": WORLD, "sheet": "A"}, {"path": "text", "sheet": "text"}, "partly"),
        ({"unit": "one"}, {}, "covered"),
    ],
)
def test_one_call_covers_a_tool_whose_arguments_cannot_vary(
    arguments: dict[str, Any], parameters: Any, status: str
) -> None:
    known = {} if parameters is None else {"parameters": {"a": parameters}}
    assert of("a", scenario(("a", arguments)), **known).status == status


def test_a_tool_that_has_defaults_has_arguments_that_vary() -> None:
    step = Step(tool="a", defaults={"limit": 5})
    one = MCPScenario.make("x", Plan(reference=[step], observations=[Observation(text="x")]))
    assert of("a", one).status == "partly"


def test_calls_that_must_fail_or_were_not_executed_cover_a_tool_in_part() -> None:
    failing = [scenario(("a", {"n": n}), reply="refusal", kind="impossible") for n in range(3)]
    coverage = of("a", *failing, dropped=[dropped("a", "it is on loan already")])
    assert (coverage.status, coverage.calls) == ("partly", 0)
    assert coverage.reason == (
        "it is called only in tasks that must fail; every call failed: it is on loan already (1 call)"
    )
    drafts = of("a", *(scenario(("a", {"n": n}), executed=False) for n in range(3)))
    assert (drafts.status, drafts.reason) == ("partly", "its calls were not executed")
    assert "catalog" in drafts.remedy


def test_the_most_frequent_error_of_a_tool_is_its_reason_with_the_count() -> None:
    errors = [f"unknown sheet 'S{n}'. Available: A" for n in range(12)]
    coverage = of(
        "a", dropped=[dropped("a", error) for error in errors], parameters={"a": {"path": "text", "sheet": "text"}}
    )
    assert coverage.status == "not"
    assert coverage.reason == "every call failed: unknown sheet 'S0'. Available: A (12 calls)"
    assert coverage.remedy == "--resource sheet=sheet.txt, a file with one value on each line"
    mixed = of("a", dropped=[dropped("a", "no value", "empty"), *(dropped("a", error) for error in errors)])
    assert mixed.reason == "12 of 13 calls that failed: unknown sheet 'S0'. Available: A"
    empty = of("a", dropped=[dropped("a", "the result is []", "empty")] * 2)
    assert empty.reason == "no call gave anything to ask for: the result is [] (2 calls)"
    assert of("a", dropped=[dropped("a", "enough", "surplus")]).reason == "no task was made of it"


def test_an_error_counts_for_the_tool_that_gave_it() -> None:
    tasks = [DroppedTask(task="x", tools=["a", "b"], kind="error", reason="call 1, a: broken")]
    a, b = ScenarioSet(offered=["a", "b"], dropped=tasks).tool_coverage
    assert (a.reason, b.reason) == ("every call failed: broken (1 call)", "no task was made of it")


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (unknown_value("sheet"), "--resource sheet=sheet.txt, a file with one value on each line"),
        (unknown_value("rows"), "--resource rows=rows.json, a JSON list of values"),
        (unknown_value("rows.*"), "--resource rows=rows.json, a JSON list of values"),
        (unknown_value("rows.*.name"), "--resource rows=rows.json, a JSON list of values"),
        (f"every call failed: {UNSTABLE_CHANGES} (2 calls)", UNSTABLE_REMEDY),
        (change_risk("its name says so"), WORLD_REMEDY),
        (unreadable_tool("no schema"), "mend the server's list of tools"),
        ("every call failed: could not connect to the database (12 calls)", NEED_REMEDY),
        ("every call failed: API key missing (12 calls)", NEED_REMEDY),
        ("every call failed: no access to /data. To override, set SHELF_ALLOW_ALL=true (3 calls)", NEED_REMEDY),
        ("every call failed: KeyError: 'x' (2 calls)", "--resource path=path.txt, a file with one value on each line"),
        ("the time was over", "give more time (--seconds, or --minutes of specialize) or more scenarios (-n)"),
    ],
)
def test_every_reason_has_its_remedy(reason: str, remedy: str) -> None:
    coverage = of("a", reasons={"a": reason}, parameters={"a": {"path": "text", "sheet": "text", "rows": "json"}})
    assert (coverage.reason, coverage.remedy) == (reason, remedy)


def test_a_place_of_the_world_is_no_parameter_to_give_values_of() -> None:
    one = scenario(("a", {"path": WORLD, "sheet": "A"}))
    coverage = of("a", one, parameters={"a": {"path": "text", "sheet": "text"}})
    assert coverage.remedy.startswith("--resource sheet=sheet.txt")


def test_a_place_in_calls_of_other_tools_is_none_either() -> None:
    """Such as the repository of every tool of a Git server, for one of which no call worked."""
    found = ScenarioSet(
        [scenario(("log", {"repo": WORLD}))],
        offered=["log", "commit", "diff"],
        dropped=[dropped("commit", "nothing is staged"), dropped("diff", "the result is ''", "empty")],
        parameters={"log": {"repo": "text"}, "commit": {"repo": "text", "message": "text"}, "diff": {"repo": "text"}},
    ).tool_coverage
    _, commit, diff = found
    assert commit.remedy == "--resource message=message.txt, a file with one value on each line"
    assert diff.remedy == EMPTY_REMEDY


def test_parameters_are_in_the_order_in_which_a_table_helps() -> None:
    schema = {
        "type": "object",
        "required": ["mode", "rows", "sheet", "only"],
        "properties": {
            "note": {"type": "string"},
            "mode": {"enum": ["a", "b"]},
            "only": {"const": 1},
            "limit": {"type": "integer", "default": 5},
            "sheet": {"type": "string"},
            "rows": {"type": "array", "items": {"type": "string"}},
            "all": {"type": "boolean"},
        },
    }
    forms = parameter_forms(CatalogTool(name="a", input_schema=schema))
    assert list(forms.items()) == [
        ("sheet", "text"),
        ("rows", "json"),
        ("note", "text"),
        ("mode", "choice"),
        ("limit", "json"),
        ("all", "choice"),
    ]


def generated() -> ScenarioSet:
    """One tool is covered, one in part, three are not."""
    scenarios = [scenario(("a", {"n": n})) for n in range(3)] + [scenario(("b", {"n": 1}))]
    reasons = {"c": change_risk("its name"), "d": unknown_value("sheet"), "e": unreadable_tool("no schema")}
    return ScenarioSet(scenarios, offered=["a", "b", "c", "d"], reasons=reasons, parameters={"d": {"sheet": "text"}})


def test_the_report_counts_the_tools_and_tells_of_each_that_is_not_covered() -> None:
    lines = generated().report().splitlines()
    at = lines.index("tools: 1 covered, 1 partly, 3 not (of 5)")
    assert lines[at + 1 : at + 5] == [
        'b: only one call of it worked, {"n":1}',
        f"c: it may change something: its name; {WORLD_REMEDY}",
        "d: no value is known for `sheet`; --resource sheet=sheet.txt, a file with one value on each line",
        "e: it cannot be read: no schema; mend the server's list of tools",
    ]


def test_coverage_as_json_has_the_reasons() -> None:
    told = coverage_json(generated().tool_coverage)
    assert told["covered"] == ["a"]
    assert [entry["tool"] for entry in told["partly"]] == ["b"]
    assert told["not"][1] == {
        "tool": "d",
        "calls": 0,
        "scenarios": 0,
        "reason": "no value is known for `sheet`",
        "remedy": "--resource sheet=sheet.txt, a file with one value on each line",
    }


def test_fewer_than_half_of_the_tools_is_a_warning_with_what_helps() -> None:
    warning = coverage_warning(generated().tool_coverage)
    assert warning.startswith("only 1 of 5 tools are covered, and a model learns no others. What helps: ")
    assert f"for c: {WORLD_REMEDY}" in warning
    half = ScenarioSet(generated().scenarios, offered=["a", "b"]).tool_coverage
    assert coverage_warning(half) == ""


def test_a_set_of_a_users_own_has_counts_alone() -> None:
    own = ScenarioSet([scenario(("a", {"n": 1}), executed=False), scenario(("b", {}))])
    assert "tools: 1 covered, 1 partly, 0 not (of 2)\ndropped" in own.report()
    assert coverage_warning(own.tool_coverage) == ""


def test_a_server_of_many_tools_does_not_flood_the_report() -> None:
    report = ScenarioSet(offered=[f"t{n}" for n in range(500)]).report()
    assert report.count("no task was made") == MAX_LINES
    assert f"and {500 - MAX_LINES} more tools" in report


def test_reasons_survive_the_disk_and_files_without_them_load(tmp_path: Path) -> None:
    given = generated()
    given.save(tmp_path / "set.jsonl")
    assert ScenarioSet.load(tmp_path / "set.jsonl") == given
    assert given.split().reasons == given.keep_learnable().reasons == given.reasons
    file = tmp_path / "set.dropped.jsonl"
    (line,) = read_jsonl(file, dict)
    write_jsonl(file, [{"offered": line["offered"], "notes": line["notes"]}])
    assert ScenarioSet.load(tmp_path / "set.jsonl").reasons == {}


def test_small_talk_is_no_call() -> None:
    talk = MCPScenario.make("Thanks!", Plan(kind="talk", reply="talk"))
    assert not ScenarioSet([talk]).has_calls
    assert ScenarioSet([talk, scenario(("a", {}))]).has_calls


async def test_tools_that_may_change_something_are_told_by_the_generator() -> None:
    found = await generate_scenarios(Catalog(tools=[CatalogTool(name="delete_a"), CatalogTool(name="get_b")]), 4)
    delete, get = found.tool_coverage
    assert delete.status == "not"
    assert delete.reason.startswith("it may change something: ")
    assert (get.status, get.reason) == ("partly", "its calls were not executed")
