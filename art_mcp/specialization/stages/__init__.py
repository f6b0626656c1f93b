"""The stages of a specialization that are more than a measurement: each takes what it needs and returns its result."""
