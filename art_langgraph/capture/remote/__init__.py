"""Runs of graphs in another process (`RemoteGraph`): calls carry the rollout, and their records are fetched.

A rollout gives each call of a remote graph an id (`calls`). The other process records the run, and sends the record to
the trainer server under that id (`outbox`). The rollout fetches it there, and puts it in its place (`fetch`).
"""
