"""Makes scenarios of executed drafts, as many as are wanted, balanced over tools, kinds and held-out sets."""
