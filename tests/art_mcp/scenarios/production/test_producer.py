"""Which executed calls no task can be made of."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest

from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.draft import Draft, ExecutedDraft
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.drafting.sql import Sql
from art_mcp.scenarios.drafting.values import Values
from art_mcp.scenarios.execute import Execution, Trial
from art_mcp.scenarios.phrasing.wish import Wish
from art_mcp.scenarios.plan import Step
from art_mcp.scenarios.production.producer import Producer
from art_mcp.scenarios.production.quotas import ScenarioQuota
from tests.support.mcp.tools import tool

NONE: Any = None


def reason_useless(of: CatalogTool, changing: Collection[str] = ()) -> tuple[str, str] | None:
    """Why no task can be made of a call that changed nothing. changing: tools that were seen to change the world."""
    rng = random.Random(0)
    catalog = Catalog(tools=[of])
    drafter = Drafter(catalog, [of], Values(catalog, {}, rng), rng)
    drafter.values.graph.changing |= set(changing)
    producer = Producer(drafter, Sql([of], Reserve(), rng), NONE, ScenarioQuota(4, 0.3, lambda _: None), 0)
    step = Step(tool=of.name)
    done = Execution([step], [CallResult("ok")], [])
    draft = Draft("single", [step], lambda _: Wish("do it", "doing it"), lambda *_: [])
    return producer._useless(ExecutedDraft(draft, Trial(done, done, [])))


@pytest.mark.parametrize("name", ["remove_file", "removeFile", "remove-file"])
def test_a_call_that_removes_nothing_is_useless_however_its_tool_is_spelled(name: str) -> None:
    assert reason_useless(tool(name)) == ("empty", "nothing was removed")


def test_a_call_that_changes_nothing_is_useless_where_the_server_changes_the_world() -> None:
    useless = ("empty", "nothing was changed")
    edit, clear, send = tool("edit_card"), tool("clear_cards"), tool("send_mail")
    assert reason_useless(edit, ["add_card"]) == useless
    assert reason_useless(edit) is None, "it may keep its cards in its memory"
    assert reason_useless(clear, ["clear_cards"]) == useless
    assert reason_useless(clear, ["add_card"]) is None, "nothing says that it changes the world"
    hints = {"readOnlyHint": False, "openWorldHint": False}
    assert reason_useless(clear.model_copy(update={"annotations": hints}), ["add_card"]) == useless
    assert reason_useless(clear.model_copy(update={"annotations": {"destructiveHint": True}}), ["add_card"]) == useless
    assert reason_useless(send.model_copy(update={"annotations": {"readOnlyHint": False}}), ["add_card"]) is None
