"""Which executed calls no task can be made of."""

from __future__ import annotations

import random
from typing import Any

import pytest

from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import Catalog
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


@pytest.mark.parametrize("name", ["remove_file", "removeFile", "remove-file"])
def test_a_call_that_removes_nothing_is_useless_however_its_tool_is_spelled(name: str) -> None:
    tools, rng = [tool(name)], random.Random(0)
    catalog = Catalog(tools=tools)
    drafter = Drafter(catalog, tools, Values(catalog, {}, rng), rng)
    producer = Producer(drafter, Sql(tools, Reserve(), rng), NONE, ScenarioQuota(4, 0.3, lambda _: None), 0)
    step = Step(tool=name)
    done = Execution([step], [CallResult("ok")], [])
    draft = Draft("single", [step], lambda _: Wish("do it", "doing it"), lambda *_: [])
    assert producer._useless(ExecutedDraft(draft, Trial(done, done, []))) == ("empty", "nothing was removed")
