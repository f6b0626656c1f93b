"""The tables of the report."""

from __future__ import annotations

from art_langgraph import Evaluation, Trajectory
from art_mcp import MCPScenario, Measurement, ScenarioSet, Specialization
from art_mcp.scenarios.plan import Plan, Split, Step
from art_mcp.specialization.report.write import by_set
from art_mcp.specialization.verify import solved


def test_foreign_requests_have_a_column_of_their_own() -> None:
    outcomes: dict[Split, bool] = {"values": True, "foreign": False}
    runs = []
    for split, success in outcomes.items():
        scenario = MCPScenario.make(f"in {split}", Plan(reference=[Step(tool="look")], split=split))
        runs.append(Trajectory(scenario=scenario, reward=float(success), metrics={"success": 0.2 * success}))
    scenarios = ScenarioSet([MCPScenario.of_scenario(run.scenario) for run in runs])
    made = Specialization(server="x", server_version="1", policy="p", base_model="b", scenarios=scenarios)
    made.measurements["before"] = Measurement("before", Evaluation(runs, 0, solved))
    table = by_set(made)
    assert table.head == ["measured", "version", "headline", "new values", "foreign requests"]
    [[*_, headline, values, foreign]] = table.rows
    assert headline.startswith("1.000 (")
    assert values.startswith("1.000 (")
    assert foreign.startswith("0.000 (")
    assert made.summary()["scenarios"] == {"train": 0, "values": 1, "foreign": 1}
