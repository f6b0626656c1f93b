"""Specializes a policy to an MCP server: weather and sqlite, which are here, and time and git of the MCP project.

No data is made by hand: scenarios, their answers and the demonstrations come from the server. mcp-server-time and
mcp-server-git are other packages. Without them these two are left out.
"""

from __future__ import annotations

from pathlib import Path

from art_examples.learning.program import run_learners
from art_examples.learning.runs import tell
from art_examples.mcp_specialize.learner import specialized
from art_examples.mcp_specialize.servers import SERVERS

if __name__ == "__main__":
    if missing := [server.package for server in SERVERS.values() if server.package and not server.program]:
        tell(f"left out: {', '.join(missing)} (pip install {' '.join(missing)}, into an environment of its own)")
    there = {name: specialized(name, server) for name, server in SERVERS.items() if server.program}
    run_learners(__doc__, there, Path(__file__).parent)
