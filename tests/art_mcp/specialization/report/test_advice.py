"""What a report says to do next."""

from __future__ import annotations

from art_langgraph import Evaluation, Trajectory
from art_mcp import MCPScenario, ScenarioSet
from art_mcp.scenarios.plan import Plan, Split, Step
from art_mcp.specialization.measurement import Measurement
from art_mcp.specialization.report.failures import REMEDIES, WORDS, advice, clusters
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.verify import solved


def specialization(rates: dict[str, dict[Split, float]], rewards: list[float]) -> Specialization:
    """Measurements of 50 scenarios in each set, of which a share is solved."""
    made = Specialization(server="s", server_version="", policy="p", base_model="b", scenarios=ScenarioSet())
    for stage, sets in rates.items():
        runs = []
        for split, rate in sets.items():
            for number in range(50):
                success = number < 50 * rate
                plan = Plan(reference=[Step(tool="look")], split=split)
                scenario = MCPScenario.make(f"{split} {number}", plan)
                runs.append(Trajectory(scenario=scenario, reward=float(success), metrics={"success": 0.2 * success}))
        made.measurements[stage] = Measurement(stage, Evaluation(runs, 1, solved))
    made.steps = [{"step": at, "version": at, "reward": reward} for at, reward in enumerate(rewards, 1)]
    return made


def told(made: Specialization) -> str:
    evaluation = list(made.measurements.values())[-1].evaluation
    done = [run.id for run in evaluation.trajectories if evaluation.succeeded(run)]
    return "\n".join(advice(made, clusters(evaluation.trajectories, done, {})))


def test_the_most_frequent_failure_names_its_remedy() -> None:
    made = specialization({"before": {"values": 0.0, "phrasings": 0.0}}, [])
    assert REMEDIES.keys() == WORDS.keys()
    assert "(100 of 100 runs): called no tool." in told(made)
    assert REMEDIES["no call"] in told(made)


def test_sets_that_are_behind_are_named() -> None:
    before: dict[Split, float] = {"values": 0.0, "phrasings": 0.0, "combinations": 0.0}
    after: dict[Split, float] = {"values": 0.9, "phrasings": 0.6, "combinations": 0.2}
    said = told(specialization({"before": before, "after": after}, [0.5, 0.8]))
    assert "New combinations of tools (0.20) are behind the rest (0.75)" in said
    assert "New wordings are behind new values" in said


def test_a_training_that_gained_nothing_says_why() -> None:
    same: dict[Split, float] = {"values": 0.5, "phrasings": 0.5}
    rates = {"before": dict.fromkeys(same, 0.0), "after_sft": same, "after": same}
    assert "had little left to teach" in told(specialization(rates, [0.95, 0.97]))  # type: ignore[arg-type]
    assert "was still rising" in told(specialization(rates, [0.5, 0.6]))  # type: ignore[arg-type]
    assert "gained nothing beyond chance" in told(specialization(rates, [0.5, 0.5]))  # type: ignore[arg-type]
    worse = {**rates, "after": {"values": 0.2, "phrasings": 0.2}}
    assert "made it worse" in told(specialization(worse, [0.5, 0.4]))  # type: ignore[arg-type]
