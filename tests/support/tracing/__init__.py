"""What tests send traces to."""
