"""What the dashboard and the terminal show alike: the tree of a run, and the state of a server."""
