"""The quickstart's questions: what is trained on, and what is held out."""

from __future__ import annotations

from art_examples.quickstart import scenarios

from art_langgraph import Scenario


def test_held_out_scenarios_share_no_city_and_no_wording_with_training() -> None:
    training = [text(one) for seed in range(5) for one in scenarios.training_scenarios(seed)]
    held_out = [text(one) for one in scenarios.held_out_scenarios(360)]
    assert not set(scenarios.TRAINING_CITIES) & set(scenarios.HELD_OUT_CITIES)
    for kind in scenarios.KINDS:
        assert not set(kind.training) & set(kind.held_out)
    assert not set(training) & set(held_out)
    assert len(set(held_out)) == 360


def test_held_out_scenarios_are_even_over_the_kinds_and_the_same_each_time() -> None:
    found = scenarios.held_out_scenarios(120)
    assert [one.id for one in found] == [one.id for one in scenarios.held_out_scenarios(120)]
    kinds = [(one.metadata["tool"], *one.metadata["arguments"].values()) for one in found]
    names = [(tool, *rest[1:]) for tool, *rest in kinds]
    assert {names.count(name) for name in names} == {20}


def test_every_wording_comes_equally_often() -> None:
    for seed in range(3):
        found = scenarios.training_scenarios(seed)
        for index, kind in enumerate(scenarios.KINDS):
            first = [text(one) for one in found[index :: len(scenarios.KINDS)][: len(kind.training)]]
            assert {asked.replace(city_of(asked), "{city}") for asked in first} == set(kind.training)


def test_training_scenarios_follow_the_seed() -> None:
    assert scenarios.training_scenarios(1) == scenarios.training_scenarios(1)
    assert scenarios.training_scenarios(1) != scenarios.training_scenarios(2)


def city_of(asked: str) -> str:
    return next(city for city in scenarios.TRAINING_CITIES if city in asked)


def text(scenario: Scenario) -> str:
    return str(scenario.input["messages"][0][1])
