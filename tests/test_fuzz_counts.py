"""The table of `make fuzz`."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.statistics import collector, describe_statistics

from tests.support.fuzz_counts import of_hypothesis, of_schemathesis, table


def test_examples_are_counted_as_hypothesis_describes_them() -> None:
    examples = []
    described: list[str] = []

    @settings(max_examples=20, database=None)
    @given(st.integers())
    def run(value: int) -> None:
        examples.append(value)

    def describe(statistics: Any) -> None:
        described.append(describe_statistics(statistics))

    with collector.with_value(describe):
        run()
    assert of_hypothesis(described[0]) == len(examples) > 0


def test_the_requests_of_schemathesis_are_counted() -> None:
    assert of_schemathesis("Test cases:\n  2145 generated, 2145 passed\n") == 2145


def test_the_table_has_the_sum_of_each_file_and_of_all() -> None:
    rows = table([("b.py", 1000), ("a.py", 1), ("b.py", 500)]).splitlines()
    assert rows == ["| fuzz tests | examples |", "|---|---|", "| a.py | 1 |", "| b.py | 1,500 |", "| all | 1,501 |"]
    assert table([]) == ""
