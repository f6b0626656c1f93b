"""The entry point: what holds for all commands."""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Callable

import pytest

from art_langgraph.cli.main import build, main
from art_langgraph.cli.overview import FIRST_STEPS, PANELS
from tests.support.cli import art
from tests.support.proxies.refusing_proxy import without_proxies


def serve() -> None:
    runpy.run_module("trainer_server", run_name="__main__")


@pytest.mark.parametrize("command", [main, serve])
def test_a_process_of_this_project_and_its_children_ask_loopback_without_a_proxy(
    command: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_proxies(monkeypatch)
    for name, value in {"HTTPS_PROXY": "http://proxy.corp:3128", "NO_PROXY": "corp", "no_proxy": "corp"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["art-langgraph", "--help"])
    with pytest.raises(SystemExit):
        command()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "corp,localhost,127.0.0.1,::1,127.0.0.0/8"


def test_a_pipe_gets_each_line_when_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps what it writes into a pipe, and `quickstart | tee log` would show nothing for minutes."""
    pipe = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "argv", ["art-langgraph", "--help"])
    with pytest.raises(SystemExit):
        main()
    before = len(pipe.buffer.getvalue())  # type: ignore[attr-defined]
    pipe.write("a line\n")
    assert pipe.buffer.getvalue()[before:] == b"a line\n"  # type: ignore[attr-defined]


def test_without_a_command_it_shows_the_five_things_that_one_does_in_order() -> None:
    shown = art()
    assert shown.exit_code == 0
    lines = [line.split()[:3] for line in shown.output.splitlines() if line.startswith("  ")]
    commands = [words.split()[0] for words, _ in FIRST_STEPS]
    assert lines == [[f"{at}.", "art-langgraph", command] for at, command in enumerate(commands, 1)]
    assert len(lines) == 5
    assert shown.output.splitlines()[-1] == "All commands: art-langgraph --help"


def test_help_has_each_command_in_a_panel() -> None:
    app = build()
    infos = [*app.registered_commands, *app.registered_groups]
    assert {info.name for info in infos} == {name for names in PANELS.values() for name in names}
    text = art("--help").output
    places = [text.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
