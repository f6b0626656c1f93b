"""`python -m trainer_server`: the same as `art-langgraph serve`."""

import sys

import typer

from trainer_server.common.proxies import exempt_loopback
from trainer_server.wire import ARTError
from trainer_server.wire.errors import require_linux

if __name__ == "__main__":
    exempt_loopback()
    try:
        require_linux("the trainer server")
        from trainer_server.cli import serve_command

        typer.run(serve_command)
    except ARTError as error:
        sys.exit(f"error: {error}")
