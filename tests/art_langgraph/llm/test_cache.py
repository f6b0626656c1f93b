"""The cache of answers is a convenience: a fault of it costs no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_langgraph.llm.cache import AnswerCache
from trainer_server.wire import ConfigError


def test_what_was_put_is_found_and_only_the_user_may_read_it(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "llm.sqlite")
    assert cache.get("a") is None
    cache.put("a", "1")
    cache.put("a", "2")
    assert AnswerCache(cache.path).get("a") == "2"
    assert cache.path.stat().st_mode & 0o777 == 0o600


def test_a_cache_that_breaks_is_warned_of_and_passed_by(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = AnswerCache(tmp_path / "llm.sqlite")
    cache.path.write_bytes(b"this is no database" * 100)
    assert cache.get("a") is None
    cache.put("a", "1")
    assert [text.partition(" cannot be ")[2].partition(",")[0] for text in caplog.messages] == ["read", "written"]


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the cache of answers .* cannot be opened: .*cache=None"):
        AnswerCache(tmp_path)
