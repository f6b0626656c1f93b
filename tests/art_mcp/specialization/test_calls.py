"""What a hint says of the calls of runs that failed."""

from __future__ import annotations

import json
from typing import Any

from art_langgraph import Trajectory
from art_langgraph.trajectory import CompletionCall, ToolCall
from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.calls import Schema, made_calls, schema_hints

SCHEMAS = {
    "show": Schema("show", ("path", "revision"), ("lines",)),
    "log": Schema("log", ("path",), (), {"order": ["new", "old"]}),
}


def asking(*steps: Step, **plan: Any) -> MCPScenario:
    return MCPScenario.make("do it", Plan(reference=list(steps), **plan))


def run(scenario: MCPScenario, *calls: tuple[str, Any], error: str = "") -> Trajectory:
    """A run that makes calls; with `error`, the server answers the last one with it."""
    made = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(calls)
    ]
    completion = CompletionCall(id="x", message={"role": "assistant", "tool_calls": made}, started=0.0)
    reached = []
    if error:
        name, arguments = calls[-1]
        last = f"c{len(calls) - 1}"
        reached = [ToolCall(tool=name, arguments=arguments, result=error, is_error=True, tool_call_id=last,
                            server="s", started=0.0)]  # fmt: skip
    return Trajectory(scenario=scenario, completions=[completion], tool_calls=reached)


def test_hints_name_what_the_schemas_ask_for() -> None:
    scenario, hint = asking(Step(tool="show")), schema_hints(SCHEMAS)
    missing = run(scenario, ("show", {"path": "a"}))
    other = run(scenario, ("show", {"path": "a", "revision": "b", "commit": "c"}))
    unknown = run(scenario, ("shows", {}))
    said = hint(scenario, [missing, missing, other, unknown])
    assert said is not None
    lines = said.splitlines()
    assert lines[:2] == ["Mind this:", "- show needs the argument revision."]
    assert "- show has no argument commit; it is called as show(path, revision; optional: lines)." in lines
    assert "- There is no tool shows. The tools are: show, log." in lines


def test_hints_repeat_the_errors_of_the_server() -> None:
    scenario, hint = asking(Step(tool="show")), schema_hints(SCHEMAS)
    said = hint(scenario, [run(scenario, ("show", {"path": "a", "revision": "b"}), error="bad revision 'b'\n")])
    assert said is not None
    assert "- show answered: bad revision 'b'." in said
    assert said.endswith("- The task is done by show(path, revision; optional: lines).")


def test_a_run_without_mistakes_in_its_calls_gets_the_names_of_the_right_tools() -> None:
    hint = schema_hints(SCHEMAS)
    chain = asking(Step(tool="log"), Step(tool="show"))
    assert hint(chain, [run(chain)]) == (
        "Mind this:\n- The task is done by log(path), then show(path, revision; optional: lines)."
    )
    talk = asking(reply="talk", kind="talk")
    assert hint(talk, [run(talk, ("log", {"path": "a"}))]) == (
        "Mind this:\n- No tool is needed for this task: answer at once."
    )
    impossible = asking(reply="refusal", kind="impossible")
    assert hint(impossible, [run(impossible)]) == "Mind this:\n- This cannot be done: say so, and say what is missing."


def test_values_of_an_enum_are_named() -> None:
    assert SCHEMAS["log"].problems({"path": "a", "order": "up"}) == [
        "log has no argument order; it is called as log(path)",
        "order of log is one of new, old, not up",
    ]
    assert SCHEMAS["log"].problems(None) == ["the arguments of log are no JSON object"]


def test_arguments_that_are_no_json_are_seen() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "log", "arguments": '{"path": '}}
    completion = CompletionCall(id="x", message={"role": "assistant", "tool_calls": [call]}, started=0.0)
    (made,) = made_calls(Trajectory(scenario=asking(Step(tool="log")), completions=[completion]))
    assert made.arguments is None
    assert str(made) == "log(…)"
