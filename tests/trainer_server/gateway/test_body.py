"""Bodies of requests: what is no JSON, and what JSON allows and nothing behind the gateway takes."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_server.gateway import body
from trainer_server.gateway.body import MAX_DEPTH, check_size, check_values, off_loop, read_json
from trainer_server.gateway.errors import APIError


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"a": 01}', b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5_000])
def test_what_cannot_be_read_is_refused(raw: bytes) -> None:
    with pytest.raises(APIError) as refused:
        read_json(raw)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "holds nan"),
        ({"a": [{"b": -float("inf")}]}, "holds -inf"),
        (json.loads("1e999"), "holds inf"),
        (["\ud83d"], r"'\ud83d', half of a character"),
        ({"\udc00": 1}, r"'\udc00', half of a character"),
        (nested(MAX_DEPTH + 1), "nested deeper than 100 levels"),
    ],
)
def test_the_field_is_named(value: object, words: str) -> None:
    with pytest.raises(APIError) as refused:
        check_values({"good": 1, "bad": value})
    assert (refused.value.status, refused.value.param) == (400, "bad")
    assert words in refused.value.message


def test_what_is_sound_passes() -> None:
    check_values({"deep": nested(MAX_DEPTH), "text": "ä🙂", "number": 1e308, "none": None, "big": 10**300})


def test_an_error_that_quotes_half_a_character_can_be_sent() -> None:
    error = APIError(400, "unknown: \ud83d", param="\udc00")
    assert json.loads(bytes(error.response().body))["error"]["param"] == "\\udc00"


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
        patched.setattr(body, "_PIECE", piece)
        count = values(value)
        check_size(raw, count)
        if len(raw) > count - 1 > 0:
            with pytest.raises(APIError) as refused:
                check_size(raw, 0)
            assert (refused.value.status, refused.value.code) == (413, "too_many_values")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_no_encoding_hides_values(encoding: str) -> None:
    """Python reads all of these; in UTF-16, a quote may be half of another character."""
    raw = '["\u2200\u2200",%s]'.replace("%s", ",".join("1" * 1000)).encode(encoding)
    assert isinstance(read_json(raw), list)
    with pytest.raises(APIError, match="more than 900 values"):
        check_size(raw, 900)


def test_long_texts_are_one_value() -> None:
    """A large image, and a text of commas."""
    for text in ("A" * 2**22, ",:[{" * 2**20, '\\"' * 2**20):
        assert read_json(json.dumps({"a": text}).encode(), 10) == {"a": text}


def test_numbers_of_many_digits_are_not_read() -> None:
    with pytest.raises(APIError, match="more than 1000 digits"):
        check_size(b"[" + b"9" * 1500 + b"]", 100)


async def test_only_large_bodies_are_read_in_a_thread() -> None:
    here = threading.get_ident()
    assert await off_loop(100, threading.get_ident) == here
    assert await off_loop(10**6, threading.get_ident) != here


def test_an_error_quotes_the_beginning_of_what_is_long() -> None:
    error = APIError(400, "unknown: " + "k" * 10**6, param="k" * 10**6)
    assert len(bytes(error.response().body)) < 2**14
