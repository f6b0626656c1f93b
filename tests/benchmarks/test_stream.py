"""The benchmark of groups that stream: its times are what it says, and a short run has both sides."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from benchmarks.charts.chart import DOCS
from benchmarks.charts.timeline import Span, Timeline, draw
from benchmarks.stream import RUNS, TAIL, durations, rate, run_seconds


def test_the_times_of_runs_have_the_tail_that_is_promised() -> None:
    times = run_seconds(0.1)
    assert len(times) == RUNS
    assert statistics.median(times) == pytest.approx(0.1, rel=0.05)
    assert max(times) == pytest.approx(TAIL * 0.1)
    two = list(itertools.islice(durations(0.1), 2 * RUNS))
    assert sorted(two[:RUNS]) == sorted(two[RUNS:]) == pytest.approx(times)
    assert two[:RUNS] != two[RUNS:]


def test_the_first_and_the_last_steps_are_not_counted() -> None:
    ends = [9.0, 9.1, 9.2, 10.0, 11.0, 12.0, 90.0, 91.0, 92.0, 93.0]
    assert rate(ends) == pytest.approx(1.0)


RECT = "{http://www.w3.org/2000/svg}rect"
TIMELINE = Timeline(
    name="two slots",
    slots=2,
    runs=[Span(10.0, 14.0, 0), Span(10.0, 11.0, 0), Span(11.0, 13.0, 0), Span(14.0, 30.0, 1), Span(21.0, 25.0, 1)],
    steps=[Span(14.0, 15.0, 1), Span(19.0, 20.0, 2)],
)


def test_a_timeline_has_each_run_in_a_slot_until_its_last_step_ends() -> None:
    """Two slots for ten seconds: runs of 4, 1 and 2 seconds, and one that is there for the last six."""
    assert [[run.start for run in lane] for lane in TIMELINE.lanes()] == [[10.0, 14.0], [10.0, 11.0]]
    assert (TIMELINE.seconds, TIMELINE.busy) == (10.0, pytest.approx((4 + 1 + 2 + 6) / 20))
    drawn = ElementTree.fromstring(draw([TIMELINE], "a picture"))
    boxes = [box for box in drawn.iter(RECT) if box.get("class") != "card"]
    assert len(boxes) == 4 + 2
    assert max(float(box.get("x", 0)) + float(box.get("width", 0)) for box in boxes) <= 700
    with pytest.raises(ValueError, match="two slots: more than 2 runs at once"):
        Timeline("two slots", 2, [Span(0.0, 1.0, 0)] * 3, TIMELINE.steps).lanes()


def test_the_picture_of_the_docs_says_what_its_page_says() -> None:
    described = ElementTree.parse(DOCS / "images" / "stream.svg").findtext("{http://www.w3.org/2000/svg}desc")
    facts = re.findall(r"3 steps in ([\d.]+) s, engine busy (\d+%)", str(described))
    page = (DOCS / "training" / "options.md").read_text()
    (alternative,) = re.findall(r"!\[([^]]*)\]\(\.\./images/stream\.svg\)", page)
    assert len(facts) == 2
    assert all(f"{share} of {seconds} s" in alternative for seconds, share in facts)


@pytest.mark.slow
def test_a_short_run_streams_faster() -> None:
    line = [sys.executable, "-m", "benchmarks.stream", "--json", "--steps", "12", "--median", "0.02"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps_ratio"] > 1.0
    assert 0 < result["of_ideal"] < 1.2
    assert sum(result["ages"].values()) == 12 * 16
