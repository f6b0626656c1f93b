"""How many tokens an answer of the agent may have."""

from __future__ import annotations

from art_mcp.scenarios.plan import MCPScenario, Observation, Plan, Step
from art_mcp.specialization.agent import _tokens


def longest(revision: str) -> int:
    step = Step(tool="show_a_revision_of_the_repository", arguments={"revision": revision}, reads=True)
    said = f"It is {revision}."
    plan = Plan(
        reference=[step, step], observations=[Observation(text=revision)] * 2, facts=[revision],
        answer=f"{said} {said}", answers=[said, said],
    )  # fmt: skip
    return _tokens([MCPScenario.make("Show it.", plan)])


def test_a_hash_takes_a_token_for_each_character() -> None:
    words, coded = "sea shore " * 4, "0a1b2c3d4e" * 4
    assert len(words) == len(coded)
    assert 64 < longest(words) < longest(coded) - 40
    assert longest(coded) > 2 * len(coded)
