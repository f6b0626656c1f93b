"""JSON Lines: what is written is what is read, whatever the text has in it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import Trajectory
from art_langgraph.trajectory import Scenario
from trainer_server.common.jsonl import append_jsonl, from_json, lines_of, read_jsonl, to_json, write_jsonl
from trainer_server.wire import ConfigError

texts = st.lists(st.sampled_from("a\ud83d\ude00\u2028\u2029\x85\x1c\v\r\n") | st.characters(codec=None)).map(
    # A high surrogate before a low one is one character in JSON.
    lambda chars: "".join(chars).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
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


@given(texts)
def test_a_record_is_one_line_of_utf_8(text: str) -> None:
    run = Trajectory(scenario=Scenario(input={"q": text}), error=text)
    line = to_json(run)
    line.encode()
    assert "\n" not in line
    assert from_json(Trajectory, line) == run


@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_what_is_appended_comes_after_what_was_there(first: list[str], second: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "records.jsonl"
        append_jsonl(path, first)
        append_jsonl(path, second)
        assert list(read_jsonl(path, str)) == [*first, *second]


def test_json_over_several_lines_is_told_from_jsonl(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('[\n  {"input": "x"}\n]\n')
    with pytest.raises(
        ConfigError, match=r"line 1 is not JSON: .*\. Each line must be a JSON value of its own \(JSONL\)"
    ):
        list(read_jsonl(tmp_path / "a.jsonl", str, what="scenario"))


def test_a_line_that_a_kill_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path, said = tmp_path / "r.jsonl", list[str]()
    append_jsonl(path, [{"a": 1}, {"a": 2}])
    path.write_bytes(path.read_bytes()[:-4])
    append_jsonl(path, [{"a": 3}])
    assert list(read_jsonl(path, lambda row: row["a"], skip=said.append)) == [1, 3]
    assert said == [f"{path}, line 2 is not JSON: Expecting value: line 1 column 6 (char 5)"]
    append_jsonl(path, [{"b": 4}])
    assert list(read_jsonl(path, lambda row: row["a"], skip=said.append)) == [1, 3]
    assert said[-1] == f"{path}, line 4 is no record: it has no 'a'"


@given(st.lists(texts.map(to_json), max_size=4), st.integers(1, 7))
def test_lines_of_a_stream_do_not_depend_on_its_chunks(lines: list[str], size: int) -> None:
    data = "".join(f"{line}\r\n" for line in lines).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    async def collected() -> list[str]:
        return [line.decode() async for together in lines_of(chunks(), most_bytes=2**20) for line in together]

    assert asyncio.run(collected()) == lines


def test_only_the_user_may_read_a_new_file_and_a_replaced_one_keeps_its_readers(tmp_path: Path) -> None:
    written, appended = tmp_path / "w.jsonl", tmp_path / "a.jsonl"
    write_jsonl(written, [1])
    append_jsonl(appended, [1])
    assert [path.stat().st_mode & 0o777 for path in (written, appended)] == [0o600, 0o600]
    written.chmod(0o640)
    write_jsonl(written, [2])
    assert written.stat().st_mode & 0o777 == 0o640


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes('\ufeff"a\u2028b\x85c"\r\n\n"d"'.encode())
    assert list(read_jsonl(path, str)) == ["a\u2028b\x85c", "d"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2 is not JSON"),
        (b"\xff", "line 2 is not JSON: 'utf-8' codec"),
        (b"[" * 100_000 + b"]" * 100_000, "line 2 is not JSON: it is nested too deeply"),
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
    with pytest.raises(ValueError, match="Unable to serialize"):
        write_jsonl(path, [2, object()])
    assert path.read_text() == "1\n"
    assert [one.name for one in tmp_path.iterdir()] == ["s.jsonl"]
