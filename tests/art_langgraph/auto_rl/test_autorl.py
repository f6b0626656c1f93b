"""AutoRL and comparisons of versions: a scripted model writes and judges, the real server trains."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import LLM, GRPOConfig, RolloutsFailed, Ruler, TrainerClient, autorl, compare_versions
from tests.support.cli import art
from tests.support.runs.graphs import counting
from tests.support.servers.judge_app import Endpoint, Fault, candidates, endpoint, verdict
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("connected")]


def model(at: Endpoint, **options: Any) -> LLM:
    return LLM("judge", base_url=at.url, backoff=0.01, retries=1, cache=None, **options)


def writes_and_judges(judged: str | Fault | None = None) -> Any:
    """Invents questions when asked for inputs; when asked for scores, prefers what says the larger number."""
    count = itertools.count()

    def answer(body: dict[str, Any]) -> str | Fault:
        if body["response_format"]["json_schema"]["name"] == "Texts":
            return json.dumps({"inputs": [f"Question {next(count)}" for _ in range(8)]})
        if judged is not None:
            return judged
        said = {one: int(text.split()[-1]) for one, text in candidates(body).items()}
        best = max(said.values())
        return verdict({one: value / best for one, value in said.items()})

    return answer


async def test_a_policy_is_trained_from_a_description() -> None:
    """What the graph says does not depend on the version: the comparison may say no more than the runs do."""
    stages: list[str] = []
    graph = counting("auto", numbers=random.Random(7).sample(range(1, 100), 60))
    async with TrainerClient() as client:
        with endpoint(writes_and_judges()) as at:
            report = await autorl(
                "Say large numbers.", graph=graph, policy="auto", judge=model(at), client=client,
                scenarios=12, steps=2, groups_per_step=2, n=2, config=GRPOConfig(lr=1e-3), progress=False,
                on_stage=stages.append,
            )  # fmt: skip
        assert [one.version for one in await client.versions("auto")] == [0, 1, 2]
    assert (len(report.training), len(report.held_out)) == (9, 3)
    assert not {one.id for one in report.training} & {one.id for one in report.held_out}
    assert (report.comparison.versions, report.model) == ((0, 2), "auto@2")
    said = [[int(run.final_text.split()[-1]) for run in group.trajectories] for group in report.comparison.groups]
    wins, losses = sum(after > before for before, after in said), sum(after < before for before, after in said)
    assert (report.comparison.wins, report.comparison.losses, report.comparison.unscored) == (wins, losses, 0)
    assert wins + losses == 3
    means = report.comparison.means
    assert means is not None
    expected = [statistics.fmean(pair[side] / max(pair) for pair in said) for side in (0, 1)]
    assert [means.before, means.after] == pytest.approx(expected)
    judged = report.usage["judge"]
    assert judged.calls == len(at.requests) == 2 + 2 * 2 + 3
    assert report.cost is None
    text = report.markdown()
    for part in (
        "# auto@2",
        "Say large numbers.",
        f"better in {wins}, worse in {losses}",
        "9 scenarios to train on",
        "| 2 | 2 |",
    ):
        assert part in text
    assert [one.split()[0] for one in stages] == ["scenarios:", "train:", "step", "step", "compare:"]
    assert set(report.seconds) == {"scenarios", "train", "compare"}
    system = at.requests[-1]["messages"][0]["content"]
    assert "What the agent is for:\nSay large numbers." in system


async def test_a_judge_that_fails_ends_the_training_loudly() -> None:
    async with TrainerClient() as client:
        with (
            endpoint(writes_and_judges(Fault(401, "bad key"))) as at,
            pytest.raises(RolloutsFailed, match=r"4 of 4 runs have no reward: RULER: .*bad key"),
        ):
            await autorl(
                "Say numbers.", graph=counting("auto-fails"), policy="auto-fails", judge=model(at), client=client,
                scenarios=8, steps=5, groups_per_step=2, n=2, progress=False,
            )  # fmt: skip
        assert [one.version for one in await client.versions("auto-fails")] == [0]


async def test_a_comparison_that_fails_is_a_note_in_the_report() -> None:
    graph, ran = counting("auto-note"), 0

    async def run(state: MessagesState) -> Any:
        nonlocal ran
        ran += 1
        if ran > 4:
            raise OSError("the network is down")
        return await graph.ainvoke(state)

    breaking = StateGraph(MessagesState).add_node("run", run).add_edge(START, "run").compile()
    async with TrainerClient() as client:
        with endpoint(writes_and_judges()) as at:
            report = await autorl(
                "Say numbers.", graph=breaking, policy="auto-note", judge=model(at), client=client,
                scenarios=["a", "b", "c"], steps=1, groups_per_step=2, n=2, progress=False,
            )  # fmt: skip
    assert report.notes == ["the versions could not be compared: 1 of 1 runs raised: OSError: the network is down"]
    assert report.model == "auto-note@1"
    assert "none of 1 scenarios could be judged" in report.markdown()


async def test_a_graph_that_asks_another_policy_is_named() -> None:
    async with TrainerClient() as client:
        with (
            endpoint(writes_and_judges()) as at,
            pytest.raises(RolloutsFailed, match="has a completion of policy 'auto-other' to train: they asked agent"),
        ):
            await autorl(
                "Say numbers.", graph=counting("agent"), policy="auto-other", judge=model(at), client=client,
                scenarios=["a", "b", "c"], steps=1, groups_per_step=2, n=2, progress=False,
            )  # fmt: skip
        with endpoint(writes_and_judges()) as at, pytest.raises(ConfigError, match="2 scenarios leave 1 to train on"):
            await autorl(
                "Say numbers.", graph=counting(), policy="agent", judge=model(at), client=client, scenarios=["a", "b"],
                progress=False,
            )  # fmt: skip


async def test_versions_are_compared_side_by_side_and_never_trained() -> None:
    with endpoint(writes_and_judges()) as at:
        found = await compare_versions(
            counting(), ["a", "b"], Ruler(model(at)), policy="agent", versions=(0, 0), progress=False
        )
        assert all(one.evaluation for group in found.groups for one in group.trajectories)
    with endpoint(Fault(401, "bad key")) as at:
        lost = await compare_versions(
            counting(), ["a"], Ruler(model(at)), policy="agent", versions=(0, 0), progress=False
        )
    assert (lost.means, lost.difference, lost.unscored) == (None, None, 1)
    assert "none of 1 scenarios could be judged" in str(lost)


async def test_the_command_leaves_a_report(
    server: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    code = "from tests.support.runs.graphs import counting\ngraph = counting('auto-cli')\n"
    (tmp_path / "my_graph.py").write_text(code)
    with endpoint(writes_and_judges()) as at:
        options = [
            "--policy",
            "auto-cli",
            "--judge",
            "judge",
            "--judge-url",
            at.url,
            "--scenarios",
            "8",
            "--steps",
            "1",
        ]
        shape = ["--groups", "2", "--n", "2", "--lr", "1e-3", "--output", "out"]
        done = art("autorl", "Say numbers.", "--graph", "my_graph:graph", *options, *shape)
    assert done.exit_code == 0, done.output
    assert "use auto-cli@1" in done.output
    assert "# auto-cli@1" in (tmp_path / "out" / "report.md").read_text()
    assert len((tmp_path / "out" / "held_out.jsonl").read_text().splitlines()) == 2
