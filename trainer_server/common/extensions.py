"""The table of extensions: parts that may be left out, each a folder or a module.

The core captures, scores, trains and serves. It imports no extension by name: `load` imports one when a user needs its
feature. Where the folder is missing, the feature is absent, and `load` raises a ConfigError with the remedy.
To add an extension, write its folder, and add a row here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

from trainer_server.wire.errors import ConfigError

DASHBOARD = "trainer_server.dashboard"
PLANNING = "trainer_server.planning"


@dataclass(frozen=True, slots=True)
class Extension:
    """A part that may be left out.

    Args:
        module: Its package or module.
        feature: What is absent without it, for messages.
        needs: Modules of the extensions that it imports.
        commands: Names that it adds to `art-langgraph`.
        registrar: Module whose function `register(app)` adds them.
    """

    module: str
    feature: str
    needs: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    registrar: str = ""

    @property
    def present(self) -> bool:
        """Whether its files, and those of the extensions that it needs, are there. Imports the packages around it."""
        return all(map(_exists, (self.module, *self.needs)))

    def refuse(self) -> NoReturn:
        """Raises the ConfigError of a feature that is absent."""
        module = next((module for module in (self.module, *self.needs) if not _exists(module)), self.module)
        raise ConfigError(
            f"{self.feature} is not installed here: there is no {module}. "
            "Install all of the package: pip install --force-reinstall --no-deps art-langgraph"
        )


EXTENSIONS: tuple[Extension, ...] = (
    # Routes of the server.
    Extension(DASHBOARD, "the dashboard, with its list of runs and the state of the server,"),
    # Commands.
    Extension(PLANNING, "the memory plan", commands=("plan",), registrar=f"{PLANNING}.command"),
    Extension(
        "trainer_server.doctor",
        "the check of model and machine",
        needs=(PLANNING,),
        commands=("doctor",),
        registrar="trainer_server.doctor.command",
    ),
    Extension(
        "art_langgraph.auto_pilot", "the autopilot", commands=("autopilot",), registrar="art_langgraph.cli.autopilot"
    ),
    Extension(
        "art_langgraph.auto_rl",
        "training from the description of a task",
        commands=("autorl",),
        registrar="art_langgraph.cli.autorl",
    ),
    Extension(
        "art_langgraph.traces",
        "the import of other systems' traces",
        commands=("import",),
        registrar="art_langgraph.cli.traces",
    ),
    Extension("art_langgraph.exports", "the export for other trainers", needs=("art_langgraph.traces",)),
    Extension("art_mcp", "training on MCP servers", commands=("scenarios", "specialize"), registrar="art_mcp.cli"),
    # Databases by scheme.
    Extension("trainer_server.ledger.postgres", "the ledger in PostgreSQL"),
    Extension("art_langgraph.store.postgres", "the trajectory store in PostgreSQL"),
    # Trackers and executors by name.
    Extension("trainer_server.trackers", "trackers that show numbers"),
    Extension("art_langgraph.trackers", "trackers that show runs"),
    Extension("art_langgraph.loop.executors.ray", "the executor of Ray"),
)


def load(module: str) -> Any:
    """A module of an extension.

    Raises:
        ConfigError: The extension is absent.
        ImportError: A package that the module needs is not installed.
    """
    extension = extension_of(module)
    if extension is not None and not extension.present:
        extension.refuse()
    return import_module(module)


def find(module: str) -> ModuleType | None:
    """A module of an extension; None: the extension is absent."""
    extension = extension_of(module)
    return import_module(module) if extension is None or extension.present else None


def extension_of(module: str) -> Extension | None:
    """The extension that a module, or a registrar of commands, belongs to; None: it is core."""
    for extension in EXTENSIONS:
        if module == extension.registrar or f"{module}.".startswith(f"{extension.module}."):
            return extension
    return None


def register_commands(app: Any, registrars: Iterable[str]) -> None:
    """Adds the commands of modules to a command line, in this order. A command of an absent extension is hidden, and
    raises a ConfigError when it is called.

    Args:
        app: The `typer.Typer`.
        registrars: Modules with a function `register(app)`.
    """
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    for registrar in registrars:
        extension = extension_of(registrar)
        if extension is None or extension.present:
            import_module(registrar).register(app)
            continue
        for command in extension.commands:
            app.command(command, help="(not installed)", hidden=True, context_settings=anything)(extension.refuse)


def _exists(module: str) -> bool:
    package = module.rpartition(".")[0]
    try:
        around = find_spec(package) if package else None
    except ModuleNotFoundError:
        return False
    if not package:
        spec = find_spec(module)
    else:  # by its files, whether or not they can be imported
        spec = PathFinder.find_spec(module, around.submodule_search_locations if around else [])
    return spec is not None and spec.origin is not None  # a folder without files is no module
