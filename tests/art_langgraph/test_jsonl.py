"""JSON Lines: what is written is what is read, whatever the text has in it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import Trajectory
from art_langgraph.jsonl import read_jsonl, write_jsonl
from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError

texts = st.text(st.characters(codec=None)).map(
    # A high surrogate before a low one is one character in JSON, so that no text may have two of them side by side.
    lambda text: "".join(char for at, char in enumerate(text) if not (at and "\ud800" <= text[at - 1] <= "\udbff"))
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(values, max_size=5))
def test_what_is_written_is_what_is_read(records: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "records.jsonl"
        assert write_jsonl(path, records) == len(records)
        assert list(read_jsonl(path, lambda value: value)) == records
        assert path.read_bytes().count(b"\n") == len(records)


@given(texts)
def test_models_keep_every_character(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "runs.jsonl"
        run = Trajectory(scenario=Scenario(input={"q": text}), error=text)
        write_jsonl(path, [run])
        assert list(read_jsonl(path, Trajectory.model_validate)) == [run]


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes('\ufeff"a\u2028b\x85c"\r\n\n"d"'.encode())
    assert list(read_jsonl(path, str)) == ["a\u2028b\x85c", "d"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2 is not JSON"),
        (b"\xff", "line 2 is not JSON: 'utf-8' codec"),
        (b"{}", "line 2 is no scenario: input: Field required"),
    ],
)
def test_an_error_names_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b'{"input": 1}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=message) as raised:
        list(read_jsonl(path, Scenario.model_validate, what="scenario"))
    assert str(path) in str(raised.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read: No such file"):
        list(read_jsonl(tmp_path / "none.jsonl", str))


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write_jsonl(path, [1])
    with pytest.raises(TypeError):
        write_jsonl(path, [2, object()])
    assert path.read_text() == "1\n"
    assert [one.name for one in tmp_path.iterdir()] == ["s.jsonl"]
