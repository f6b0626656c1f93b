"""Which executed calls are wanted."""

from __future__ import annotations

import pytest

from art_mcp.client.result import CallResult
from art_mcp.scenarios.drafting.draft import Draft, ExecutedDraft
from art_mcp.scenarios.execute import Execution, Trial
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.wish import Wish
from art_mcp.scenarios.plan import Kind, Step
from art_mcp.scenarios.production.pool import Pool


def executed(*values: str, kind: Kind = "single") -> ExecutedDraft:
    """A call of `count_books` whose result has some values that can be asked for."""
    step = Step(tool="count_books", reads=True)
    run = Execution([step], [CallResult(" ".join(values))], None)
    draft = Draft(kind, [step], lambda _: Wish("count", "counting"), lambda *_: [])
    return ExecutedDraft(draft, Trial(run, run, None), [Question("leaf", "the count", value) for value in values])


@pytest.mark.parametrize(("values", "empty"), [(("0",), True), (("0", "7"), False), (("7",), False), ((), False)])
def test_a_call_is_empty_if_nothing_else_can_be_asked_for(values: tuple[str, ...], empty: bool) -> None:
    assert executed(*values).is_empty is empty


def test_calls_that_gave_nothing_are_few_and_never_the_only_ones() -> None:
    pool = Pool(seed=0)
    assert not pool.has_room_for_empty(executed("0"))
    for number in range(1, 11):
        pool.add(executed(str(number)))
    assert not pool.has_room_for_empty(executed("0", kind="chain"))
    for _ in range(2):
        assert pool.has_room_for_empty(executed("0"))
        pool.add(executed("0"))
    assert not pool.has_room_for_empty(executed("0"))
