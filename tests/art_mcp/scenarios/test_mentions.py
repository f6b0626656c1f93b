"""Which values a text mentions."""

from __future__ import annotations

import pytest

from art_mcp.scenarios.lines import mentions


@pytest.mark.parametrize(
    ("text", "fact", "said"),
    [
        ("The id is 1234567890123456789.", "1234567890123456789", True),
        ("The id is 1234567890123456788.", "1234567890123456789", False),
        ("It costs 3.50 euros.", "3.5", True),
        ("It costs 3.5 euros.", "3.50", True),
        ("There are 1,000 of them.", "1000.0", True),
        ("It is 0.1.", "0.10000000000000001", False),
    ],
)
def test_numbers_are_compared_exactly(text: str, fact: str, said: bool) -> None:
    assert mentions(text, fact) is said
