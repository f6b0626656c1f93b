"""The real vLLM on the embedded model, which is too small to write requests: the grammar writes, and a note says so."""

from __future__ import annotations

import asyncio
import re

import pytest

from art_langgraph.llm.trainer_model import POLICY, TrainerModel, find_model
from art_mcp.scenarios.writing.wordings import PROBES, Wordings
from tests.support.mcp.base_model import CHAIN, TOOLS, price

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]


async def test_a_model_that_cannot_write_requests_is_found_out() -> None:
    model = await find_model(POLICY)
    assert isinstance(model, TrainerModel)
    scenarios = [CHAIN, *(price(number) for number in range(20, 30))]
    before = {scenario.id for scenario in scenarios}
    words = Wordings(model, None, TOOLS, seed=0, until=asyncio.get_running_loop().time() + 60)
    note = await words.write(scenarios, 0, lambda count: None)
    print(note)
    found = re.match(
        r"the base model (\S+) wrote (\d+) of 10 requests that could be read back: the grammar writes", note
    )
    assert found, note
    assert found[1] == model.model
    assert int(found[2]) < PROBES / 2
    assert {scenario.id for scenario in scenarios} == before
    assert "the model gave no answer" not in note
