"""Work beside the event loop: versions of ended rollouts are released, and reports of runs are sent to servers."""
