"""The options that name vLLM's parsers, which several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

ToolOption = Annotated[
    str,
    typer.Option(
        help="vLLM's parser of tool calls. `auto` chooses by the model's chat template and family; `none`: requests "
        "with tools are refused. An unknown name is answered with the list."
    ),
]
ReasoningOption = Annotated[
    str,
    typer.Option(
        help="vLLM's parser of thoughts, `auto`, `none` or a name. Without one, thoughts stay in the text of an answer."
    ),
]
