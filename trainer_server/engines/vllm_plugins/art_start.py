"""On CPUs vLLM imports itself once per start, not three times.

Stock vLLM begins a new interpreter for its engine, and another one that looks at the class of a model which it has not
served before. Each imports torch and vLLM again, for seven to ten seconds of a core. Both are for GPUs, which a process
may not share with the one that it was forked off. On CPUs the engine is forked off the front end, and the front end
looks at the class itself. Processes that the engine starts for several ranks begin anew as before, since each binds its
threads to cores when it is born. `ART_START=0` leaves vLLM as it is.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import TypeVar

from art_parts import harmless, have

T = TypeVar("T")
FORK, LOOK = "engine forked off the front end", "model classes looked at in the front end"
PARTS = {
    FORK: ("vllm.v1.engine.utils:get_mp_context",),
    LOOK: ("vllm.model_executor.models.registry:_run_in_subprocess(fn)",),
}
CPU_ONLY = (FORK, LOOK)


def context() -> BaseContext:
    """How the engine's process is made. Called by vLLM in the front end, right before it."""
    gc.collect()
    gc.freeze()  # else the first collection in the engine would copy every page that both processes share
    return multiprocessing.get_context("fork")


def here(look: Callable[[], T]) -> T:
    """Looks at a model's class in this process."""
    return look()


def _begin() -> None:
    """In the forked process: its signals are no longer those of the front end's event loop."""
    signal.set_wakeup_fd(-1)


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every process, the front end the first."""
    from vllm.platforms import current_platform

    if os.environ.get("ART_START") == "0" or not current_platform.is_cpu():
        return
    if multiprocessing.current_process().name != "MainProcess":
        return
    if have(FORK, PARTS):
        from vllm.v1.engine import utils

        os.register_at_fork(after_in_child=_begin)
        utils.get_mp_context = context
    if have(LOOK, PARTS):
        from vllm.model_executor.models import registry

        registry._run_in_subprocess = here
