"""The table of vLLM's versions in the documentation is what their wheels have. `make vllm-table` does the same."""

from __future__ import annotations

import os

import pytest

from tests.support.engines.wheels import documented_table, missing_by_version, table


@pytest.mark.skipif(
    "ART_VLLM_VERSIONS" not in os.environ,
    reason="fetches all wheels of vLLM, 250 MB each: ART_VLLM_VERSIONS=1, or make vllm-table",
)
def test_the_table_of_versions_is_what_their_wheels_have() -> None:
    assert documented_table() == table(missing_by_version())
