"""What tests of the trainer share."""
