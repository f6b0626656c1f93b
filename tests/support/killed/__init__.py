"""Programs that tests kill, each a process of its own."""
