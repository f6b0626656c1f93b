"""Which training scenarios the warm start leaves to the reinforcement learning."""

from __future__ import annotations

from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Kind, Plan, Step
from art_mcp.specialization.demonstrations import shown_and_kept, to_train_on


def scenario(task: str, value: int, *tools: str, kind: Kind = "single") -> MCPScenario:
    return MCPScenario.make(task, Plan(reference=[Step(tool=one, arguments={"at": value}) for one in tools], kind=kind))


def calls(scenarios: list[MCPScenario]) -> set[tuple[tuple[str, ...], int]]:
    return {(one.tools, one.plan.reference[0].arguments["at"]) for one in scenarios}


def test_a_fifth_of_the_different_calls_is_kept_whatever_the_words() -> None:
    every = [scenario(f"Look at {at}, {words}.", at, "look") for at in range(20) for words in ("please", "now", "soon")]
    every += [scenario(f"Look at {at} and list.", at, "look", "list", kind="pair") for at in range(10)]
    shown, kept = shown_and_kept(every, seed=0)
    assert calls(shown).isdisjoint(calls(kept))
    assert sorted(one.id for one in [*shown, *kept]) == sorted(one.id for one in every)
    assert {len([one for one in calls(kept) if one[0] == tools]) for tools in (("look",), ("look", "list"))} == {4, 2}
    assert shown_and_kept(every, seed=0) == (shown, kept) != shown_and_kept(every, seed=1)


def test_calls_without_others_of_their_tools_are_shown() -> None:
    single = [scenario(f"Do {tool}, {words}.", 1, tool) for tool in "abcdefghij" for words in ("please", "now")]
    assert shown_and_kept(single, seed=0) == (single, [])
    pairs = [scenario(f"Do {tool} {at}.", at, tool) for tool in "abcdefghij" for at in range(3)]
    shown, kept = shown_and_kept(pairs, seed=0)
    assert len(kept) == 6
    assert all(len([one for one in shown if one.tools == (tool,)]) >= 2 for tool in "abcdefghij")


def test_calls_that_most_scenarios_of_a_kind_have_are_shown() -> None:
    often = [scenario(f"Look at 0, in words {words}.", 0, "look", kind="impossible") for words in range(25)]
    seldom = [scenario(f"Look at {at}.", at, "look", kind="impossible") for at in range(1, 15)]
    for seed in range(20):
        shown, kept = shown_and_kept([*often, *seldom], seed)
        assert {one.id for one in often} <= {one.id for one in shown}
        assert len(kept) == 3


def test_some_combinations_of_tools_are_kept_as_a_whole() -> None:
    every = [scenario(f"Do {tool} {at}.", at, tool) for tool in "abcde" for at in range(3)]
    both = [(one, two) for one in "abcde" for two in "abcde" if one < two]
    every += [scenario(f"Do {one} and {two}, {at}.", at, one, two, kind="pair") for one, two in both for at in range(2)]
    shown, kept = shown_and_kept(every, seed=0)
    whole = {one.tools for one in kept if len(one.tools) > 1} - {one.tools for one in shown}
    assert len(whole) == 3
    assert {one.tools for one in shown if len(one.tools) == 1} == {(tool,) for tool in "abcde"}


def test_every_tool_is_shown() -> None:
    every = [scenario(f"Do {tool} {at}.", at, tool) for tool in "ab" for at in range(3)]
    pairs = [("a", "b"), ("a", "c"), ("c", "d"), ("b", "d"), ("a", "e")]
    every += [scenario(f"Do {one} and {two}, {at}.", at, one, two) for one, two in pairs for at in range(2)]
    for seed in range(20):
        shown, kept = shown_and_kept(every, seed)
        assert {tool for one in shown for tool in one.tools} == set("abcde")
        assert any(len(one.tools) > 1 for one in kept)


def test_tools_that_were_imitated_alone_come_again_with_their_share() -> None:
    fresh = [scenario(f"Look at {at}.", at, "look") for at in range(20)]
    imitated = [scenario(f"Find {at}.", at, "find") for at in range(60)]
    few = [scenario(f"List {at}.", at, "list") for at in range(10)]
    every, ids = [*fresh, *imitated, *few], {one.id for one in [*imitated, *few]}
    chosen = to_train_on(every, ids, 12, seed=0)
    assert [one.tools[0] for one in chosen].count("look") == 20
    assert [one.tools[0] for one in chosen].count("find") == 13, (
        "60 of 90 scenarios find: 13.3 for 20 that were not seen"
    )
    assert [one.tools[0] for one in chosen].count("list") == 2
    assert to_train_on(every, ids, 12, seed=0) == chosen != to_train_on(every, ids, 12, seed=1)


def test_where_nearly_all_was_imitated_all_is_trained_on() -> None:
    every = [scenario(f"Look at {at}.", at, "look") for at in range(20)]
    assert to_train_on(every, {one.id for one in every[:10]}, 12, seed=0) == every
    assert to_train_on(every, set(), 12, seed=0) == every
