"""A laptop with Windows: `python -m tests.support.platforms.windows URL`, in a process of its own. Its standard input
has the token of the server.

The client is imported and used without the modules, functions and signals that Windows does not have. The standard
library and other packages are imported before these are hidden, since each of them has a branch for Windows that cannot
run here. So paths, event loop and locks are those of Linux all the same.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import platform
import select
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from tests.support.mcp.commands import SHOP

CLIENT = ("art_langgraph", "art_mcp", "trainer_server.wire")
SERVER_ONLY = {"trainer_server.common.guard"}
MODULES = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog", "readline", "curses")
ATTRIBUTES: dict[ModuleType, str] = {
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid getgroups killpg setsid setpgid getpgid getpgrp "
    "getsid uname sched_getaffinity sched_setaffinity fchmod fchown chown lchown nice pread pwrite mkfifo mknod "
    "statvfs fstatvfs sysconf confstr getloadavg getpriority setpriority chroot sync wait3 wait4 O_DIRECTORY ctermid",
    signal: "SIGKILL SIGHUP SIGCHLD SIGQUIT SIGPIPE SIGALRM SIGUSR1 SIGUSR2 SIGTSTP SIGWINCH alarm setitimer "
    "pthread_sigmask pthread_kill sigwait",
    select: "poll epoll",
}
ODD = "→ ✓ 😀 ü"
"""Characters of which a console with the code page 1252 has one."""


def names() -> Iterator[str]:
    """The modules of the client, and those of other packages that its command line imports."""
    for package in CLIENT:
        yield package
        path = importlib.import_module(package).__path__
        yield from (module.name for module in pkgutil.walk_packages(path, f"{package}."))
    yield from ("trainer_server.commands", "art_examples.quickstart.cli")


def hide() -> None:
    """Makes this process one of Windows, as far as it can, and imports all modules of the client."""
    from langchain_openai import ChatOpenAI  # noqa: F401 - they import others when they are used first
    from mcp.client.stdio import stdio_client  # noqa: F401

    modules = [name for name in names() if name not in SERVER_ONLY]
    for name in modules:
        importlib.import_module(name)
    platform.uname()  # it is kept
    for name in [*sys.modules]:
        if name.split(".")[0] in ("art_langgraph", "art_mcp", "trainer_server", "art_examples"):
            del sys.modules[name]
    sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]
    for module, attributes in ATTRIBUTES.items():
        for attribute in attributes.split():
            delattr(module, attribute)
    sys.platform = "win32"
    platform.system = lambda: "Windows"
    warnings.filterwarnings("error", category=EncodingWarning, module=r"(art_langgraph|art_mcp|trainer_server)(\.|$)")
    for name in modules:
        importlib.import_module(name)


def command(*words: str) -> int:
    """The exit status of `art-langgraph`, which writes to this process's standard output."""
    from art_langgraph.cli.main import main

    sys.argv = ["art-langgraph", *words]
    print("$", *words, flush=True)
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


async def run_graphs(url: str) -> None:
    """Captures a graph that asks the trainer server, and one that calls an MCP server over stdio."""
    from langchain_core.runnables import RunnableLambda

    from art_langgraph import Scenario, TrajectoryStore, rollout
    from art_mcp import connect
    from tests.support.runs.graphs import counting
    from trainer_server.common import Home
    from trainer_server.wire import MCPError

    store = TrajectoryStore(Home.find().store)
    run = await rollout(counting(), Scenario(input=f"asked {ODD}", metadata={"answer": ODD}), lambda run: 1.0)
    assert run.error is None
    assert run.completions
    store.add(run)
    async with connect(SHOP) as shop:
        (price,) = (tool for tool in await shop.tools() if tool.name == "get_price")
        run = await rollout(RunnableLambda(price.ainvoke), Scenario(input={"item_id": "it-77"}))
        assert [call.tool for call in run.tool_calls] == ["get_price"]
        store.add(run)
    try:
        async with connect([sys.executable, "-c", "raise SystemExit('no licence')"]):
            raise AssertionError("a server that ends was connected")
    except MCPError as error:
        reason = str(error)
    assert "it wrote: no licence" in reason
    assert TrajectoryStore(store.path).find(run.id) is not None


def capture_process() -> None:
    """What ART_CAPTURE=1 does: the thread that writes, and what is left at the end of the process."""
    from art_langgraph.capture import flush, install
    from tests.support.runs.graphs import counting

    install()
    asyncio.run(counting().ainvoke({"messages": [("user", ODD)]}))
    flush()


def hold_locks() -> None:
    """Two of a kind, of which the second one gets none."""
    from art_langgraph.store.sqlite import SQLiteDatabase
    from art_mcp.specialization.run_directory import RunDirectory
    from trainer_server.common import Home

    database = SQLiteDatabase(Home.find().store)
    with database.alone("autopilot-a") as first, database.alone("autopilot-a") as second:
        assert first is not None
        assert second is None
    directory = RunDirectory(Path("run"), {"seed": 0}, resume=False)
    assert "another process works on the run" in refusal(lambda: RunDirectory(Path("run"), {"seed": 0}, resume=True))
    directory.write("report.md", ODD)
    directory.close()
    assert RunDirectory(Path("run"), {"seed": 0}, resume=True).resumed


def refusal(call: Callable[[], object]) -> str:
    """Why a call is refused."""
    from trainer_server.wire import ConfigError

    try:
        call()
    except ConfigError as error:
        return str(error)
    raise AssertionError("it was not refused")


def main(url: str) -> None:
    """What somebody does there."""
    hide()
    for words in ((), ("trajectories",), ("autopilot",), ("specialize",), ("scenarios",), ("connect",), ("train",)):
        assert command(*words, "--help") == 0, words
    assert command("specialize", shlex.join(SHOP)) == 1
    assert command("connect", url) == 0
    assert command("status") == 0
    asyncio.run(run_graphs(url))
    capture_process()
    hold_locks()
    assert command("trajectories", "list", "--json") == 0
    assert command("trajectories", "list") == 0
    for _ in range(2):  # the second one replaces the file
        assert command("trajectories", "export", "runs.jsonl") == 0
    from art_mcp.worlds.world import World

    assert "WSL2" in refusal(lambda: World("."))
    for words in (("serve", "--model", "embedded"), ("engine", "install"), ("quickstart",), ("plan", "--model", "m")):
        assert command(*words) == 1, words


if __name__ == "__main__":
    main(*sys.argv[1:])
