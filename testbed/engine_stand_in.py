"""The small engine under vLLM's command line: what a server launches where vLLM would be.

`python testbed/engine_stand_in.py FLAGS…` takes the flags and the environment that vLLM gets; ENGINE names it. Like
vLLM it takes middleware, which it finds on its PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def install_stand_in(cache: Path, *, name: str = "engine", before: Sequence[str] = ()) -> None:
    """Makes the small engine look like an installed vLLM.

    Args:
        cache: The cache directory of a home (`ART_CACHE`).
        name: What the engine answers to `where`; `$VARIABLE` of its environment.
        before: Lines of shell to run before the engine.
    """
    python = cache / "engine" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    (cache / "engine" / "art-engine.json").write_text(json.dumps({"flavour": "cuda", "requirement": "vllm"}))
    start = f'ENGINE={name} exec {shlex.join([sys.executable, str(Path(__file__).absolute())])} "$@"'
    python.write_text("\n".join(["#!/bin/sh", *before, start, ""]))
    python.chmod(0o755)


def main() -> None:
    """Serves until it is told to stop."""
    import uvicorn

    from testbed.engine_app import make_app

    def options(name: str) -> list[str]:
        return [value for word, value in pairwise(sys.argv) if word == name]

    app = make_app(os.environ["ENGINE"], options("--served-model-name")[0], os.environ["VLLM_API_KEY"])
    for name in options("--middleware"):
        module, _, attribute = name.rpartition(".")
        app.add_middleware(getattr(import_module(module), attribute))
    if sockets := options("--uds"):
        uvicorn.run(app, uds=sockets[0], log_level="error")
    else:
        uvicorn.run(app, host=options("--host")[0], port=int(options("--port")[0]), log_level="error")


if __name__ == "__main__":
    main()
