"""Flags of a command derive from the fields of a dataclass, also where the command line writes a value otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import art
from trainer_server.common.options import help_of
from trainer_server.process.logs import LogSettings
from trainer_server.server.config import ServerConfig


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """What `serve` was called with."""
    calls: list[ServerConfig] = []
    monkeypatch.setattr("trainer_server.server.serve.serve", calls.append)
    return calls


@pytest.mark.parametrize("options", [ServerConfig, LogSettings])
def test_each_option_has_a_meaning(options: type) -> None:
    assert all(help_of(options).values())


def test_without_flags_the_defaults_of_the_dataclass_hold(
    configs: list[ServerConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ART_TRAINER_LOW_PRIORITY", raising=False)
    assert art("serve", "--home", str(tmp_path)).exit_code == 0
    (config,) = configs
    assert config == ServerConfig(config.home)
    assert config.home.root == tmp_path


def test_values_that_the_command_line_writes_otherwise(
    configs: list[ServerConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_ENGINE_API_KEY", "a-key")
    words = ["--home", str(tmp_path), "--engine-args", "--seed 1 --name 'a b'", "--keep-gib", "0", "--loss", "a=b:c"]
    words += ["--engine-url", "http://a", "--engine-url", "http://b", "--log-max-mib", "7", "--no-share-gpu"]
    assert art("serve", *words).exit_code == 0
    (config,) = configs
    assert config.engine_args == ("--seed", "1", "--name", "a b")
    assert (config.keep_gib, config.keep_jobs_gib) == (None, 20.0)
    assert (config.losses, config.engine_urls) == (("a=b:c",), ("http://a", "http://b"))
    assert (config.logs, config.engine_api_key) == (LogSettings(max_mib=7), "a-key")


def test_a_value_out_of_its_range_is_refused(configs: list[ServerConfig]) -> None:
    answer = art("serve", "--adapter-slots", "1")
    assert answer.exit_code == 2
    assert configs == []
