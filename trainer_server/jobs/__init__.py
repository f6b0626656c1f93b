"""Training jobs: accepted, kept as files, done by the trainer process, put into service."""
