"""Runs that other systems recorded: read from their exports, and made into scenarios, demonstrations and rewards.

Nothing of an imported run is ever taken for sampled tokens: its completions have no id, so that no step can train them.
"""

from art_langgraph.traces.importer import ImportSummary, import_runs
from art_langgraph.traces.reading import FORMATS, read_runs
from art_langgraph.traces.run import ForeignRun, ModelCall

__all__ = ["FORMATS", "ForeignRun", "ImportSummary", "ModelCall", "import_runs", "read_runs"]
