"""Which call comes before another one that fails alone."""

from __future__ import annotations

import pytest

from art_mcp.scenarios.catalog import Catalog
from art_mcp.scenarios.drafting.sequences import MAX_SEQUENCES, MOST_LIKELY, note_sequences
from art_mcp.scenarios.drafting.value_graph import ValueGraph
from art_mcp.scenarios.plan import Step

OPEN = (Step(tool="open_table", arguments={"file": "lamps.csv"}), {"id": "t7", "columns": ["name", "watts"]})
COUNT = (Step(tool="count", arguments={"id": "t7", "column": "watts"}), {"count": 4})
OTHER = (Step(tool="list_files", arguments={}), ["lamps.csv"])
LARGEST = Step(tool="largest", arguments={"id": "t7", "column": "watts"})


@pytest.fixture
def graph() -> ValueGraph:
    return ValueGraph(Catalog(name="tables", tools=[]))


def test_a_call_that_gave_the_values_comes_before_one_that_took_them(graph: ValueGraph) -> None:
    note_sequences(graph, LARGEST, [OPEN, COUNT, OTHER])
    assert [sequence.first[0] for sequence in graph.sequences["largest"]] == ["open_table", "count"]
    assert graph.sequences["largest"][0].result == OPEN[1]


def test_a_tool_that_an_error_names_comes_before(graph: ValueGraph) -> None:
    step = Step(tool="describe", arguments={})
    note_sequences(graph, step, [OPEN, COUNT, OTHER], "no table is opened")
    assert [sequence.first[0] for sequence in graph.sequences["describe"]] == ["open_table"]


def test_calls_with_nothing_in_common_and_of_the_same_tool_are_no_sequence(graph: ValueGraph) -> None:
    note_sequences(graph, Step(tool="describe", arguments={}), [OPEN, OTHER], "out of order")
    note_sequences(graph, Step(tool="count", arguments={"id": "t7"}), [COUNT])
    assert not graph.sequences["describe"]
    assert not graph.sequences["count"]


def test_some_sequences_of_a_tool_are_kept_and_none_twice(graph: ValueGraph) -> None:
    for number in range(20):
        step = Step(tool="largest", arguments={"id": "t7", "column": f"c{number % 10}"})
        note_sequences(graph, step, [OPEN, COUNT, OTHER])
    assert len(graph.sequences["largest"]) == MAX_SEQUENCES
    note_sequences(graph, LARGEST, [OPEN])
    assert len(graph.sequences["largest"]) == MAX_SEQUENCES
    assert MOST_LIKELY < MAX_SEQUENCES
