"""Results of tool calls: what is cut says so."""

from __future__ import annotations

import pytest

from art_mcp.client.result import CallResult


def test_structured_content_that_is_too_large_is_mentioned() -> None:
    answer = {"content": [{"type": "text", "text": "three rows"}], "structuredContent": {"rows": "x" * 200}}
    small = CallResult.of(answer, 100)
    assert small.text == "three rows\n[the structured result was left out: it has 212 characters, more than 100]"
    assert small.structured is None
    whole = CallResult.of(answer, 1000)
    assert (whole.text, whole.structured) == ("three rows", {"rows": "x" * 200})


@pytest.mark.parametrize("data", ["no base64", "ö", "\ud83d"])
def test_content_that_is_no_base64_has_a_digest_of_its_text(data: str) -> None:
    result = CallResult.of({"content": [{"type": "image", "mimeType": "image/png", "data": data}]})
    assert set(result.content[0]) == {"type", "mimeType", "bytes", "sha256"}
