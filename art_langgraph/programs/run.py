"""The rollout that a program is in: its addresses, its key, its environment, its reward."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import SupportsFloat

from art_langgraph.capture.scope import Scope
from art_langgraph.trajectory import Scenario, Trajectory
from trainer_server.common import Connection
from trainer_server.common.home import is_local
from trainer_server.common.proxies import loopback_exemption
from trainer_server.wire import ConfigError, reward_problem, rollout_path

_current: ContextVar[Run | None] = ContextVar("art_run", default=None)


class Run:
    """A rollout, as the program that runs in it sees it. `current_run()` gives it, and `session(…)`.

    A client that gets `base_url` and `api_key` needs no header: all its requests belong to the rollout. So does what
    gets `environment`, such as a child process or a container.

    Args:
        scope: The facts that LangChain models and other clients ask for.
        scenario: The task.
        server: The trainer server that clients find; None: none is known.
        policy: Name of the policy that is trained; None: the only one of the server.

    Attributes:
        trajectory: What the rollout did; None until a session has ended.
    """

    def __init__(self, scope: Scope, scenario: Scenario, server: Connection | None, policy: str | None = None) -> None:
        self.scenario = scenario
        self.trajectory: Trajectory | None = None
        self.scope, self.server, self._policy = scope, server, policy
        self._reward: float | dict[str, float] | None = None
        self.policies: list[str] = []
        """The policies of the trainer server, as far as they are known."""
        self.ended = False
        """Whether the run is over: what is set now counts no more."""
        self.registered = False
        """Whether the trainer server knows what holds for the rollout's requests."""

    @property
    def rollout_id(self) -> str:
        """Id of the rollout, `ro-…`."""
        return self.scope.rollout_id

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI's clients, `…/rollouts/<id>/v1`. Raises ConfigError where no trainer server is known."""
        return f"{self.anthropic_base_url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """Base URL for Anthropic's clients, `…/rollouts/<id>`, to which they append `/v1/messages`."""
        server = self._asked_server()
        self.scope.outside = True
        self.scope.servers.add((server.url, server.api_key))
        return f"{server.url}{rollout_path(self.rollout_id)}"

    @property
    def api_key(self) -> str:
        """The trainer server's key."""
        return self._asked_server().api_key

    @property
    def model(self) -> str:
        """Name of the policy: the one that `train` trains, or the only one of the server.

        Raises:
            ConfigError: The server has several, or none.
        """
        if self._policy is not None:
            return self._policy
        if len(self.policies) == 1:
            return self.policies[0]
        names = ", ".join(self.policies) or "none"
        raise ConfigError(
            f"the run cannot tell which policy you mean; the trainer server has: {names}. Name it yourself"
        )

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a child process or a container, whose requests then belong to the rollout.

        Pass them on: `subprocess.run(command, env={**os.environ, **run.environment})`. NO_PROXY is one of them where
        the environment has a proxy, and the server is on loopback.
        """
        server = self._asked_server()
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": server.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": server.api_key,
            "ART_BASE_URL": server.url,
            "ART_API_KEY": server.api_key,
            "ART_ROLLOUT": self.rollout_id,
            **(loopback_exemption(os.environ) if is_local(server.url) else {}),
        }

    @property
    def reward(self) -> float | dict[str, float] | None:
        """The reward, or its named parts. A reward function of `rollout` takes its place."""
        return self._reward

    @reward.setter
    def reward(self, reward: float | Mapping[str, float] | None) -> None:
        """Raises ConfigError for a reward that is no finite number or too large, and for a run that has ended."""
        if self.ended:
            raise ConfigError(
                f"the run {self.rollout_id} has ended, and its reward counts no more: set it before the end, or give "
                "it by TrainerClient.reward_rollout"
            )
        if reward is None:
            self._reward = None
            return
        parts = reward.items() if isinstance(reward, Mapping) else [("reward", reward)]
        for name, value in parts:
            if not isinstance(value, SupportsFloat) or not math.isfinite(value):
                raise ConfigError(f"{name}={value!r} is no finite number: leave the reward out where there is none")
            if wrong := reward_problem(float(value)):
                raise ConfigError(f"{name}: {wrong}")
        self._reward = {str(k): float(v) for k, v in reward.items()} if isinstance(reward, Mapping) else float(reward)

    def _asked_server(self) -> Connection:
        return self.server or Connection.find()  # which raises ConfigError where there is none


@contextmanager
def running(run: Run) -> Iterator[Run]:
    """Makes `run` the current run inside the `with` block."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


def run_here() -> Run | None:
    """The rollout that is running here, or None."""
    return _current.get()


def current_run() -> Run:
    """The rollout that is running here, with its base URL, its key and its environment.

    Raises:
        ConfigError: None is: the caller is outside of `rollout`, `gather`, `evaluate`, `train` and `session`, or in a
            bare thread, which does not take the run's context along.
    """
    run = run_here()
    if run is None:
        raise ConfigError(
            "no rollout is running here: call current_run() inside of a function that rollout, gather, evaluate or "
            "train runs, or inside of `with session(…)`; a bare thread needs contextvars.copy_context().run"
        )
    return run
