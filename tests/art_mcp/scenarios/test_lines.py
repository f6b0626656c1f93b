"""Texts as servers write them, and paths into them."""

from __future__ import annotations

import pytest

from art_mcp.scenarios.lines import Line, in_text, lines
from art_mcp.scenarios.observe import pick_value

LOG = "History:\nCommit: 'abc'\nAuthor: Ada\n\nCommit: 'def'\n* main\n[DIR] letters\n1. first"


def test_keys_tags_bullets_and_quotes() -> None:
    assert lines(LOG) == [
        Line("", "History:"),
        Line("Commit", "abc"),
        Line("Author", "Ada"),
        Line("Commit", "def"),
        Line("", "main"),
        Line("DIR", "letters", tagged=True),
        Line("", "first"),
    ]


def test_tags_of_html_are_no_part_of_a_line() -> None:
    table = "<h2>Pupils</h2>\n<table>\n<tr><th>1</th><td>Grace Hopper</td></tr>\n</table>\nAda <ada@example.com> 1 < 2"
    assert [line.value for line in lines(table)] == ["Pupils", "1 Grace Hopper", "Ada <ada@example.com> 1 < 2"]
    assert in_text(table, [1]) == "1 Grace Hopper"


def test_paths_lead_into_texts() -> None:
    assert in_text(LOG, ["Commit", 1]) == "def"
    assert in_text(LOG, [4]) == "main"
    assert pick_value(LOG, None, ["Author", 0]) == "Ada"
    assert pick_value(" all of it ", None, []) == "all of it"
    for path in (["Commit", 2], ["Author"], [99], ["nothing", 0]):
        with pytest.raises(LookupError):
            pick_value(LOG, None, path)
