"""The small engine under vLLM's command line: what a launched engine runs in tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvicorn

from testbed.engine_app import make_app


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


app = make_app(os.environ["ENGINE"], option("--served-model-name"), os.environ["VLLM_API_KEY"])
uvicorn.run(app, uds=option("--uds"), log_level="error")
