"""The plugin that returns the experts of mixtures on CPUs, without vLLM; see tests/full for the real one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.engines.plugins import engine_plugin

art_experts = engine_plugin("art_experts")
BLOCK = 4


class Table:
    """Blocks of two requests: the second one has the first block of the first, from the prefix cache."""

    block_size = BLOCK
    blocks = np.array([[3, 1, 0], [3, 2, 0]])

    def get_numpy_array(self) -> Any:
        return self.blocks

    def fill(self, *tokens: tuple[int, int]) -> None:
        """The step computes these tokens: request, place."""
        places = [self.blocks[row][at // BLOCK] * BLOCK + at % BLOCK for row, at in tokens]
        self.slot_mapping = SimpleNamespace(gpu=torch.tensor(places))


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(tokens by request, tokens that were computed before, lengths, finished) → what the step sends."""
    connector = ModuleType("connector")
    connector.AuxRequestOutput = lambda start, rows: (start, rows[:, 0, 0].tolist())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.distributed.aux_output_connector.connector", connector)
    table = Table()
    computed: list[int] = []
    experts = object.__new__(art_experts.Experts)
    # The expert of a token is its number among all that were computed.
    experts._capturer = SimpleNamespace(snapshot_routing_data=lambda count: torch.tensor(computed)[:, None, None])
    experts._group, experts._block, experts._next = 0, BLOCK, {}
    experts._rows = np.zeros((16, 1, 1), dtype=np.uint8)

    def step(tokens: dict[str, int], before: list[int], lengths: dict[str, int], finished: Any = ()) -> Any:
        rows = {"a": 0, "b": 1}
        each = [(rows[name], before[rows[name]] + at) for name, count in tokens.items() for at in range(count)]
        computed[:] = range(computed[-1] + 1 if computed else 10, (computed[-1] + 1 if computed else 10) + len(each))
        table.fill(*each)
        batch = SimpleNamespace(
            block_table=[table], req_id_to_index=rows, num_computed_tokens_cpu=np.array(before, dtype=np.int32)
        )
        requests = {name: SimpleNamespace(num_tokens=length) for name, length in lengths.items()}
        scheduled = SimpleNamespace(
            total_num_scheduled_tokens=len(each), num_scheduled_tokens=tokens, finished_req_ids=finished
        )
        return experts.output(SimpleNamespace(input_batch=batch, requests=requests), scheduled)

    return step


def test_each_token_is_sent_once_with_those_of_the_prefix_cache(output: Any) -> None:
    assert output({"a": 3}, [0, 0], {"a": 5}) == {}, "a part of the prompt: nothing is sampled"
    assert output({"a": 2}, [3, 0], {"a": 5}) == {"a": (0, [10, 11, 12, 13, 14])}
    # b has the first block of a, and computes two tokens of its own beside a's next one.
    assert output({"a": 1, "b": 2}, [5, 4], {"a": 6, "b": 6}) == {
        "a": (5, [15]),
        "b": (0, [10, 11, 12, 13, 16, 17]),
    }
    assert output({"b": 1}, [6, 6], {"b": 7}, {"a"}) == {"b": (6, [18])}
    assert output({"a": 1}, [4, 7], {"a": 5}) == {"a": (0, [10, 11, 12, 13, 19])}, "another request of that name"
