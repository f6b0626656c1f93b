"""Systems other than Linux, as far as they can be imitated on it."""
