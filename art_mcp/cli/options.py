"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trainer_server.wire import ConfigError

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="The MCP server: a command, or an http(s) URL.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Model that writes scenarios (provider/name). Default: schemas alone."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--model-url", help="OpenAI-compatible endpoint of --model. Its API key: ART_JUDGE_KEY."),
]
ParaphraseOption = Annotated[
    str | None,
    typer.Option("--paraphrase", help="Model that rewrites the texts of tasks (provider/name), also at --model-url."),
]
ResourceOption = Annotated[
    list[Path] | None,
    typer.Option("--resource", help="Values for arguments: PARAMETER.txt or PARAMETER=FILE, one per line; or JSON."),
]
DestructiveOption = Annotated[
    bool,
    typer.Option(
        "--allow-destructive",
        help="Call tools that change or destroy something although the change stays. Not needed with --world or "
        "--reset.",
    ),
]
WorldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--world",
        metavar="[NAME=]PATH",
        help="Directory, file, SQLite database or Git repository that the server works on; repeatable. Each run gets a "
        "copy, in which the server is started. {world} or {world:NAME} in SERVER and --env is the path of the copy; "
        "the model sees /world/NAME. The original is only read.",
    ),
]
ResetOption = Annotated[
    str | None,
    typer.Option(
        metavar="CMD|URL",
        help="Resets the server before each run: a command, or a URL that is sent a POST. Runs are then one after "
        "another. For a server whose data cannot be copied.",
    ),
]
InstructionsOption = Annotated[str | None, typer.Option(help="Additional instructions for --model.")]
DifficultyOption = Annotated[tuple[int, int], typer.Option(help="Least and greatest difficulty, 1 to 5.")]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        help="For a URL: 'Name: value', 'Name: @FILE', or @FILE with a header on each line; repeatable. Keep secrets "
        "in files: `ps` shows command lines to everybody.",
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="Environment variable for a command: NAME (its value here), NAME=@FILE, or NAME=VALUE; repeatable. Others "
        "than HOME, PATH and the like do not reach it.",
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of scenarios, their split and their order.")]


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
        name, given, value = option.partition("=")
        if not name:
            raise ConfigError("--env takes NAME, NAME=@FILE or NAME=VALUE")
        if not given and name not in os.environ:
            raise ConfigError(f"--env {name}: {name} is not set in this environment")
        variables[name] = _value(value, "--env") if given else os.environ[name]
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
