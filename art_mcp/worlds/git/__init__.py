"""Git in a copy of a world: its commands, its settings, and the environment in which it reaches no original."""
