"""Chains: which tools can take a value from which results."""

from __future__ import annotations

import random
from typing import Any

import pytest

from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.chains import Chains, Link
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.explore import learn_failure
from art_mcp.scenarios.drafting.values import Values
from art_mcp.scenarios.plan import Step
from tests.support.mcp.tools import STRING, tool

NOUNS = ("note", "card", "team")


def tools() -> list[CatalogTool]:
    made = []
    for noun in NOUNS:
        made.append(CatalogTool(name=f"list_{noun}s", input_schema={"type": "object", "properties": {}}))
        parameters = {f"{noun}_id": {"type": "string"}, "day": {"type": "string", "format": "date"}}
        schema = {"type": "object", "properties": parameters, "required": list(parameters)}
        made.append(CatalogTool(name=f"get_{noun}", input_schema=schema))
    return made


def test_each_tool_takes_the_values_of_its_own_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits a parameter is looked up once, however many results there are: a server may have a hundred tools."""
    catalog, rng = Catalog(tools=tools()), random.Random(0)
    values = Values(catalog, {}, rng)
    for noun in NOUNS:
        for _ in range(3):
            values.learn(f"list_{noun}s", {}, [{"id": f"{noun}-{at}", "name": f"a {noun}"} for at in range(4)])
    values.settle()
    asked: list[tuple[str, str]] = []
    plain = Values.candidates

    def counted(self: Values, tool: CatalogTool, name: str, schema: Any) -> list[Any]:
        asked.append((tool.name, name))
        return plain(self, tool, name, schema)

    monkeypatch.setattr(Values, "candidates", counted)
    chains = Chains(Drafter(catalog, catalog.tools, values, rng))
    assert chains.pairs == [(f"list_{noun}s", f"get_{noun}") for noun in NOUNS]
    assert len(asked) == len(set(asked))


def test_a_chain_takes_no_value_that_its_act_refused() -> None:
    listing, lends = tool("list_books", shelf=STRING), tool("lend", title=STRING, shelf=STRING)
    catalog, rng = Catalog(tools=[listing, lends]), random.Random(0)
    values = Values(catalog, {}, rng)
    for shelf, titles in (("A1", ("Dune", "Emma")), ("B2", ("Jazz", "Sula"))):
        values.learn("list_books", {"shelf": shelf}, [{"title": title} for title in titles])
    chains = Chains(Drafter(catalog, catalog.tools, values, rng))

    def calls() -> list[dict[str, Any]]:
        drafts = [chains.draft(("list_books", "lend")) for _ in range(20)]
        return [draft.call.arguments for draft in drafts if draft and draft.call]

    assert {(call["title"], call["shelf"]) for call in calls()} == {
        ("Dune", "A1"), ("Emma", "A1"), ("Jazz", "B2"), ("Sula", "B2")
    }  # fmt: skip
    learn_failure(values, Step(tool="lend", arguments={"title": "Dune", "shelf": "A1"}), "'Dune' is on loan already")
    learn_failure(values, Step(tool="lend", arguments={"title": "Jazz", "shelf": "B2"}), "'B2' is locked")
    assert {call["title"] for call in calls()} == {"Emma"}
    learn_failure(values, Step(tool="lend", arguments={"title": "Emma", "shelf": "A1"}), "'Emma' is on loan already")
    assert calls() == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (("DOING", 0, "title"), "the first card under DOING"),
        (("DONE", 1, "title"), "the last card under DONE"),
        (("DOING", 0, "owner"), "the owner of the first card under DOING"),
    ],
)
def test_a_value_is_described_with_the_key_that_its_entry_is_under(path: tuple[str | int, ...], said: str) -> None:
    listing, moves = tool("list_cards"), tool("move_card", title=STRING, owner=STRING)
    catalog, rng = Catalog(tools=[listing, moves]), random.Random(0)
    chains = Chains(Drafter(catalog, catalog.tools, Values(catalog, {}, rng), rng))
    board = {
        "DOING": [{"title": "Sand it", "owner": "Ada"}, {"title": "Oil it", "owner": "Bo"}],
        "DONE": [{"title": "Buy it", "owner": "Ada"}, {"title": "Saw it", "owner": "Cy"}],
    }
    link = Link(listing, {}, board, path, "", moves, str(path[-1]))
    assert said in {text for text, _ in chains._link_descriptions(link)}


def test_nobody_looks_up_the_name_of_what_is_made_nor_what_a_thing_becomes() -> None:
    listing, adds = tool("list_cards"), tool("add_card", title=STRING)
    changes = tool("update_card", card_id=STRING, title=STRING)
    catalog, rng = Catalog(tools=[listing, adds, changes]), random.Random(0)
    values = Values(catalog, {}, rng)
    values.learn("list_cards", {}, [{"card_id": f"c-{at}", "title": f"Plank {at}"} for at in range(4)])
    for at in range(3):
        values.learn("add_card", {"title": f"Plank {at}"}, "added")
        values.learn("update_card", {"card_id": f"c-{at}", "title": f"Plank {at}"}, "updated")
    chains = Chains(Drafter(catalog, catalog.tools, values, rng))
    assert {(link.second.name, link.parameter) for links in chains._links.values() for link in links} == {
        ("update_card", "card_id")
    }
