"""Bodies of requests: what is no JSON, and what JSON allows and nothing behind the gateway takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainer_server.gateway.body import MAX_DEPTH, check_size, check_values, read_json
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


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_a_body_is_in_utf_8(encoding: str) -> None:
    """Python's JSON reader detects other encodings, in which nothing would be counted right."""
    raw = '["\u00e4", 1]'.encode(encoding)
    for read in (read_json, check_size):
        with pytest.raises(APIError, match="another encoding than UTF-8") as refused:
            read(raw)
        assert (refused.value.status, refused.value.code) == (400, "not_utf8")


@pytest.mark.parametrize(
    ("raw", "status", "code"), [(b"[" + b"1," * 20, 413, "too_many_values"), (b"9" * 1500, 400, None)]
)
def test_what_is_too_much_is_refused(raw: bytes, status: int, code: str | None) -> None:
    with pytest.raises(APIError) as refused:
        check_size(raw, 10)
    assert (refused.value.status, refused.value.code) == (status, code)


def test_long_texts_are_one_value() -> None:
    """A large image, and a text of commas."""
    for text in ("A" * 2**22, ",:[{" * 2**20, '\\"' * 2**20):
        assert read_json(json.dumps({"a": text}).encode(), 10) == {"a": text}


def test_an_error_quotes_the_beginning_of_what_is_long() -> None:
    error = APIError(400, "unknown: " + "k" * 10**6, param="k" * 10**6)
    assert len(bytes(error.response().body)) < 2**14
