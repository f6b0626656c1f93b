"""Scenarios of a server that keeps in memory what was opened: most of its calls work after another one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_langgraph import rollout
from art_mcp import connect, generate_scenarios, verify
from art_mcp.specialization.verify import solved
from tests.support.mcp.commands import SESSIONS
from tests.support.mcp.graphs import calling

pytestmark = pytest.mark.slow

TABLES = {
    "lamps.csv": "name,watts,colour\nArc,12,red\nBell,40,blue\nCone,7,red\nDome,23,white\nEgg,9,red\nFan,12,blue\n",
    "cities.csv": "city,river\nPorto,Douro\nGhent,Scheldt\nLyon,Rhone\nArles,Rhone\nWels,Traun\n",
}
NEEDING = {"count_values": "open_table", "largest_value": "open_table", "describe_selection": "select_file"}


async def test_calls_that_need_an_earlier_one_are_asked_for_together_with_it(tmp_path: Path) -> None:
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
    async with connect([*SESSIONS, "{world}"], worlds=tmp_path) as server:
        made = await generate_scenarios(server, 160, seconds=60, progress=False)
        results = [one for one in made.scenarios if one.plan.reply == "result"]
        for name, first in NEEDING.items():
            asked = [one for one in results if name in one.tools]
            assert asked, made.report()
            assert all(one.plan.reference[-1].tool == name for one in asked)
            assert {one.plan.reference[0].tool for one in asked} == {first}
        chain = next(one for one in results if "count_values" in one.tools)
        opened, counted = chain.plan.reference
        assert counted.arguments["table_id"] == {"$step": 0, "path": ["table_id"]}
        assert opened.arguments["file"] in chain.messages[-1]["content"]
        alone = calling(server, ("count_values", {"table_id": "t1", "column": "city"}), answer=chain.plan.answer)
        assert not solved(await rollout(alone, chain, verify()))
