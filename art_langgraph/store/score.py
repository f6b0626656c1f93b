"""Rewards that a stored run gets later. They lie beside its record, which is never changed."""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict

from art_langgraph.notices import warn_once
from art_langgraph.redaction import redact
from art_langgraph.store.database import Connection
from art_langgraph.trajectory import REWARD_FIELDS, Trajectory
from trainer_server.common.jsonl import from_json, to_json
from trainer_server.wire import ConfigError, reward_problem


class Score(BaseModel):
    """All rewards of a run by one scoring. They replace all that the run had before."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    reward: float | None = None
    reward_error: str | None = None
    reward_reason: str | None = None
    reward_source: str
    independent_reward_error: str | None = None
    judgement: str | None = None
    node_rewards: dict[str, float] | None = None
    completions: dict[str, float] = {}
    """Rewards of single completions, by id."""
    parts: dict[str, float] = {}
    """Added to the trajectory's metrics."""

    @classmethod
    def of(cls, run: Trajectory, source: str) -> Score:
        """The rewards that a run has. source: origin of the rewards, such as "feedback"."""
        own = {call.id: call.reward for call in run.completions if call.id is not None and call.reward is not None}
        rewards = {name: getattr(run, name) for name in REWARD_FIELDS} | {"reward_source": source}
        return cls(**rewards, completions=own, parts=run.metrics)

    def set_rewards(self, run: Trajectory) -> None:
        """Gives a run these rewards and no others."""
        for name in REWARD_FIELDS:
            setattr(run, name, getattr(self, name))
        for call in run.completions:
            call.reward = self.completions.get(call.id or "")
        run.metrics |= self.parts


def add_score(db: Connection, trajectory_id: str, score: Score) -> None:
    """Stores a score. Raises KeyError for a run that has not ended, ConfigError for what is no reward."""
    for value in (score.reward, *(score.node_rewards or {}).values(), *score.completions.values()):
        if value is not None and (problem := reward_problem(value)):
            problem = problem.removeprefix("the reward is ")
            raise ConfigError(f"the reward of {trajectory_id} is {problem}; where it has none, give None and an error")
    query = "SELECT record FROM trajectories WHERE id = ? OR id IN (SELECT trajectory FROM resumed WHERE first = ?)"
    records = db.execute(query, (trajectory_id, trajectory_id)).fetchall()
    if not records:
        raise KeyError(trajectory_id)
    if score.reward is not None and not any(_trainable(from_json(Trajectory, record)) for (record,) in records):
        warn_once(
            "a run has a reward and no completion of the trainer server: no step can train it",
            "Let the graph ask the policy by ChatART, or by the server's address as base_url, in the process "
            "that records it",
            example=trajectory_id,
        )
    row = (trajectory_id, time.time(), to_json(redact(score)))
    db.execute("INSERT INTO scores (trajectory, time, record) VALUES (?, ?, ?)", row)


def _trainable(run: Trajectory) -> bool:
    """Whether a run has completions of the gateway, or needs none: an evaluation, an imported run, one with hints."""
    return run.untrained or any(call.id is not None for call in run.completions)
