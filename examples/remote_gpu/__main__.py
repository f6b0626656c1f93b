"""Trains the quickstart's agent on the server that `art-langgraph connect URL` names: agent and tools run here.

With `--connect` that is a server of yours. Without it, a server is started on this machine in the role of the other
one, and the program connects to it by its address and token alone.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from art_examples.learning.program import interruptible, run_learners
from art_examples.learning.runs import own_server
from art_examples.remote_gpu.learner import on_the_server
from art_examples.remote_gpu.stand_in import connected_to_a_stand_in

if __name__ == "__main__":
    elsewhere = any(word in sys.argv for word in ("--connect", "--help", "-h"))
    with interruptible(), nullcontext() if elsewhere else connected_to_a_stand_in(own_server()):
        words = sys.argv[1:] if elsewhere else [*sys.argv[1:], "--connect"]
        run_learners(__doc__, {"remote_gpu": on_the_server}, Path(__file__).parent, words)
