"""What a running graph does, written into trajectories: callbacks, the scope of a rollout, the process-wide hook.

With ART_CAPTURE=1 in the environment, importing this package records every run of the process.
"""

from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.process import flush, install, uninstall

__all__ = ["ARTCallbackHandler", "flush", "install", "uninstall"]
