"""Schema numbers of JSON files: earlier forms are changed when they are read, newer ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from trainer_server.common.schemas import RecordSchema
from trainer_server.wire import NewerSchema

PATH = Path("/home/version.json")


class Word(BaseModel):
    text: str
    letters: int


def _numbered(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _counted(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "letters": len(record["text"])}


SECOND = RecordSchema(_numbered, _counted)


def test_what_is_written_has_the_number_and_is_read_again() -> None:
    text = SECOND.to_text(Word(text="four", letters=4))
    assert json.loads(text)["schema"] == SECOND.number == 2
    assert SECOND.from_text(text, PATH) == {"text": "four", "letters": 4}


@pytest.mark.parametrize("number", [{}, {"schema": 1}])
def test_an_earlier_record_is_read_as_one_of_today(number: dict[str, int]) -> None:
    """Records of the first release have no number."""
    assert SECOND.from_text(json.dumps({"text": "four", **number}), PATH) == {"text": "four", "letters": 4}


def test_a_newer_record_is_refused() -> None:
    with pytest.raises(NewerSchema, match=r"/home/version.json has schema 3, .* up to 2: .* Upgrade"):
        SECOND.from_text('{"schema": 3}', PATH)


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": "1"}', '{"schema": -1}', '{"schema": null}'])
def test_what_is_no_record_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"schema|object|Expecting"):
        SECOND.from_text(text, PATH)
