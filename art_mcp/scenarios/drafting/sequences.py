"""Which call comes before another one that fails alone: what a server remembers is not there in another process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.drafting.pools import slot_values
from art_mcp.scenarios.drafting.value_graph import CallSequence, ValueGraph
from art_mcp.scenarios.observe import leaves
from art_mcp.scenarios.plan import Step

MAX_SEQUENCES = 8
"""Sequences of a tool that are kept, at most."""

MOST_LIKELY = 2
"""Tools of which a call is taken as the earlier one, at most."""


def note_sequences(graph: ValueGraph, step: Step, earlier: Iterable[tuple[Step, Any]], message: str = "") -> None:
    """Keeps sequences of a call and an earlier one: one that gave what it takes, or has its values, or
    whose tool an error names.

    Args:
        graph: Where they are kept.
        step: The call.
        earlier: Calls before it in the same process, each with its result.
        message: The error of the call where nothing came before it. Empty: it worked.
    """
    values = {canonical(value) for _, value in slot_values(step.tool, step.arguments)}
    message_words = words(message)
    best: dict[str, tuple[tuple[int, ...], CallSequence]] = {}
    for call, result in earlier:
        if call.tool == step.tool:
            continue
        inputs, outputs = ({canonical(leaf) for _, leaf in leaves(part)} for part in (call.arguments, result))
        parts = words(call.tool)
        is_named = bool(parts) and all(any(word.startswith(part) for word in message_words) for part in parts)
        rank = len(values & outputs - inputs), len(values & (outputs | inputs)), int(is_named)
        if any(rank) and rank >= best.get(call.tool, (rank,))[0]:
            first = (call.tool, dict(call.arguments))
            best[call.tool] = rank, CallSequence(first, result, (step.tool, dict(step.arguments)))
    sequences = graph.sequences[step.tool]
    for _, sequence in sorted(best.values(), key=lambda each: each[0], reverse=True)[:MOST_LIKELY]:
        if len(sequences) < MAX_SEQUENCES and sequence not in sequences:
            sequences.append(sequence)
