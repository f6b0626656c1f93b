"""A server on this machine in the role of one elsewhere, and `art-langgraph connect` to it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from art_examples.learning.runs import tell

from trainer_server.common import Connection


@contextmanager
def connected_to_a_stand_in(starting: AbstractContextManager[Connection]) -> Iterator[None]:
    """Starts a server, and connects the programs of an ART_HOME of their own to it until the block is left.

    The server has another home. Nothing of it is shared but its address and its token.

    Args:
        starting: Starts the server, and ends it when it is left.
    """
    program, names = str(Path(sys.executable).with_name("art-langgraph")), ("ART_HOME", "ART_BASE_URL", "ART_API_KEY")
    with tempfile.TemporaryDirectory() as home, starting as server:
        before = {name: os.environ.pop(name, None) for name in names}
        os.environ["ART_HOME"] = home
        try:
            subprocess.run(
                [program, "connect", server.url], input=server.api_key, text=True, check=True, stdout=sys.stderr
            )
            tell(f"the server at {server.url} stands in for one elsewhere")
            yield
            subprocess.run([program, "disconnect"], check=True, stdout=sys.stderr)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}
