"""What spans are called and which attributes they have: OpenTelemetry's GenAI conventions (1.37 and later), and our own
under `art.`. Texts of users and models are in none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer_server.common import tracing
from trainer_server.wire.steps import Job

PROVIDER = "art_langgraph"


def agent(name: str | None, *, rollout: str | None = None, scenario: str | None = None) -> tuple[str, dict[str, Any]]:
    """Name and attributes of a rollout's span.

    Args:
        name: Of the graph or function; None: it is not known yet.
        rollout: Id of the rollout.
        scenario: Id of its scenario.
    """
    return f"invoke_agent {name}" if name else "invoke_agent", {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.agent.name": name,
        "art.rollout.id": rollout,
        "art.scenario.id": scenario,
    }


def chat(model: str | None, *, rollout: str | None = None, node: str | None = None) -> tuple[str, dict[str, Any]]:
    """Name and attributes of a model call's span.

    Args:
        model: What was asked: a policy, a version, or another model.
        rollout: Id of the rollout.
        node: The node of the graph that asks.
    """
    return f"chat {model}" if model else "chat", {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "art.rollout.id": rollout,
        "art.node": node,
    }


def answer_attributes(
    *,
    id: str | None,
    model: str | None,
    prompt: int | None,
    sampled_tokens: int | None,
    reasons: Sequence[str | None] = (),
) -> dict[str, Any]:
    """Attributes of a model call that has its answer.

    Args:
        id: Id of the completion.
        model: Who answered, as `agent@3`.
        prompt: Tokens of the prompt.
        sampled_tokens: Tokens of the answer.
        reasons: Why it ended, for each choice.
    """
    return {
        "gen_ai.response.id": id,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": sampled_tokens,
        "gen_ai.response.finish_reasons": [reason for reason in reasons if reason] or None,
    }


def tool(name: str, *, call: str | None, server: str | None = None) -> tuple[str, dict[str, Any]]:
    """Name and attributes of a tool call's span.

    Args:
        name: Of the tool.
        call: Id of the model's tool call.
        server: Name of the MCP server; None: the tool is none of an MCP server.
    """
    return f"execute_tool {name}", {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call,
        "art.mcp.server": server,
    }


def record_job(job: Job, *, parent: str | None, start_time: float | None) -> None:
    """Records the spans of a job that has ended: the job, and in it what the trainer computed and the change to the new
    version. Does nothing while traces are off.

    Args:
        job: In its final state.
        parent: The value of `traceparent` of the request that made it.
        start_time: When the trainer took it up, Unix time; None: it did not, or that is not known.
    """
    if not tracing.on() or job.finished is None:
        return
    about: dict[str, Any] = {"art.job.id": job.id, "art.job.kind": job.kind, "art.policy": job.policy}
    whole = tracing.begin(f"job {job.kind} {job.policy}", about, kind="consumer", parent=parent, at=job.created)
    whole.set({f"art.seconds.{phase}": seconds for phase, seconds in job.seconds.items()})
    if job.result is not None:
        metrics = {name: value for name, value in job.result.metrics.items() if isinstance(value, str | int | float)}
        whole.set({"art.version": job.result.version, **{f"art.metrics.{name}": metrics[name] for name in metrics}})
    if start_time is not None and (seconds := job.seconds.get("train")):
        name = "step" if job.kind == "step" else f"train {job.kind}"
        tracing.begin(name, about, parent=whole.parent, at=start_time).end(min(start_time + seconds, job.finished))
    if (seconds := job.seconds.get("swap")) is not None:
        tracing.begin("load version", about, parent=whole.parent, at=job.finished - seconds).end(job.finished)
    if job.error is not None:
        whole.fail(f"{job.status.value}: {job.error}")
    whole.end(job.finished)
