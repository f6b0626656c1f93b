"""`art-langgraph demo`: the dashboard with a training that is made up."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from trainer_server.cli.local import JsonOption
from trainer_server.common import Home
from trainer_server.process.cpu_torch import SERVER, require


def no_engines(settings: object) -> list[Any]:
    """The engines of the demo: none, so its pages have nothing to complain of."""
    return []


def demo_command(
    port: Annotated[int, typer.Option(help="Port of the dashboard.", min=1, max=65535)] = 8400,
    as_json: JsonOption = False,
) -> None:
    """Show dashboard and viewer with a training that is made up: no vLLM, no training, no model.

    Its success by step is that of a recorded run of the quickstart; runs and tokens are drawn by chance. It answers no
    request to a model. Ctrl-C ends it, and deletes all of it.
    """
    require(*SERVER, extra="server")
    from trainer_server.server.access.auth import ensure_token
    from trainer_server.server.config import ServerConfig
    from trainer_server.server.serve import listen, serve

    example: Any = import_module("art_examples.quickstart.demo")  # the examples are made of all packages, this one too
    with tempfile.TemporaryDirectory(prefix="art-demo-") as directory:
        home, base = Home(Path(directory) / "home"), example.make_base(Path(directory))
        engine = f"{__name__}:{no_engines.__name__}"
        config = ServerConfig(home=home, model=str(base), port=port, engine=engine, trainer_on_demand=True)
        listen(config).close()  # before it names an address that may be another server's
        print("writing the runs of ten steps …", file=sys.stderr, flush=True)
        example.fill(home, base)
        token, url = ensure_token(home), f"http://127.0.0.1:{port}"
        if as_json:
            print(
                json.dumps({"url": url, "home": str(home.root), "token": token, "policy": example.POLICY}), flush=True
            )
        else:
            print(f"dashboard: {url}/ui/policies/{example.POLICY}\ntoken to log in: {token}")
            print(
                f"viewer, in another terminal: ART_HOME={shlex.quote(str(home.root))} art-langgraph trajectories list"
            )
            print("All of it is made up, and no engine answers. Ctrl-C ends it, and deletes it.", flush=True)
        serve(config)
