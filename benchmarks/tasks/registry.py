"""All tasks by their names."""

from __future__ import annotations

from art_examples.learning.task import TaskMaker
from art_examples.sql_agent.task import sql

from benchmarks.tasks.alphabet_sort import alphabet_sort
from benchmarks.tasks.cities import cities
from benchmarks.tasks.reverse_text import reverse_text
from benchmarks.tasks.time_zones import time_zones

TASKS: dict[str, TaskMaker] = {
    "reverse_text": reverse_text,
    "alphabet_sort": alphabet_sort,
    "sql": sql,
    "cities": cities,
    "time": time_zones,
}
