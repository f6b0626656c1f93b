"""AGENTS.md and llms.txt: every link leads to a file, and llms.txt has the form of llmstxt.org."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[[^\]]+\]\((?!https?://)([^)#]+)(?:#([^)]+))?\)")


@pytest.mark.parametrize("name", ["AGENTS.md", "llms.txt"])
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    links = LINK.findall((ROOT / name).read_text())
    assert links
    for path, anchor in links:
        assert (ROOT / path).is_file(), path
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.M) if anchor else []
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, f"{path}#{anchor}"


def test_llms_txt_has_a_title_a_summary_and_sections_of_links() -> None:
    title, _, summary, *lines = (ROOT / "llms.txt").read_text().splitlines()
    assert title == "# art-langgraph"
    assert summary.startswith("> ")
    first = next(number for number, line in enumerate(lines) if line.startswith("## "))
    for line in lines[first:]:
        assert not line or re.fullmatch(r"## .+|- \[[^\]]+\]\([^)]+\): .+", line), line
