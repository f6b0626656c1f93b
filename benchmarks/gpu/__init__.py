"""What a machine with one GPU gives, measured by one command."""
