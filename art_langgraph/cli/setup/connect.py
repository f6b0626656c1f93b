"""`art-langgraph connect` and `disconnect`: the server that programs of this user ask, where they name none."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console

from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.printing.lists import print_json
from trainer_server.common import Connection, Home
from trainer_server.wire import ConfigError

_FIRST = ("ART_BASE_URL", "ART_API_KEY")
"""Variables that come before what `connect` stores."""


def connect_command(
    url: Annotated[str, typer.Argument(help="Address of the server, as https://art.example.com:8400.")],
    insecure: Annotated[bool, typer.Option(help="Allow http to another machine, in a network that you trust.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Use a server on another machine: all programs of this user find it, until `disconnect`.

    The token is taken from ART_API_KEY; or from the standard input, if that is no terminal; or it is asked for. Address
    and token are kept in ART_HOME, in a file that only this user may read.

    Example: art-langgraph connect https://art.example.com:8400
    """
    from art_langgraph.cli.setup.check import check_address, check_token

    url = check_address(url, insecure=insecure)
    connection = Connection(url, _token(url))
    token, home = check_token(connection), Home.find()
    home.connect(connection)
    if as_json:
        print_json({"url": url, **token.model_dump()})
    else:
        until = f", until {datetime.fromtimestamp(token.expires):%Y-%m-%d %H:%M}" if token.expires else ""
        print(f"connected to {url} as {token.name}, scope {token.scope}{until}. Kept in {home.connection}")
    for name in _FIRST:
        if name in os.environ:
            Console(stderr=True, soft_wrap=True).print(f"{name} is set, and comes first: programs take what it says")


def disconnect_command(as_json: JsonOption = False) -> None:
    """Forget the server of `connect`: programs ask the one on this machine again. Its token is deleted here."""
    home = Home.find()
    was_connected = home.disconnect()
    if as_json:
        print_json({"disconnected": was_connected})
    else:
        print(f"disconnected: {home.connection} is deleted" if was_connected else "not connected to any server")


def _token(url: str) -> str:
    if given := os.environ.get("ART_API_KEY"):
        return given
    typed = typer.prompt(f"Token for {url}", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not (token := str(typed).strip()):
        raise ConfigError(
            "no token: set ART_API_KEY, or give it on the standard input. `art-langgraph tokens create` makes one, on "
            "the server's machine"
        )
    return token
