"""Requests of people to the servers of the benchmarks, with the calls that solve them: `NAME.jsonl`, one a line."""
