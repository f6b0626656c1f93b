"""What can be asked about the result of a call."""
