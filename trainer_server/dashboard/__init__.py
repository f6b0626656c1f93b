"""The dashboard and the viewer of runs: pages at `/` and under `/ui/`, behind a login by the token."""
