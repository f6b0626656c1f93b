"""Databases made by script: a query can read them, and do nothing else."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from itertools import combinations

import pytest
from art_examples.sql_agent.databases import (
    HELD_OUT_SUBJECTS,
    ROWS,
    TRAINING_SUBJECTS,
    database_name,
    execute,
    questions,
    rows,
)

DATABASE = database_name(*TRAINING_SUBJECTS[:2])


def test_every_reference_gives_rows_and_not_the_whole_table() -> None:
    for subjects in (TRAINING_SUBJECTS, HELD_OUT_SUBJECTS):
        for subject in subjects[1:]:
            database = database_name(subjects[0], subject)
            for question in questions(subject, database, random.Random(database)):
                assert 1 <= len(execute(database, question.query)) < ROWS


def test_no_answer_to_how_many_is_right_in_most_tables() -> None:
    """Each kind of a table has another number of rows, and the numbers differ from table to table."""
    numbers = list[int]()
    for subjects in (TRAINING_SUBJECTS, HELD_OUT_SUBJECTS):
        for pair in combinations(subjects, 2):
            for subject in pair:
                counts = Counter(row[1] for row in rows(database_name(*pair), subject))
                assert set(counts) == set(subject.kinds)
                assert len(set(counts.values())) == len(subject.kinds)
                numbers += [counts[kind] for kind in subject.kinds]
    assert Counter(numbers).most_common(1)[0][1] < len(numbers) / 4


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT price FROM cars", "no such table|no such column"),
        ("DELETE FROM books", "not authorized"),
        ("ATTACH '/etc/hosts' AS other", "not authorized"),
        ("PRAGMA database_list", "not authorized"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n", "not auth|interrupt"),
        ("SELECT COUNT(*) FROM books a, books b, books c, books d, books e, books f, books g", "interrupt"),
    ],
)
def test_a_query_can_do_nothing_but_read(query: str, problem: str) -> None:
    with pytest.raises(sqlite3.Error, match=problem):
        execute(DATABASE, query)
