"""The contents of the files of a job: what was accepted, how far it is, how it ended; and idempotency keys."""
