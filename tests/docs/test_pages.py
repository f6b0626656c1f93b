"""The code of the documentation, run page by page: every Python block and every console block that needs nothing else.

The engine is the small one, so what the agents say is of no use. The tests show that the code runs, and that commands
end well.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.pages.blocks import DOCS, PAGES, ROOT, Block, blocks_of
from tests.support.pages.stage import PROGRAM, judged, stage
from tests.support.servers.trainer_server import TrainerServer

TO_RUN = {
    page: found
    for page in PAGES
    if (found := [one for one in blocks_of(page) if not one.needs and one.language in ("python", "console", "json")])
}


def name_of(page: Path) -> str:
    return "readme" if page.parent == ROOT else page.relative_to(DOCS).with_suffix("").as_posix().replace("/", "-")


OF_RUNS = re.compile(r"art-langgraph (trajectories|threads|policies|feedback|score|train|fork)\b")
"""Commands that need recorded runs."""
FIRST = ("start-five-minutes",)
"""What the fast lane runs too."""
SORTED = [
    pytest.param(page, id=name_of(page), marks=[] if name_of(page) in FIRST else pytest.mark.slow) for page in TO_RUN
]


@pytest.mark.parametrize("page", SORTED)
async def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, server: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[Block] = TO_RUN[page]
    recorded = any(OF_RUNS.match(command) for block in blocks for command in block.commands)
    created = not any("create_policy" in block.text for block in blocks)
    programs = [match[1] for block in blocks for command in block.commands if (match := PROGRAM.match(command))]
    name = f"page-{name_of(page)}"
    asks_openai = any('"openai/' in block.text for block in blocks)
    with judged(tmp_path, monkeypatch) if asks_openai else nullcontext():
        async with stage(
            name, tmp_path, server, monkeypatch, recorded=recorded, created=created, programs=programs
        ) as play:
            for block in blocks:
                await play.run(block)
