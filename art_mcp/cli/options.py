"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_langgraph.cli.options import make_llm
from art_langgraph.loop.options import values_of
from art_mcp.options import TaskOptions
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_langgraph.llm.llm import LLM

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="The MCP server: a command, or an http(s) URL.")]


@dataclass(frozen=True, kw_only=True)
class ConnectionFlags:
    """A connection to an MCP server on the command line.

    Args:
        header: For a URL: 'Name: value', 'Name: @FILE', or @FILE with a header on each line; repeatable. Keep secrets
            in files: `ps` shows command lines to everybody.
        env: Environment variable for a command: NAME (its value here), NAME=@FILE, or NAME=VALUE; repeatable. Others
            than HOME, PATH and the like do not reach it.
        world: Directory, file, SQLite database or Git repository that the server works on; repeatable. Each run gets a
            copy, in which the server is started. {world} or {world:NAME} in SERVER and --env is the path of the copy;
            the model sees /world/NAME. The original is only read.
        reset: Resets the server before each run: a command, or a URL that is sent a POST. Runs are then one after
            another. For a server whose data cannot be copied.
    """

    header: list[str] | None = None
    env: list[str] | None = None
    world: list[str] | None = field(default=None, metadata={"metavar": "[NAME=]PATH"})
    reset: str | None = field(default=None, metadata={"metavar": "CMD|URL"})

    def keywords(self) -> dict[str, Any]:
        """Keywords of `connect`. Raises ConfigError where a header or a variable cannot be read."""
        return {
            "headers": headers_of(self.header),
            "env": variables_of(self.env),
            "worlds": self.world or None,
            "reset": self.reset,
        }


@dataclass(frozen=True, kw_only=True)
class GenerationFlags(TaskOptions):
    """A generation of scenarios on the command line.

    Args:
        model: Model that writes scenarios: provider/name; or policy, the base model of the trainer server, which writes
            the requests for calls that worked. Default: schemas alone.
        model_url: OpenAI-compatible endpoint of --model provider/name. Its API key: ART_JUDGE_KEY.
        paraphrase: Model that rewrites the texts of tasks: provider/name, also at --model-url; or policy.
        resource: Values for arguments: PARAMETER.txt or PARAMETER=FILE, one per line; or JSON.
        seed: Seed of scenarios, their split and their order.
    """

    model: str | None = None
    model_url: str | None = None
    paraphrase: str | None = None
    resource: list[Path] | None = None
    seed: int = 0

    def keywords(self) -> dict[str, Any]:
        """Keywords of `generate_scenarios` and of `GenerationSettings`, but for the seed."""
        return {
            "model": _language_model(self.model, self.model_url),
            "paraphrase": _language_model(self.paraphrase, self.model_url),
            "resources": self.resource,
            **values_of(self, TaskOptions),
        }


def _language_model(name: str | None, url: str | None) -> LLM | str | None:
    """The model that an option names. None: it is not given. A trainer server is only looked for when one is needed."""
    if not name:
        return None
    from art_langgraph.llm.trainer_model import POLICY

    return name if name == POLICY else make_llm(name, url)


def headers_of(options: list[str] | None) -> dict[str, str] | None:
    """The values of --header by name, or None if there are none.

    Args:
        options: Each `Name: value`; `Name: @FILE`, for a value that is in a file; or `@FILE`, for a file with one
            `Name: value` a line. Blank lines and lines that begin with # are left out.

    Raises:
        ConfigError: An option or a line has another form, a value is no header's, or a file cannot be read. The message
            leaves out what was given, which may have a secret.
    """
    headers: dict[str, str] = {}
    for option in options or ():
        if not option.startswith("@"):
            name, value = _header(option, "--header takes 'Name: value', 'Name: @FILE' or @FILE")
            headers[name] = _sendable(name, _value(value, "--header"), "--header")
            continue
        for number, line in enumerate(_read(option[1:], "--header").splitlines(), start=1):
            if line.strip() and not line.startswith("#"):
                where = f"{option[1:]}, line {number}"
                name, value = _header(line, f"{where}: a header is 'Name: value'")
                headers[name] = _sendable(name, value, where)
    return headers or None


def variables_of(options: list[str] | None) -> dict[str, str] | None:
    """The values of --env by name, or None if there are none.

    Args:
        options: Each `NAME`, for the value that the variable has here; `NAME=@FILE`; or `NAME=VALUE`.

    Raises:
        ConfigError: An option has another form, a variable is not set, or a file cannot be read.
    """
    variables: dict[str, str] = {}
    for option in options or ():
        name, sign, value = option.partition("=")
        if not name:
            raise ConfigError("--env takes NAME, NAME=@FILE or NAME=VALUE")
        if not sign and name not in os.environ:
            raise ConfigError(f"--env {name}: {name} is not set in this environment")
        variables[name] = _value(value, "--env") if sign else os.environ[name]
    return variables or None


def _header(text: str, otherwise: str) -> tuple[str, str]:
    """Name and value of a header. Raises ConfigError with the message `otherwise` if it has another form."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(otherwise)
    return name.strip(), value.strip()


def _sendable(name: str, value: str, where: str) -> str:
    """The value of a header. Raises ConfigError if HTTP cannot carry it; the HTTP client's own error would quote it."""
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(f"{where}: the value of {name} must be one line of ASCII characters")
    return value


def _value(text: str, option: str) -> str:
    """A value, or what the file has that it names by @. option: for the error message."""
    return _read(text[1:], option).strip() if text.startswith("@") else text


def _read(path: str, option: str) -> str:
    """Reads a file. Raises ConfigError if it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{option}: {path} cannot be read: {reason}") from None
