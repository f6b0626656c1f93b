"""Episodes for verifiers and prime-rl: the lines of its `traces.jsonl` (version 1 of its traces).

A trace stores each message once, as a node of a tree; a path from a root to a leaf is a conversation. The tokens along
a path are the prompt and the sampled tokens of the path's last answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from art_langgraph.exports.answers import answers, exact, model_of
from art_langgraph.exports.ledger_rows import Rows
from art_langgraph.trajectory import CompletionCall, Trajectory
from trainer_server.wire import Completion
from trainer_server.wire.tool_arguments import arguments_text

_FINISH_REASONS = ("stop", "length", "tool_calls")


def verifiers_episodes(run: Trajectory, rows: Rows) -> Iterator[dict[str, Any]]:
    """A run as one episode, with a trace for each agent of it.

    Args:
        run: The run.
        rows: Its rows of the ledger. An answer without one has no tokens.
    """
    by_agent: dict[str, list[tuple[CompletionCall, dict[str, Any]]]] = {}
    for call, message in answers(run):
        by_agent.setdefault(call.agent or "agent", []).append((call, message))
    task = {"type": "Scenario", "data": _task(run), "key": run.scenario.id}
    errors = [{"type": run.error.partition(":")[0], "message": run.error}] if run.error else []
    traces = []
    for agent, calls in by_agent.items():
        graph = _Graph(run, rows)
        for call, message in calls:
            graph.add(call, message)
        traces.append(
            {
                "version": 1,
                "id": f"{run.id}-{agent}",
                "task": task,
                "agent": {
                    "config": {"model": model_of(calls[-1][0])},
                    "name": agent,
                    "trainable": any(exact(rows.get(call.id or "")) for call, _ in calls),
                },
                "tools": graph.tools,
                "nodes": graph.nodes,
                "calls": graph.calls,
                "rewards": {} if run.reward is None else {"reward": {"score": run.reward, "weight": 1.0}},
                "metrics": {name: float(value) for name, value in run.metrics.items() if math.isfinite(value)},
                "info": {"graph": run.graph_id, "metadata": run.metadata},
                "is_completed": True,
                "ok": run.error is None,
                "errors": errors,
                "timing": {
                    "start": run.started,
                    "agent": {"start": run.started, "end": run.started + run.seconds},
                },
            }
        )
    yield {
        "id": run.id,
        "env": {"id": run.graph_id or "langgraph"},
        "task": task,
        "group": {"id": run.scenario.id},
        "ok": run.error is None,
        "errors": errors,
        "traces": traces,
    }


class _Graph:
    """The tree of messages of one agent in one run."""

    def __init__(self, run: Trajectory, rows: Rows) -> None:
        self._run, self._rows = run, rows
        self.nodes: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self._keys: list[str] = []
        """The content of each node's message, to compare it."""
        self._through: list[tuple[int, ...]] = []
        """Tokens along the path to each node, with its own."""

    def add(self, call: CompletionCall, message: dict[str, Any]) -> None:
        """Adds an answer below the longest path of which its prompt is a continuation, in messages and in tokens."""
        row = self._rows.get(call.id or "")
        tokens = exact(row)
        prompt = tuple(tokens.prompt_token_ids) if tokens else ()
        parent: int | None = None
        tools = _tools(row)
        depth = 0
        for earlier in call.messages:
            if (below := self._child(parent, _content_key(earlier), tools, prompt if tokens else None)) is None:
                break
            parent, depth = below, depth + 1
        self.tools += [tool for tool in tools if tool not in self.tools]
        for earlier in call.messages[depth:]:
            parent = self._node(parent, earlier, call.started, tools)
        before = self._through[parent] if parent is not None else ()
        scaffold = prompt[len(before) :]
        answer = self._node(parent, message, call.started + call.seconds, tools)
        node = self.nodes[answer]
        node["sampled"] = True
        if tokens is not None:
            node["token_ids"] = [*scaffold, *tokens.token_ids]
            node["mask"] = [False] * len(scaffold) + [True] * len(tokens.token_ids)
            node["logprobs"] = list(tokens.logprobs)
            self._through[answer] = (*prompt, *tokens.token_ids)
        self.calls.append(_call(call, row, answer))

    def _child(
        self, parent: int | None, content_key: str, tools: list[dict[str, Any]], prompt: Sequence[int] | None
    ) -> int | None:
        """The node of a message below another one, whose tokens the prompt begins with; None: there is none.

        A conversation with other tools has another root. prompt: None: its tokens are not known.
        """
        for number, node in enumerate(self.nodes):
            if node["parent"] != parent or self._keys[number] != content_key:
                continue
            if parent is None and node.get("tools", []) != tools:
                continue
            through = self._through[number]
            if prompt is None or through == tuple(prompt[: len(through)]):
                return number
        return None

    def _node(self, parent: int | None, message: dict[str, Any], at: float, tools: list[dict[str, Any]]) -> int:
        node: dict[str, Any] = {"parent": parent, "message": _message(message), "sampled": False, "timestamp": at}
        if parent is None and tools:
            node["tools"] = tools
        self.nodes.append(node)
        self._keys.append(_content_key(message))
        self._through.append(() if parent is None else self._through[parent])
        return len(self.nodes) - 1


