"""The small engine under vLLM's command line: what a server launches where vLLM would be.

`python testbed/engine_stand_in.py FLAGS…` takes the flags and the environment that vLLM gets; ENGINE names it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
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
    start = f'ENGINE={name} exec {sys.executable} {Path(__file__).absolute()} "$@"'
    python.write_text("\n".join(["#!/bin/sh", *before, start, ""]))
    python.chmod(0o755)


def main() -> None:
    """Serves until it is told to stop."""
    import uvicorn

    from testbed.engine_app import make_app

    def option(name: str) -> str:
        return sys.argv[sys.argv.index(name) + 1]

    app = make_app(os.environ["ENGINE"], option("--served-model-name"), os.environ["VLLM_API_KEY"])
    uvicorn.run(app, uds=option("--uds"), log_level="error")


if __name__ == "__main__":
    main()
