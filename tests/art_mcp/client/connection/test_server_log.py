"""Errors that say nothing are explained by what the server wrote to its stderr, but not to agents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from art_langgraph import rollout
from art_mcp import Cassette, MCPError, connect
from art_mcp.client.connection.server_log import MAX_CHARACTERS, last_messages, says_nothing
from art_mcp.client.masking import Mask
from art_mcp.client.result import CallResult
from art_mcp.scenarios.execute import StepFailed, performed_step
from art_mcp.scenarios.plan import Step
from tests.support.mcp.commands import HIDING, needs_sdk_2
from tests.support.mcp.graphs import calling

RAISING = """
def get(city):
    return {"Oslo": 3}[
        city]
try:
    get("Lima")
except KeyError as error:
    raise RuntimeError("Error executing tool get_weather") from error
"""
GROUP = "raise ExceptionGroup('of a group', [ValueError('no city 1'), ValueError('no city 2')])"
RICH = """\
[11/27/26 20:50:43] ERROR    Tool 'get_weather' raised     server.py:455
                             an unexpected exception
                             ╭─ Traceback (most recent ─╮
                             │ /srv/mcp/tools/base.py:1 │
                             │ ❱ 184 │   │   │   result │
                             ╰──────────────────────────╯
                             KeyError: 'a very long name
                             of a city'

                             The above exception was the
                             direct cause of the
                             following exception:

                             +- Traceback (most recent -+
                             | in run                   |
                             +--------------------------+
                             UnexpectedToolError: Error
                             executing tool get_weather
"""
NODE = """\
weather listens
Processing request of type CallToolRequest
TypeError: Cannot read properties of undefined (reading 'city')
    at weather (file:///srv/weather.js:3:10)
    at process.processTicksAndRejections (node:internal/process/task_queues:95:5)
"""
GO = "panic: no such city\n\ngoroutine 1 [running]:\nmain.main()\n\t/srv/main.go:5 +0x1\n"


def stderr_of(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stderr


@pytest.mark.parametrize(
    ("text", "nothing"),
    [
        ("", True),
        ("Error executing tool get_weather", True),
        ("MCP error -32603: Internal error", True),
        ("UnexpectedToolError: an exception has occurred in get_weather", True),
        ("Error executing tool get_weather: no city Lima", False),
        ("Error: get_weather_of is not defined", False),
        ("ошибка", False),
    ],
)
def test_an_error_says_nothing_if_it_is_of_the_words_of_errors_alone(text: str, nothing: bool) -> None:
    assert says_nothing(text, "get_weather") is nothing


@pytest.mark.parametrize(
    ("log", "messages"),
    [
        ("", ""),
        ("starting\nno cities.txt\n\nError\ngiving up\n", "starting; no cities.txt; giving up"),
        (RICH, "KeyError: 'a very long name of a city'"),
        (NODE, "TypeError: Cannot read properties of undefined (reading 'city')"),
        (GO, "panic: no such city"),
        ("\x1b[31mno city\x1b[0m\n", "no city"),
    ],
)
def test_the_last_messages_are_the_exceptions_where_there_are_traces(log: str, messages: str) -> None:
    assert last_messages(log, "get_weather") == messages


def test_the_exceptions_of_python_are_found() -> None:
    assert last_messages(f"listening\n\n{stderr_of(RAISING)}next\n", "get_weather") == "KeyError: 'Lima'"
    told = last_messages(stderr_of(GROUP))
    assert told == "ExceptionGroup: of a group (2 sub-exceptions); ValueError: no city 1; ValueError: no city 2"


def test_a_long_log_is_cut_to_its_last_messages() -> None:
    told = last_messages("".join(f"{number} {'x' * 120}\n" for number in range(100)))
    assert told == f"98 {'x' * 120}; 99 {'x' * 120}"
    told = last_messages(f"no city {'x' * 10_000}")
    assert told == "no city"  # and no part of a word, which may be a secret
    assert len(last_messages("no city " * 10_000)) == MAX_CHARACTERS


def test_a_secret_that_a_logger_has_broken_is_masked_or_its_message_is_left_out() -> None:
    mask = Mask({"0123456789abcdef": "[KEY]"}).log
    assert last_messages("Error: not with 0123456789abcdef", mask=mask) == "Error: not with [KEY]"
    filled = "ERROR    no key \n         01234567  \n         89abcdef  \n"
    assert last_messages(filled, mask=mask) == "ERROR    no key [KEY]"
    assert last_messages("Error: no 01234567\n  89abcdef\n", mask=mask) == ""
    assert last_messages(f"Error: {'x' * 280} 0123456789abcdef", mask=mask)[-14:] == "x" * 8 + " [KEY]"


def test_a_reason_has_the_log_and_the_message_has_not() -> None:
    error = MCPError("Internal error", code=-32603, log="KeyError: 'city'").with_texts(str.upper)
    assert str(error) == "INTERNAL ERROR (the server wrote meanwhile: KEYERROR: 'CITY')"
    assert (error.message, error.code, error.failure) == ("INTERNAL ERROR", -32603, "protocol")
    result = CallResult.of_error(error, "weather")
    assert result.text == "weather: INTERNAL ERROR"
    assert result.reason == "weather: INTERNAL ERROR (the server wrote meanwhile: KEYERROR: 'CITY')"
    assert CallResult("", is_error=True).reason == "an error without a text"


@pytest.mark.slow
@needs_sdk_2
async def test_an_exception_that_the_sdk_hides_is_in_reasons_and_not_in_runs() -> None:
    async with connect(HIDING, env={"WEATHER_KEY": "0123456789"}) as server:
        weather = await server.call("get_weather", {"town": "Lima"})
        assert weather.text == "Error executing tool get_weather"
        assert weather.server_log == "KeyError: 'city'"
        with pytest.raises(StepFailed, match=r"^call 1, get_weather: Error .*_weather \(the server wrote .*'city'\)$"):
            await performed_step(server, Step(tool="get_weather", arguments={"town": "Lima"}), [])
        key = await server.call("get_session", {})
        assert key.server_log == "RuntimeError: the key [WEATHER_KEY] is over"
        reason = await server.call("get_reason", {})
        assert (reason.text, reason.server_log) == ("Error executing tool get_reason: no weather on Sundays", "")
        run = await rollout(calling(server, ("get_weather", {"town": "Lima"})), "go")
        assert [call.result for call in run.tool_calls] == ["Error executing tool get_weather"]
        assert "KeyError" not in run.model_dump_json()


@pytest.mark.slow
@needs_sdk_2
async def test_the_log_of_a_server_in_a_world_has_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    (tmp_path / "reports").mkdir()
    async with connect([*HIDING, "{world}"], worlds=tmp_path / "reports") as server:
        result = await server.call("get_file", {"name": "none.txt"})
    assert result.text == "Error executing tool get_file"
    assert result.server_log == ("FileNotFoundError: [Errno 2] No such file or directory: '/world/reports/none.txt'")


@pytest.mark.slow
@needs_sdk_2
async def test_a_cassette_replays_the_log(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    results = []
    for mode in ("record", "replay"):
        async with connect(HIDING, cassette=Cassette(tape, mode)) as server:
            results.append(await server.call("get_weather", {"town": "Lima"}))
    assert results[0] == results[1]
    assert results[1].server_log == "KeyError: 'city'"
