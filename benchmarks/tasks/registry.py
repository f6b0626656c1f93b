"""All tasks by their names."""

from __future__ import annotations

from art_examples.learning.task import TaskMaker
from art_examples.sql_agent.task import sql
from art_examples.temporal_clue.task import temporal_clue
from art_examples.tic_tac_toe.task import tic_tac_toe

from benchmarks.tasks.alphabet_sort import alphabet_sort
from benchmarks.tasks.cities import cities
from benchmarks.tasks.lookup import lookup
from benchmarks.tasks.reverse_text import reverse_text
from benchmarks.tasks.time_zones import time_zones

TASKS: dict[str, TaskMaker] = {
    "reverse_text": reverse_text,
    "alphabet_sort": alphabet_sort,
    "sql": sql,
    "cities": cities,
    "time": time_zones,
}
"""Tasks of the learning benchmark."""
MORE_TASKS: dict[str, TaskMaker] = {
    **TASKS,
    "lookup": lookup,
    "temporal_clue": temporal_clue,
    "tic_tac_toe": tic_tac_toe,
}
"""These, and tasks of single benchmarks."""
