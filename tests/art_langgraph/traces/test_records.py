"""Records of files: lines, arrays, documents, gzip, Parquet, and what is damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from art_langgraph.traces.problems import Skips
from art_langgraph.traces.records import read_records
from trainer_server.wire import ConfigError

ROWS = [{"a": 1, "text": "ä\u2028z"}, {"a": [1, {"b": "]}"}]}, {"a": None}]


def read(path: Path) -> tuple[list[tuple[int, Any]], list[str]]:
    skips = Skips()
    return list(read_records(path, skips)), list(skips)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), [1, 2, 3]),
        ("\ufeff\n" + "\r\n".join(json.dumps(row) for row in ROWS), [2, 3, 4]),
        (json.dumps(ROWS), [1, 1, 1]),
        (json.dumps(ROWS, indent=2), [2, 6, 14]),
        ("".join(json.dumps(row, indent=1) + "\n" for row in ROWS), None),
    ],
)
def test_lines_arrays_and_documents_are_read(tmp_path: Path, text: str, lines: list[int] | None) -> None:
    for name, content in (("x.jsonl", text.encode()), ("x.gz", gzip.compress(text.encode()))):
        (tmp_path / name).write_bytes(content)
        found, left_out = read(tmp_path / name)
        assert [value for _, value in found] == ROWS
        assert lines is None or [line for line, _ in found] == lines
        assert not left_out


def test_parquet_is_read_by_rows(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": str(number), "inputs": json.dumps({"n": number})} for number in range(600)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "runs.parquet")
    assert read(tmp_path / "runs.parquet") == (list(enumerate(rows, start=1)), [])
    (tmp_path / "no.parquet").write_text("{}")
    with pytest.raises(ConfigError, match="is no Parquet file"):
        read(tmp_path / "no.parquet")


def test_damaged_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": \n\n{"a": 2}\n' + "[" * 100_000 + "\n" + "oops\n" * 9)
    found, left_out = read(path)
    assert found == [(1, {"a": 1}), (4, {"a": 2})]
    assert left_out[0].startswith("not JSON (10: lines 2, 6, 7, 8, 9, …); the export was cut off")
    assert left_out[1].startswith("nested too deeply (1: line 5)")


def test_an_array_that_was_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(ROWS, indent=1)[:-20])
    found, left_out = read(path)
    assert [value for _, value in found] == ROWS[:2]
    assert left_out[0].startswith("not JSON (1: line ")


def test_a_value_may_be_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    rows = [{"text": "é" * 3_000_000}, {"text": "b"}]
    path.write_text(json.dumps(rows, ensure_ascii=False))
    assert [value for _, value in read(path)[0]] == rows


def test_a_line_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n{"a": 1}\n')
    found, left_out = read(path)
    assert found == [(2, {"a": 1})]
    assert left_out[0].startswith("not UTF-8 (1: line 1)")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'[{"a": "\xff"}]')
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-10])
    for name, why in (("latin", "not UTF-8"), ("cut.gz", "cannot be read"), ("none", "No such file")):
        with pytest.raises(ConfigError, match=why):
            read(tmp_path / name)
