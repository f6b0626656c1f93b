"""Values of a JSON text, counted before it is read."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_server.wire import json_size
from trainer_server.wire.json_size import TooManyDigits, TooManyValues, count_values, off_loop


def values(value: object) -> int:
    """Values in a JSON value, as the server counts them: an empty list counts like one of a single value."""
    if isinstance(value, dict):
        return 1 + sum(1 + values(part) for part in value.values()) + (not value)
    return 1 + sum(map(values, value)) + (not value) if isinstance(value, list) else 1


texts = st.text(alphabet='",:[{\\\\\\u2200a\\n', max_size=20)


@given(
    value=st.recursive(texts | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner)),
    piece=st.integers(1, 9),
    plain=st.booleans(),
)
def test_values_are_counted_without_reading(value: object, piece: int, plain: bool) -> None:
    """Whatever stands in texts, and wherever a piece ends."""
    raw = json.dumps(value, ensure_ascii=plain).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_size, "_PIECE", piece)
        count = values(value)
        count_values(raw, count)
        if len(raw) > count - 1 > 0:
            with pytest.raises(TooManyValues):
                count_values(raw, 0)


def test_numbers_of_many_digits_are_not_read() -> None:
    with pytest.raises(TooManyDigits, match="more than 1000 digits"):
        count_values(b"[" + b"9" * 1500 + b"]", 100)


async def test_only_large_bodies_are_read_in_a_thread() -> None:
    here = threading.get_ident()
    assert await off_loop(100, threading.get_ident) == here
    assert await off_loop(10**6, threading.get_ident) != here
