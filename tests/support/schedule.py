"""Which tests run side by side, and which of them begin first."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SHARED, OWN = "the shared vLLM", "engines of their own"
CHAINS = {
    "tests/full/test_families.py": OWN,
    "tests/full/test_quickstart.py": OWN,
    "tests/full/test_two_engines.py": OWN,
    "tests/full/test_light_client.py": None,
    "tests/full/test_oldest_langchain.py": None,
}
"""Tests with the real vLLM are two chains. One process runs a chain: so one server is shared, and memory holds all
engines that run at once. Other files of tests/full are in the chain SHARED; those with None need no vLLM."""
APART = {"tests/art_mcp/client/test_real_servers.py"}
"""Files whose tests wait for minutes, and share nothing."""
EARLY = (
    OWN,
    SHARED,
    "tests/trainer_server/training/grpo/test_step.py",
    "tests/trainer_server/process/test_faults.py",
    "tests/trainer_server/training/test_ranks.py",
    "tests/art_mcp/client/test_real_servers.py",
    "tests/full/test_oldest_langchain.py",
    "tests/art_langgraph/capture/test_packages.py",
    "tests/trainer_server/jobs/test_supervisor.py",
)
"""Chains and files that take long: at the end, one process would work on them while the others have nothing to do."""


def chain(nodeid: str) -> str:
    """The chain of a test, or its file where it has none."""
    file = nodeid.partition("::")[0]
    return (CHAINS.get(file, SHARED) if file.startswith("tests/full/") else None) or file


def place(nodeid: str) -> int:
    """Sorts tests: those of EARLY first, in this order."""
    name = chain(nodeid)
    return EARLY.index(name) if name in EARLY else len(EARLY)


class BySchedule(LoadScopeScheduling):
    """The tests of a chain or of a file run one after another, as their fixtures want it; those of APART on their own.

    A process is given its next tests when it begins the last one that it has: what waits behind a long test waits for
    that one alone.
    """

    def _split_scope(self, nodeid: str) -> str:
        name = chain(nodeid)
        return nodeid if name in APART else name

    def _reschedule(self, node: Any) -> None:
        if node.shutting_down or not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
