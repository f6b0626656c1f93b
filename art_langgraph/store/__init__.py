"""The trajectory store: every recorded run, in a SQLite file or in a PostgreSQL database."""

from art_langgraph.store.database import DuplicateRun, StoreUnavailable
from art_langgraph.store.session import Batch, Session
from art_langgraph.store.trajectory_store import TrajectoryStore

__all__ = ["Batch", "DuplicateRun", "Session", "StoreUnavailable", "TrajectoryStore"]
