"""Which tests run side by side, and which of them begin first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from trainer_server.process.hardware import cpu_dtype

FIRST, SECOND = "first chain on the real vLLM", "second chain on the real vLLM"
ON_THE_EMBEDDED_MODEL = {
    "tests/full/clients/test_dialects.py",
    "tests/full/clients/test_langchain_suite.py",
    "tests/full/engines/test_calls.py",
    "tests/full/learning/test_judge.py",
    "tests/full/learning/test_sft.py",
    "tests/full/learning/test_specialize.py",
    "tests/full/learning/test_structured_learning.py",
    "tests/full/learning/test_tasks.py",
}
"""The first chain: one server on the embedded model, whose answers make sense."""
OWN_SERVERS = (
    "tests/full/learning/test_quickstart.py",
    "tests/full/engines/test_two_engines.py",
    "tests/full/engines/test_families.py",
)
"""The second chain begins with these, in this order: before the fixture `real_on_short` starts a further engine, and
with the quickstart's trainer while the first chain trains nothing. More at once would not fit 24 GB in fp32."""
WITHOUT_VLLM = {"tests/full/clients/test_light_client.py", "tests/full/clients/test_oldest_langchain.py"}
"""Files of tests/full that are in no chain. All others are in one of the two: one process runs a chain, so its tests
share a server where they can, and memory holds the engines that run at once. The chains take about as long."""
APART = {"tests/art_mcp/client/test_real_servers.py"}
"""Files whose tests wait for minutes, and share nothing."""
EARLY = (
    FIRST,
    SECOND,
    "tests/trainer_server/training/grpo/test_step.py",
    "tests/trainer_server/process/test_faults.py",
    "tests/trainer_server/training/test_ranks.py",
    "tests/art_mcp/client/test_real_servers.py",
    "tests/full/clients/test_oldest_langchain.py",
    "tests/art_langgraph/capture/handler/test_packages.py",
    "tests/trainer_server/jobs/test_trainer_process.py",
)
"""Chains and files that take long: at the end, one process would work on them while the others have nothing to do."""
LONG_IN_FP32 = {
    "tests/full/clients/test_frameworks.py",
    "tests/full/engines/test_adapted_layers.py",
    "tests/full/engines/test_families.py",
    "tests/full/engines/test_gpu_benchmark.py",
    "tests/full/learning/test_distillation.py",
    "tests/full/learning/test_quickstart.py",
    "tests/full/learning/test_specialize.py",
    "tests/full/learning/test_structured_learning.py",
    "tests/full/learning/test_tasks.py",
    "tests/full/learning/test_turns.py",
    "tests/full/learning/test_wordings.py",
}
"""Files that compute for minutes in bf16. In fp32 they take three to five times as long."""


def chain(nodeid: str) -> str:
    """The chain of a test, or its file where it has none."""
    file = nodeid.partition("::")[0]
    if not file.startswith("tests/full/") or file in WITHOUT_VLLM:
        return file
    return FIRST if file in ON_THE_EMBEDDED_MODEL else SECOND


def place(nodeid: str) -> tuple[int, int]:
    """Sorts tests: those of EARLY first, in this order; of the second chain, OWN_SERVERS."""
    name, file = chain(nodeid), nodeid.partition("::")[0]
    within = OWN_SERVERS.index(file) if file in OWN_SERVERS else len(OWN_SERVERS)
    return EARLY.index(name) if name in EARLY else len(EARLY), within


def leave_out_long(items: Iterable[pytest.Item]) -> None:
    """With ART_TESTS_SHORT, as in `.ci/run`, skips LONG_IN_FP32 on a processor that computes in fp32: both lanes would
    take an hour and a half there."""
    if os.environ.get("ART_TESTS_SHORT") and cpu_dtype() == "float32":
        skip = pytest.mark.skip(reason="minutes in fp32, and ART_TESTS_SHORT is set: `make test-slow` runs it")
        for item in items:
            if item.nodeid.partition("::")[0] in LONG_IN_FP32:
                item.add_marker(skip)


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
