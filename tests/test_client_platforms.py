"""The client on Windows and macOS, as far as Linux can show it. The workflow of CI tries both systems."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.support.patience import PATIENCE
from tests.support.platforms.client_tests import EXCLUDED, LINUX_ONLY
from tests.support.platforms.windows import ODD
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server import cli, commands

ROOT = Path(__file__).parents[1]
CLIENT = ("art_langgraph", "art_mcp", "trainer_server/wire")
_TEXT_MODE = re.compile(r"[rwax]\+?t?")


def test_the_client_needs_nothing_that_windows_does_not_have(tmp_path: Path, server: TrainerServer) -> None:
    """With the code page 1252 on its standard streams, and files that are ASCII where nobody says otherwise."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ART_", "LC_", "LANG"))}
    # In such a locale Python does not find what is installed as editable below a path that is not ASCII.
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "art_examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.platforms.windows", server.url],
        env={
            **inherited,
            "ART_HOME": str(tmp_path / "home"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "sources")]),
            "PYTHONIOENCODING": "cp1252",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "LC_ALL": "C",
            "PYTHONWARNDEFAULTENCODING": "1",
        },
        input=f"{TOKEN}\n".encode(),
        capture_output=True,
        cwd=tmp_path,
        timeout=PATIENCE,
    )
    output, errors = done.stdout.decode("cp1252"), done.stderr.decode("cp1252")
    assert done.returncode == 0, output + errors
    assert "Traceback" not in output + errors
    assert errors.count("needs Linux, and this is Windows: run it on a Linux machine, or in WSL2") == 4, errors
    assert "Start one on a Linux machine, or in WSL2, and call here: art-langgraph connect URL" in errors
    listed = output.partition("$ trajectories list --json\n")[2].partition("\n$ ")[0]
    assert f"asked {ODD}" in [run["question"] for run in json.loads(listed)]


def test_the_commands_that_are_refused_elsewhere_are_those_of_the_server() -> None:
    app = typer.Typer()
    cli.register(app)
    registered = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    assert sorted(registered, key=str) == sorted(commands.NAMES)


def in_locale_encoding(source: str) -> Iterator[int]:
    """The lines that open a file as text and name no encoding."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or any(word.arg in ("encoding", None) for word in call.keywords):
            continue
        attribute = isinstance(call.func, ast.Attribute)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
        modes = [text.value for text in given if isinstance(text, ast.Constant) and isinstance(text.value, str)]
        text_mode = any(_TEXT_MODE.fullmatch(mode) for mode in modes)
        opens = name == "open" and (text_mode or (not attribute and len(given) == 1))
        as_text = any(word.arg == "text" and getattr(word.value, "value", None) is True for word in call.keywords)
        if opens or as_text or name in ("read_text", "write_text") or (name == "fdopen" and text_mode):
            yield call.lineno


def test_every_file_of_the_client_is_opened_as_utf_8() -> None:
    files = (file for package in CLIENT for file in (ROOT / package).rglob("*.py"))
    lines = [(file, line) for file in files for line in in_locale_encoding(file.read_text(encoding="utf-8"))]
    assert [f"{file.relative_to(ROOT)}:{line}" for file, line in lines] == []


def test_a_file_in_the_encoding_of_the_locale_is_seen() -> None:
    source = """
path.read_text()
open(path)
path.open("a")
os.fdopen(pipe, "w")
subprocess.run(command, text=True)
path.read_text(encoding="utf-8")
open(path, "rb")
path.open("wb")
session.open()
"""
    assert list(in_locale_encoding(source)) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("begin", [begin for tests in EXCLUDED.values() for begin in tests] + [LINUX_ONLY])
def test_what_is_skipped_elsewhere_is_there(begin: str) -> None:
    file, _, name = begin.partition("::")
    assert (ROOT / file).exists()
    assert not name or re.search(rf"^(async )?def {name}", (ROOT / file).read_text(encoding="utf-8"), re.M)
