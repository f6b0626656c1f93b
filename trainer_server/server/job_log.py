"""Metrics of jobs for trackers: those of each step and warm start, in a training for each policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from trainer_server.tracking import ENVIRONMENT, OF_CLIENTS, TrackedRun, Tracking, make_trackers, run_id
from trainer_server.wire import Job, JobStatus

log = logging.getLogger("trainer_server")

_FLUSH = 10.0
"""Seconds that a server which stops waits for its trackers."""


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError for a tracker that does not exist, or whose library is missing."""
    make_trackers(_of_servers(names), option=ENVIRONMENT)


class JobLog:
    """Sends the metrics of jobs to trackers. Nothing waits for them.

    Args:
        names: Names of trackers, or `module:Class`.
        home: The server's home, for trackers that write files.
        server_id: Id of the server.
    """

    def __init__(self, names: Sequence[str], home: Path, server_id: str) -> None:
        self._names, self._home, self._server_id = _of_servers(names), home, server_id
        self._by_policy: dict[str, Tracking] = {}
        if others := [name for name in names if name in OF_CLIENTS]:
            log.info("%s: %s is for clients, which have the runs; this server does not use it", ENVIRONMENT, others)

    def log_job(self, job: Job) -> None:
        """Sends the metrics of a job that has ended to the trackers. Never waits, and never raises.

        Args:
            job: A job; those that were created, failed or cancelled are left out.
        """
        if not self._names or job.kind == "create" or job.status is not JobStatus.succeeded or job.result is None:
            return
        version, metrics = job.result.version, job.result.metrics
        row = {"version": version, "kind": job.kind, "job": job.id, "seconds": job.seconds, "metrics": metrics}
        self._tracking(job.policy).log(version, row)

    async def close(self) -> None:
        """Waits until the trackers have sent what they have, for ten seconds at most."""
        finishing = (asyncio.to_thread(tracking.finish, None, _FLUSH) for tracking in self._by_policy.values())
        await asyncio.gather(*finishing)

    def _tracking(self, policy: str) -> Tracking:
        if policy not in self._by_policy:
            trackers = make_trackers(self._names, option=ENVIRONMENT, skip=log.warning)
            self._by_policy[policy] = tracking = Tracking(trackers, log.warning)
            tracking.start(
                TrackedRun(
                    policy=policy,
                    name=f"{policy} on server {self._server_id[:8]}",
                    id=run_id(policy, "server", self._server_id),
                    kind="server",
                    home=self._home,
                    config={"server": self._server_id},
                )
            )
        return self._by_policy[policy]


def _of_servers(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in OF_CLIENTS]