def _call(call: CompletionCall, row: Completion | None, node: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "node": node,
        "model": model_of(call),
        "endpoint": "/chat/completions",
        "time": {"start": call.started, "end": call.started + call.seconds},
    }
    if row is not None:
        record["sampling"] = {"temperature": row.sampling.temperature, "top_p": row.sampling.top_p}
        record["finish_reason"] = row.finish_reason if row.finish_reason in _FINISH_REASONS else None
        record["usage"] = {"prompt_tokens": len(row.prompt_token_ids), "completion_tokens": len(row.token_ids)}
    return record


def _task(run: Trajectory) -> dict[str, Any]:
    """The scenario as the data of a task: its prompt, where it is text or messages, and its metadata."""
    task_input = run.scenario.model_dump(mode="json")["input"]
    first = next((call.messages for call in run.completions if call.messages), [])
    prompt: Any = task_input if isinstance(task_input, str) else None
    if prompt is None:
        users = [_text_of(message.get("content")) for message in first if message.get("role") == "user"]
        prompt = "\n\n".join(users[:1]) or None
    return {"name": run.scenario.id, "prompt": prompt, "input": task_input, "metadata": run.scenario.metadata}


def _tools(row: Completion | None) -> list[dict[str, Any]]:
    functions = [tool.get("function") or {} for tool in (row.request.get("tools") if row else None) or ()]
    return [
        {
            "type": "function",
            "name": function.get("name") or "",
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {},
            **({"strict": function["strict"]} if function.get("strict") is not None else {}),
        }
        for function in functions
    ]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the form of verifiers: tool calls are flat, and developers are the system."""
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        calls = [
            {
                "id": call.get("id") or "",
                "name": function.get("name") or "",
                "arguments": arguments_text(function.get("arguments")),
            }
            for call in message.get("tool_calls") or ()
            for function in [call.get("function") or {}]
        ]
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        return {
            "role": "assistant",
            "content": None if content is None else _text_of(content),
            **({"reasoning_content": thoughts} if thoughts else {}),
            **({"tool_calls": calls} if calls else {}),
        }
    parts = _parts(content)
    if role == "tool":
        return {"role": "tool", "tool_call_id": message.get("tool_call_id") or "", "content": parts}
    return {"role": "user" if role == "user" else "system", "content": parts}


def _parts(content: Any) -> Any:
    """Content as text, or as parts where it has images."""
    if not isinstance(content, list) or not any(part.get("type") == "image_url" for part in content):
        return _text_of(content)
    return [
        {"type": "image_url", "image_url": {"url": part["image_url"]["url"]}}
        if part.get("type") == "image_url"
        else {"type": "text", "text": _text_of([part])}
        for part in content
    ]


def _text_of(content: Any) -> str:
    """The text of a message's content, without images."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)


def _content_key(message: dict[str, Any]) -> str:
    """What two copies of a message have in common."""
    return json.dumps(_message({**message, "reasoning": None, "reasoning_content": None}), sort_keys=True)
