"""The tree of a run, from what its client told and from the ledger."""

from __future__ import annotations

from typing import Any

from tests.support.homes.ledger_rows import row
from trainer_server.common.run_tree import CallItem, Item, NodeItem, call_line, calls, first_items, tree
from trainer_server.wire import RunTrace


def trace(nodes: list[dict[str, Any]], **more: Any) -> RunTrace:
    return RunTrace.model_validate({"id": "t", "scenario": {}, "started": 0, "nodes": nodes, **more})


def node(name: str, started: float, parent: str | None = None, namespace: str = "", **more: Any) -> dict[str, Any]:
    where = namespace or f"{name}:{started}"
    return {
        "node": name,
        "attempt": f"{name}-{started}",
        "parent": parent,
        "namespace": where,
        "started": started,
        **more,
    }


def drawn(items: list[Item]) -> list[Any]:
    """Labels, with those inside in a list after them."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, NodeItem):
            found += [item.label, *([drawn(item.inside)] if item.inside else [])]
        else:
            found.append(item.call.id or "other" if isinstance(item, CallItem) else item.tool.tool)
    return found


def test_subgraphs_calls_and_tools_stand_in_their_nodes() -> None:
    told = trace(
        [node("boss", 1), node("model", 2, "boss-1"), node("tools", 4, "boss-1")],
        completions=[{"id": "a", "attempt": "model-2", "parent": "boss-1", "started": 3}],
        tool_calls=[
            {"tool": "add", "attempt": "tools-4", "started": 5},
            {"tool": "outside", "started": 0},
        ],
    )
    items = tree(told, [row("a", 3.0)])
    assert drawn(items) == ["outside", "boss", ["model", ["a"], "tools", ["add"]]]
    assert [path for path, _ in calls(items)] == ["boss/model"]


def test_attempts_at_one_work_are_counted() -> None:
    items = tree(trace([node("n", 1, namespace="n:x", error="no"), node("n", 2, namespace="n:x"), node("n", 3)]), [])
    assert [(one.attempt, one.attempts) for one in items if isinstance(one, NodeItem)] == [(1, 2), (2, 2), (1, 1)]


def test_what_only_the_ledger_knows_is_there_too() -> None:
    told = trace([], completions=[{"id": "a", "started": 1}, {"id": "gone", "started": 2}, {"id": None, "started": 3}])
    items = tree(told, [row("a", 1.0), row("b", 4.0)])
    assert drawn(items) == ["a", "gone", "other", "b"]
    heard = {one.call.id: (one.row is not None, one.reported) for one in items if isinstance(one, CallItem)}
    assert heard == {"a": (True, True), "gone": (False, True), None: (False, True), "b": (True, False)}
    assert drawn(tree(None, [row("a", 1.0)])) == ["a"]


def test_a_circle_or_an_endless_depth_is_shown_all_the_same() -> None:
    circle = [node("a", 1, "b-2"), node("b", 2, "a-1")]
    assert drawn(tree(trace(circle), [])) == ["a", ["b"]]
    deep = [node("n", depth, f"n-{depth - 1}" if depth else None) for depth in range(500)]
    text = str(drawn(tree(trace(deep), [])))
    assert text.count("n") == 500
    depths = [text[:at].count("[") - text[:at].count("]") for at in range(len(text))]
    assert max(depths) <= 43


def test_the_beginning_of_a_tree() -> None:
    items = tree(trace([node("a", 1), node("b", 2, parent="a"), node("c", 3, parent="b"), node("d", 4)]), [])
    assert first_items(items, 4) == (items, 0)
    shown, left = first_items(items, 2)
    assert (drawn(shown), left) == (drawn(tree(trace([node("a", 1), node("b", 2, parent="a")]), [])), 2)
    assert first_items(items, 0) == ([], 4)


def test_two_runs_of_a_node_with_one_id_are_both_there() -> None:
    assert drawn(tree(trace([node("a", 1), node("a", 1)]), [])) == ["a", "a"]


def test_a_tool_call_is_one_line() -> None:
    for arguments in ('{"city": "Zürich"}', {"city": "Zürich"}):
        function = {"name": "get_time", "arguments": arguments}
        assert call_line({"id": "c", "type": "function", "function": function}) == 'get_time({"city": "Zürich"})'
    assert call_line({"custom": {"name": "ü"}}) == '{"custom": {"name": "ü"}}'
