"""Logs: what a line has, what it never has, and how files are rotated."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer_server.process import logs
from trainer_server.process.logs import JSONLines, LogSettings, TextLines, about, configure
from trainer_server.wire import ConfigError

log = logging.getLogger("trainer_server.tests")


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """The log of the test process is what it was before."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.captureWarnings(False)
    for handler in logging.root.handlers:
        if handler not in handlers:
            handler.close()
    logging.root.handlers, logging.root.level = handlers, level


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_lines_say_which_request_and_rollout_they_are_about(tmp_path: Path) -> None:
    configure(LogSettings("json", tmp_path / "logs" / "server.log"))
    with about(request="req-1", rollout="ro-1"):
        log.warning("an engine is %s", "slow")
        with about(request="req-2"):
            log.info("inside", extra={"status": 200})
    log.info("outside")
    first, inside, outside = lines(tmp_path / "logs" / "server.log")
    assert (first["level"], first["message"], first["logger"]) == ("warning", "an engine is slow", log.name)
    assert (first["request_id"], first["rollout_id"]) == ("req-1", "ro-1")
    assert (inside["request_id"], inside["status"], "rollout_id" in inside) == ("req-2", 200, False)
    assert "request_id" not in outside
    assert first["time"].endswith("+00:00")
    assert (tmp_path / "logs" / "server.log").stat().st_mode & 0o777 == 0o600


def test_an_error_keeps_its_trace_and_a_warning_of_python_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    configure(LogSettings("json", file))
    try:
        raise ValueError("half \ud83d of sk-0123456789abcdef0123")
    except ValueError:
        log.exception("it failed")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("an old name", DeprecationWarning, stacklevel=1)
    failed, warned = lines(file)
    assert "ValueError: half \ud83d of [secret]" in failed["exception"]
    assert (warned["logger"], "an old name" in warned["message"]) == ("py.warnings", True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer [secret]"),
        ("{'x-api-key': 'abcdef123456'}", "{'x-api-key': '[secret]'}"),
        ("api_key=abcdef123456, next", "api_key=[secret], next"),
        ("key sk-proj-0123456789abcdef and more", "key [secret] and more"),
        ("token art-AbCdEfGhIjKlMnOpQrStUvWxYz012345", "token [secret]"),
        ("http://me:password@host/v1", "http://[secret]@host/v1"),
        ("the-servers-own-token", "[secret]"),
        ("id AKIAIOSFODNN7EXAMPLE, ok", "id [secret], ok"),
        ("ASIAIOSFODNN7EXAMPLE", "[secret]"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "aws_secret_access_key = [secret]"),
        ("slack xoxb-123456789012-abcdefGHIJ", "slack [secret]"),
        ("glpat-AbCdEfGhIjKlMnOpQrSt", "[secret]"),
        ("github_pat_11ABCDEFG0abcdefghij_KLMNOP", "[secret]"),
        ("gho_0123456789abcdefABCD", "[secret]"),
        ("?q=1&id=AIzaSyA-1234567890abcdefghijklmnopqrs", "?q=1&id=[secret]"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.s1g_nature-x", "got [secret]"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [secret]"),
        ("sent Basic dXNlcjpwYXNzd29yZA== there", "sent Basic [secret] there"),
        ("Proxy-Authorization: Token abcdef123456", "Proxy-Authorization: Token [secret]"),
        ("PGPASSWORD=hunter22 psql", "PGPASSWORD=[secret] psql"),
        ("{'client_secret': 'abcdef123456'}", "{'client_secret': '[secret]'}"),
        ("-----BEGIN PRIVATE KEY-----MIIEvQ-----END PRIVATE KEY----- x", "[secret] x"),
        ("basic authentication, basic configuration", "basic authentication, basic configuration"),
        ("token=12345678, max_token: 4096000", "token=12345678, max_token: 4096000"),
        ("glossary-of-all-the-words-here", "glossary-of-all-the-words-here"),
        ("art-langgraph serve, art-reports", "art-langgraph serve, art-reports"),
        ("no api key is set", "no api key is set"),
    ],
)
def test_secrets_are_never_in_a_line(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "secrets", logs.Secrets())
    logs.secrets.keep("the-servers-own-token", None, "abc")
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "header": text})
    assert json.loads(JSONLines().format(record))["message"] == shown
    assert TextLines().format(record).count(shown) == 2


def test_a_text_cannot_look_like_another_line() -> None:
    record = logging.makeLogRecord({"msg": "asked for a\n2026-01-01 ERROR forged\x1b[2J", "levelname": "INFO"})
    first, second = TextLines().format(record).splitlines()
    assert first.endswith("INFO asked for a")
    assert second == "  | 2026-01-01 ERROR forged<U+001B>[2J"


def test_files_are_rotated_by_size_and_count(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    configure(LogSettings("text", file, max_mib=1, files=2))
    for number in range(5):
        log.info("%d%s", number, "x" * 700_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.log", "server.log.1", "server.log.2"]
    assert " INFO 4x" in file.read_text()
    assert " INFO 3x" in (tmp_path / "server.log.1").read_text()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--log-file .*server\.log cannot be written"):
        configure(LogSettings(file=tmp_path / "file" / "server.log"))


def test_the_standard_error_gets_the_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    with about(request="req-9"):
        log.info("hello")
    assert capsys.readouterr().err.endswith("INFO hello [request_id=req-9]\n")


def test_a_line_of_another_process_is_logged_as_it_was_written(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []
    logs.forward(sent.append)
    log.warning("an engine is %s", "away")
    configure(LogSettings("json", tmp_path / "server.log"))
    logs.take(sent[0])
    (line,) = lines(tmp_path / "server.log")
    assert (line["level"], line["logger"], line["message"]) == ("warning", log.name, "an engine is away")
