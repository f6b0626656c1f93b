"""Which scenarios a step learns from, what is done about groups that teach nothing, and a report of them."""
