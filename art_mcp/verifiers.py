"""Environments of verifiers as scenarios and runs, and graphs as their harnesses. Needs `verifiers`.

An episode runs as verifiers runs it: setup, tool servers, limits, finalize and rewards are the environment's own. Only
the address of the model is the rollout's, so that the ledger has every token. `GraphHarness` puts a LangGraph graph in
place of verifiers' own programs; scenarios and reward functions become a taskset by `task_data` and `trajectory_of`.
"""

from __future__ import annotations

import itertools
import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr, ValidationError

from art_langgraph import Run, Scenario, Trajectory
from art_langgraph.messages import messages_of, to_openai
from art_langgraph.trajectory import CompletionCall, ToolCall
from art_mcp.client.connect import Server, connect
from art_mcp.client.result import CallResult
from trainer_server.wire import ConfigError
from trainer_server.wire.tool_arguments import arguments_input

try:
    import verifiers.v1 as vf
except ModuleNotFoundError:  # the module can be imported, and says what is missing when it is used
    vf = None

_KEY = "ART_VERIFIERS_API_KEY"
"""The environment variable in which verifiers' client looks for the trainer server's key."""


class GraphHarness(vf.Harness[vf.HarnessConfig] if vf else object):  # type: ignore[misc]
    """A graph in place of a program of verifiers. It runs in this process, also where the task has a container.

    A module that exports a subclass by `__all__` is a harness: `--env.agent.harness.id MODULE`.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    @abstractmethod
    def graph(self, model: BaseChatModel, tools: list[BaseTool]) -> Runnable[Any, Any]:
        """Builds the graph of one episode.

        Args:
            model: Asks by way of verifiers, which counts turns and keeps the trace. The graph asks no other model.
            tools: The tools of the task's servers.

        Returns:
            A compiled graph that takes `messages`.
        """

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Runs the graph on the task's messages."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _openai(prompt or [])
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        model = ChatOpenAI(model=ctx.model, base_url=endpoint, api_key=SecretStr(secret), max_retries=0)
        async with AsyncExitStack() as stack:
            tools: list[BaseTool] = []
            for name, url in mcp_urls.items():
                server = await stack.enter_async_context(connect(url, timeout=self.config.tool_timeout))
                tools += [_prefix(name, server, tool) for tool in await server.tools()]
            await self.graph(model, tools).ainvoke({"messages": messages})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class Environment:
    """An environment of verifiers that is being served: `train(environment.agent, environment.scenarios, …)`.

    Args:
        environment: The environment, inside of its `serving()`.
        tasks: Its tasks.
        policy: The policy that answers. None: the one that `train` trains, or the only one of the server.

    Attributes:
        scenarios: A scenario for each task: `input` is its prompt, `metadata` has the task's data.
    """

    def __init__(self, environment: vf.Env, tasks: list[vf.Task], policy: str | None = None) -> None:
        self._environment, self._policy = environment, policy
        self._tasks = {task.key: task for task in tasks}
        self.scenarios = [_scenario(task) for task in tasks]

    async def agent(self, scenario: Scenario, run: Run) -> str:
        """Runs an episode, and gives its rewards to the run, multiplied by their weights.

        Raises:
            ConfigError: The scenario is of no task, or the episode has several traces: no reward would say which of
                them it is for.
            RuntimeError: The episode failed, or a reward of it was not computed.
        """
        task = self._tasks.get(scenario.id)
        if task is None:
            raise ConfigError(f"no task of the environment is the scenario {scenario.id}: use its `scenarios`")
        os.environ[_KEY] = run.api_key
        client = vf.EvalClientConfig(base_url=run.base_url, api_key_var=_KEY)
        context = vf.ModelContext(model=self._policy or run.model, client=client)
        episode = await self._environment.run_episode(task, context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or not episode.ok:  # also after a retry: the first attempt's answers are in the run
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors) or "the episode failed")
        if len(episode.traces) != 1:
            names = ", ".join(trace.agent.name for trace in episode.traces)
            raise ConfigError(
                f"the episode has the traces {names}, and a run has one reward: use an environment of one"
            )
        (trace,) = episode.traces
        if missing := [name for name, reward in trace.rewards.items() if reward is None]:
            raise RuntimeError(f"no value of the reward {', '.join(missing)}: its stage ended before")
        run.reward = {name: reward.value for name, reward in trace.rewards.items() if reward is not None} or None
        return str(trace.last_reply)


@asynccontextmanager
async def serve_environment(
    config: Mapping[str, Any] | vf.EnvConfig, *, limit: int | None = None, policy: str | None = None
) -> AsyncIterator[Environment]:
    """Loads an environment, and serves it until the block is left.

    Args:
        config: What verifiers' configuration has under `env`: `{"taskset": {"id": …}, "agent": {…}}`.
        limit: Number of tasks, the first ones; None: all.
        policy: The policy that answers, for `evaluate` and `gather` where the server has several. None: the one that
            `train` trains, or the only one of the server.

    Yields:
        The environment.

    Raises:
        ConfigError: `verifiers` is not installed; or the taskset has no end, and there is no limit.
    """
    if vf is None:
        raise ConfigError("environments of verifiers need verifiers: pip install verifiers")
    environment = vf.load_environment(
        vf.resolve_env_config(config if isinstance(config, vf.EnvConfig) else dict(config))
    )
    taskset = environment.taskset
    if limit is None and not taskset.bounded:
        raise ConfigError(f"{type(taskset).__name__} has no end: say how many tasks there are by limit=")
    tasks = list(itertools.islice(taskset, limit))
    async with environment.serving():
        yield Environment(environment, tasks, policy)


class ScenarioData(vf.TaskData if vf else BaseModel):  # type: ignore[misc]
    """A scenario as the data of a task."""

    input: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict)


def task_data(scenario: Scenario) -> ScenarioData:
    """The data of a task that is a scenario: `MyTask(task_data(scenario))`.

    Raises:
        ConfigError: The scenario's input is neither a text nor messages without tool calls.
    """
    task_input = scenario.input
    prompt = task_input if isinstance(task_input, str) else to_openai(messages_of(task_input))
    plain = scenario.model_dump(mode="json")["input"]
    try:
        return ScenarioData(id=scenario.id, prompt=prompt or None, input=plain, metadata=scenario.metadata)
    except ValidationError as error:
        raise ConfigError(f"the input of the scenario {scenario.id} is no prompt of verifiers: {error}") from None


def trajectory_of(trace: vf.Trace) -> Trajectory:
    """The trajectory of a trace, for a reward function: `score(trajectory_of(trace))`.

    It has the scenario, the answers with their prompts, and the tool calls with their results. It has no nodes, no ids
    of completions, and no `messages` in its output: `output` is the last reply.

    Args:
        trace: Of a task with the data of `task_data`.
    """
    data, calls = trace.task.data, {call.node: call for call in trace.calls}
    trajectory = Trajectory(
        id=trace.id,
        scenario=Scenario(id=data.id, input=data.input, metadata=data.metadata),
        output=trace.last_reply,
        error=trace.last_error.message if trace.last_error else None,
        started=trace.timing.start,
    )
    results = {message.tool_call_id: vf.content_text(message.content) for message in trace.tool_messages}
    for number, node in enumerate(trace.nodes):
        if not node.sampled:
            continue
        path = [node.message]
        parent = node.parent
        while parent is not None:
            path.insert(0, trace.nodes[parent].message)
            parent = trace.nodes[parent].parent
        *prompt, answer = _openai(path)
        model = calls[number].model if number in calls else None
        trajectory.completions.append(
            CompletionCall(id=None, model=model, messages=prompt, message=answer, started=node.timestamp)
        )
        for call in node.message.tool_calls or ():
            trajectory.tool_calls.append(
                ToolCall(
                    tool=call.name,
                    arguments=arguments_input(call.arguments),
                    result=results.get(call.id),
                    tool_call_id=call.id,
                    started=node.timestamp,
                )
            )
    return trajectory


def _scenario(task: vf.Task) -> Scenario:
    data = task.data.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    prompt = task.data.prompt if task.data.prompt is None or isinstance(task.data.prompt, str) else data["prompt"]
    return Scenario(id=task.key, input=prompt, metadata=data)


def _prefix(name: str, server: Server, tool: BaseTool) -> BaseTool:
    """A tool by the name under which verifiers offers it: behind that of its server, where the server has one."""

    async def call(_name: str, arguments: dict[str, Any]) -> CallResult:
        return await server.call(tool.name, arguments)

    return tool.model_copy(update={"name": f"{name}_{tool.name}", "call": call}) if name else tool


def _openai(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Messages of verifiers, whose tool calls are flat, in OpenAI's format."""
    plain = []
    for message in messages:
        entry = message.model_dump(mode="json", exclude_none=True, exclude={"tool_calls", "provider_state"})
        if calls := getattr(message, "tool_calls", None):
            entry["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        plain.append(entry)
    return plain
