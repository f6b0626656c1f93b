"""Text for messages."""

from __future__ import annotations

import pytest

from trainer_server.wire.text import quantity


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 requests"), (1, "1 request"), (2, "2 requests"), (1024, "1,024 requests")]
)
def test_one_thing_is_no_plural(number: int, text: str) -> None:
    assert quantity(number, "request") == text
