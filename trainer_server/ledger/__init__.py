"""The ledger: every completion with its exact tokens. Only this package opens its files."""
