"""A trajectory as spans."""

from __future__ import annotations

from art_langgraph.trackers.spans import MOST_TEXT, scores, spans
from art_langgraph.trajectory import NodeRun, Scenario, Trajectory
from tests.support.runs.trackers import a_run


def test_every_span_comes_after_the_one_around_it_and_keeps_its_id() -> None:
    first, again = spans(a_run()), spans(a_run())
    assert [span.id for span in first] == [span.id for span in again]
    assert len({span.id for span in first}) == len(first) == 6
    known = set()
    for span in first:
        assert span.parent is None or span.parent in known
        known.add(span.id)
    assert [span.kind for span in first] == ["run", "node", "node", "model", "model", "tool"]


def test_a_graph_that_begins_a_new_path_stays_in_the_node_that_called_it() -> None:
    """A graph with a checkpointer and a thread of its own does; its path is then shorter than that around it."""
    nodes = {
        "x": NodeRun(node="x", path=["x"], attempt="x", parent="b", started=3.0),
        "b": NodeRun(node="b", path=["a", "b"], attempt="b", parent="a", started=2.0),
        "a": NodeRun(node="a", path=["a"], attempt="a", started=1.0),
    }
    run = Trajectory(scenario=Scenario(id="s", input=None), nodes=list(nodes.values()))
    names = {span.id: span.name for span in spans(run)}
    parents = {span.name: names.get(span.parent) for span in spans(run) if span.kind == "node"}
    assert parents == {"a": names[spans(run)[0].id], "b": "a", "x": "b"}


def test_what_was_said_raised_and_scored_is_in_the_spans() -> None:
    run, outer, inner, policy, judge, tool = spans(a_run())
    assert (run.start_time, run.seconds, run.input) == (100.0, 4.0, "Weather in Oslo?")
    assert (outer.name, inner.name, inner.parent) == ("agent", "model", outer.id)
    assert (policy.parent, policy.output) == (inner.id, {"role": "assistant", "content": "Rain."})
    assert (policy.facts["version"], policy.facts["path"]) == (2, ["agent", "model"])
    assert (judge.parent, judge.error) == (run.id, "TimeoutError()")
    assert (tool.parent, tool.input, tool.error) == (outer.id, {"city": "Oslo"}, "no such city")
    assert scores(a_run()) == {"reward": 0.5, "short": 1.0}
    assert scores(a_run(None)) == {"short": 1.0}


def test_long_texts_are_cut_and_say_so() -> None:
    long = a_run()
    long.output = {"text": "x" * (MOST_TEXT + 5)}
    assert spans(long)[0].output["text"].endswith("[… 5 more characters]")
