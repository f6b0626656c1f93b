"""What can be asked about an executed draft."""

from __future__ import annotations

import random

from art_mcp.client.result import CallResult
from art_mcp.scenarios.drafting.draft import Draft, to_executed
from art_mcp.scenarios.execute import Execution, Trial
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.wish import Wish
from art_mcp.scenarios.plan import Step


def test_a_chain_is_asked_only_what_its_last_call_alone_can_tell() -> None:
    """Otherwise the answer is right without the last call, and the run would count as a failure."""
    steps = [
        Step(tool="log", reads=True),
        Step(tool="show", reads=True, arguments={"revision": {"$step": 0, "path": ["Commit", 0]}}),
    ]
    log, shown = "Commit: 01d6\nAuthor: Ada Lovelace\n", "Commit: 01d6\nAuthor: Ada Lovelace\n+lamps = 37\n"
    found = [Question("leaf", "the author", "Ada Lovelace"), Question("leaf", "the value of lamps", "37")]

    def asked(texts: list[str]) -> list[str]:
        done = Execution(steps[-len(texts) :], [CallResult(text) for text in texts], None)
        draft = Draft("chain", done.steps, lambda rng: Wish("", ""), lambda first, second, rng: found)
        return [question.value for question in to_executed(draft, Trial(done, done, None), random.Random(0)).questions]

    assert asked([log, shown]) == ["37"]
    assert asked([shown]) == ["Ada Lovelace", "37"]
