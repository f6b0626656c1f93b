"""Records of runs, merged with their scores and with the runs that resumed them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from art_langgraph.store.database import Connection, Database, json_array
from art_langgraph.store.score import Score
from art_langgraph.trajectory import CompletionCall, Trajectory
from trainer_server.common.jsonl import from_json


def read_runs(database: Database, db: Connection, trajectory_ids: Sequence[str]) -> list[Trajectory]:
    """Finished runs, each with the runs that resumed it and with its newest score, in the order of their ids.

    Args:
        database: The database.
        db: A connection to it.
        trajectory_ids: Ids of runs that resumed no other; unknown ids are left out.
    """
    ids, texts = json_array(trajectory_ids), database.texts("?")
    query = f"SELECT id, record FROM trajectories WHERE id IN {texts}"
    records = dict(db.execute(query, (ids,)).fetchall())
    later_records: defaultdict[str, list[str]] = defaultdict(list)
    query = f"""
        SELECT first, record FROM resumed JOIN trajectories ON id = trajectory WHERE first IN {texts} ORDER BY started
    """
    for first, record in db.execute(query, (ids,)).fetchall():
        later_records[first].append(record)
    query = f"""
        SELECT coalesce(first, scores.trajectory), record, time
        FROM scores LEFT JOIN resumed ON resumed.trajectory = scores.trajectory
        WHERE scores.trajectory IN (
            SELECT value FROM {texts} AS ids UNION SELECT trajectory FROM resumed WHERE first IN {texts}
        ) ORDER BY scores.rowid
    """
    scores = {first: (record, time) for first, record, time in db.execute(query, (ids, ids)).fetchall()}
    runs = []
    for trajectory_id in trajectory_ids:
        if (record := records.get(trajectory_id)) is None:
            continue
        run = from_json(Trajectory, record)
        reward_time = 0.0  # when the newest part with a reward began; a score of the first run is always newer than it
        for part in later_records[trajectory_id]:
            later = from_json(Trajectory, part)
            if later.scored or later.reward_error:
                reward_time = later.started
            run = run.resumed_by(later)
        if (score := scores.get(trajectory_id)) and score[1] >= reward_time:
            from_json(Score, score[0]).set_rewards(run)
        runs.append(run)
    return runs


def read_unfinished(db: Connection, record: str) -> Trajectory:
    """A run that has begun and not ended, with the completions that were recorded until now."""
    run = from_json(Trajectory, record)
    rows = db.execute("SELECT record FROM completions WHERE trajectory = ? ORDER BY rowid", (run.id,)).fetchall()
    run.completions = [from_json(CompletionCall, row) for (row,) in rows]
    run.error = "the run has not ended"
    return run


def ids_of_parts(database: Database, db: Connection, trajectory_ids: Sequence[str]) -> list[str]:
    """Ids of runs, and of those that are read with them."""
    query = f"""
        WITH firsts AS (
            SELECT coalesce((SELECT first FROM resumed WHERE trajectory = value), value) AS id
            FROM {database.texts("?")} AS ids
        )
        SELECT id FROM firsts UNION SELECT trajectory FROM resumed WHERE first IN (SELECT id FROM firsts)
    """
    return [trajectory_id for (trajectory_id,) in db.execute(query, (json_array(trajectory_ids),)).fetchall()]
