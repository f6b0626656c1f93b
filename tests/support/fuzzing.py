"""What fuzz tests draw, and how much: a little in each run, the same each time; more, and other things, with ART_FUZZ.

`ART_FUZZ=50 pytest …` draws 50 times as many examples, by chance. `make fuzz` does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
FACTOR = float(os.environ.get("ART_FUZZ", "1"))
"""By how many times the examples are multiplied."""
CHANCE = FACTOR > 1
"""Whether each run draws other examples. What a run of every change draws follows from the test's code."""
BIG = 10**300

scalars = (
    st.none() | st.booleans() | st.integers() | st.sampled_from([BIG, -BIG, 2**63]) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["p", "\ud83d", "\x00", "user", "assistant", "function"])
)  # fmt: skip


def thorough(examples: int) -> Any:
    """Settings of a test: how many examples it draws in a run of every change."""
    return settings(max_examples=max(1, int(examples * FACTOR)), suppress_health_check=list(HealthCheck))


def deep(levels: int) -> list[object]:
    """Lists in lists."""
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def json_values(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Values of JSON, some of them too large or too deep. names: names of fields."""
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=3), inner, max_size=3),
    ) | st.sampled_from([deep(90), deep(200), deep(300)])


@st.composite
def spoiled(draw: st.DrawFn, value: Any, others: st.SearchStrategy[Any]) -> Any:
    """A value of JSON in which a few places are left out, twice there, or something else.

    Args:
        draw: Of hypothesis.
        value: The value, which stays as it is.
        others: What takes the place of parts.
    """
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(draw, value, others)
    return value


def _changed(draw: st.DrawFn, value: Any, others: st.SearchStrategy[Any]) -> Any:
    inner = isinstance(value, dict | list) and value and draw(st.integers(0, 5))
    if not inner:
        return draw(others)
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    kind = draw(st.sampled_from(["inside", "inside", "inside", "without", "with"]))
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if kind == "inside":
        copy[key] = _changed(draw, value[key], others)
    elif kind == "without":
        del copy[key]
    elif isinstance(copy, dict):
        copy[draw(st.text(max_size=5))] = draw(others)
    else:
        copy.append(copy[key])
    return copy


def outcome(work: Callable[[], T], error: type[E]) -> T | E:
    """What a function returns, or the error of this class that it raises."""
    try:
        return work()
    except error as raised:
        return raised


@contextmanager
def no_traceback(logger: str = "trainer_server") -> Iterator[None]:
    """Fails where something is logged with a traceback while the context is open."""
    found: list[str] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                found.append(self.format(record))

    watch = Watch()
    logging.getLogger(logger).addHandler(watch)
    try:
        yield
    finally:
        logging.getLogger(logger).removeHandler(watch)
    assert not found, found[0]
