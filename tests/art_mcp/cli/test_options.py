"""How the values of --header and --env are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_langgraph import LLM
from art_mcp.cli.options import GenerationFlags, headers_of, variables_of
from trainer_server.wire import ConfigError


def test_secrets_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on a command line, `ps` shows to everybody."""
    (tmp_path / "key").write_text("Bearer 123\n")
    (tmp_path / "all").write_text("# of the shop\nX-One: 1\n\nX-Two: a: b\n")
    (tmp_path / "bad").write_text("hunter2\n")
    monkeypatch.setenv("SHOP_KEY", "456")
    assert headers_of(None) is None
    assert headers_of([f"Authorization: @{tmp_path / 'key'}", f"@{tmp_path / 'all'}", "X-Three: 3"]) == {
        "Authorization": "Bearer 123",
        "X-One": "1",
        "X-Two": "a: b",
        "X-Three": "3",
    }
    with pytest.raises(ConfigError, match="bad, line 1: ") as wrong:
        headers_of([f"@{tmp_path / 'bad'}"])
    assert "hunter2" not in str(wrong.value)
    (tmp_path / "long").write_text("Bearer hunter2\nand more\n")
    (tmp_path / "umlaut").write_text("X-Key: hünter2\n")
    for option, where in ((f"Authorization: @{tmp_path / 'long'}", "--header"), (f"@{tmp_path / 'umlaut'}", "line 1")):
        with pytest.raises(ConfigError, match=f"{where}: the value of .* must be one line of ASCII") as wrong:
            headers_of([option])
        assert "nter2" not in str(wrong.value)
    assert variables_of(None) is None
    assert variables_of(["SHOP_KEY", f"TOKEN=@{tmp_path / 'key'}", "LEVEL=3=4"]) == {
        "SHOP_KEY": "456",
        "TOKEN": "Bearer 123",
        "LEVEL": "3=4",
    }


def test_policy_is_looked_for_when_it_is_needed_and_other_models_are_of_the_endpoint() -> None:
    pytest.importorskip("litellm", reason="models by name are asked through litellm")
    plain = GenerationFlags().keywords()
    assert (plain["model"], plain["paraphrase"]) == (None, None)
    words = GenerationFlags(model="policy", paraphrase="writer", model_url="http://127.0.0.1:9").keywords()
    assert words["model"] == "policy"
    assert isinstance(words["paraphrase"], LLM)
    assert words["paraphrase"].model == "writer"
