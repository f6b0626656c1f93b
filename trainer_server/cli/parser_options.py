"""The options that name vLLM's parsers, which several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from trainer_server.common.options import help_of
from trainer_server.server.config import ServerConfig

_MEANINGS = help_of(ServerConfig)
ToolOption = Annotated[str, typer.Option(help=_MEANINGS["tool_call_parser"])]
ReasoningOption = Annotated[str, typer.Option(help=_MEANINGS["reasoning_parser"])]
